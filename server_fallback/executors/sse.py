"""Server-sent events: parse the bytes of a connection into the data of each event.

The format is that of the HTML standard (section 9.2.6) with lines that end in \\n or \\r\\n; only the field
``data`` is used.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from nearfar.compiler.errors import DeviceError

# A server that never ends a line must not fill the memory.
MAX_EVENT_BYTES = 8 << 20


async def events(parts: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """The data of each event. An event that is cut short by the end of the connection is dropped, as the standard
    requires.

    Raises DeviceError for an event of more than 8 MB, or one that is not UTF-8.
    """
    pending, data, size = b"", [], 0
    async for part in parts:
        # Not str.splitlines: it also splits at U+2028, which JSON may hold as it is.
        *lines, pending = (pending + part).split(b"\n")
        size += len(part)
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line.removeprefix(b"data:").removeprefix(b" "))
            elif not line and data:
                yield decode(b"\n".join(data))
                data, size = [], len(pending)
        if size > MAX_EVENT_BYTES:
            raise DeviceError(
                f"the upstream sent an event of more than {MAX_EVENT_BYTES >> 20} MB; check that its URL is that "
                "of an OpenAI-compatible server"
            )


def decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DeviceError(f"the upstream sent an event that is not UTF-8: {error}") from error
