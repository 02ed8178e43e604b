"""Server-sent events: parse the bytes of a connection into the data of each event.

The format is that of the HTML standard (section 9.2.6) with lines that end in \\n or \\r\\n; only the field
``data`` is used.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from nearfar.compiler.runtime.errors import DeviceError

# A server that never ends a line must not fill the memory.
MAX_EVENT_BYTES = 8 << 20
# An event ends with an empty line.
END = re.compile(rb"\n\r?\n")


async def events(parts: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """The data of each event. An event that is cut short by the end of the connection is dropped, as the standard
    requires.

    Raises DeviceError for an event of more than 8 MB, or one that is not UTF-8.
    """
    pending = CompleteEvents()
    async for part in parts:
        block = pending.add(part)
        for event in split(block):
            if (data := data_of(event)) is not None:
                yield decode(data)


class CompleteEvents:
    """Holds back the part of an event that has not arrived completely."""

    def __init__(self) -> None:
        self._pending = b""

    def add(self, part: bytes) -> bytes:
        """All events that are complete now, as they arrived. Raises DeviceError if one is larger than 8 MB."""
        if not self._pending and part.endswith(b"\n\n"):
            return part
        searched = max(0, len(self._pending) - 2)
        received = self._pending + part
        end = 0
        for empty_line in (b"\n\n", b"\n\r\n"):
            if (found := received.rfind(empty_line, searched)) >= 0:
                end = max(end, found + len(empty_line))
        self._pending = received[end:]
        if len(self._pending) > MAX_EVENT_BYTES:
            raise DeviceError(
                f"the upstream sent an event of more than {MAX_EVENT_BYTES >> 20} MB; check that its URL is that "
                "of an OpenAI-compatible server"
            )
        return received[:end]


def split(block: bytes) -> Iterator[bytes]:
    """The events of a block that holds whole events."""
    start = 0
    while start < len(block):
        end = event_end(block, start)
        yield block[start:end]
        start = end


def event_end(block: bytes, start: int) -> int:
    """Where the event at ``start`` ends, in a block that holds whole events."""
    found = END.search(block, start)
    assert found is not None
    return found.end()


def data_of(event: bytes) -> bytes | None:
    """The data of an event; None if it has none: it is a comment."""
    # Not splitlines: it also splits at other characters, which JSON may hold as they are.
    lines = [line.removesuffix(b"\r") for line in event.split(b"\n")]
    data = [line.removeprefix(b"data:").removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(data) if data else None


def decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DeviceError(f"the upstream sent an event that is not UTF-8: {error}") from error
