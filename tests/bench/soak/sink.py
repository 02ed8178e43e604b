"""A server that reads every request and refuses it. Attacks on it take the same processor time as on the real server,
so they show how much of a delay is that of the attacking process on the same machine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def sink() -> AsyncIterator[str]:
    """The URL of a sink on the running event loop."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = LENGTH.search(head)
                left = int(found[1]) if found else 0
                while left > 0 and (part := await reader.read(left)):
                    left -= len(part)
                writer.write(REFUSAL)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
