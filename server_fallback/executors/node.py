"""Node: this machine as one of several on which a vLLM runs (`nearfar node`). The first machine decides when vLLM
starts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from .node_link import MAX_LINE_BYTES, LinkLost, NodeLink
from .supervised import end_group, ended_with_us

RETRY_SECONDS = 2.0
STOP_SECONDS = 20.0


class Node:
    """``program`` is the vllm command. ``run`` connects, and connects again, until it is cancelled."""

    def __init__(self, host: str, port: int, rank: int, key: str, program: str) -> None:
        self._host, self._port, self._rank, self._key, self._program = host, port, rank, key, program
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        said = ""
        try:
            while True:
                try:
                    await self._connected()
                except LinkLost as lost:
                    now = f"the first machine, {self._host}:{self._port}, {lost}"
                    if now != said:
                        self._say(f"{now}; trying again every {RETRY_SECONDS:g} s")
                    said = now
                finally:
                    await self._end()
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self._end()

    async def _connected(self) -> None:
        """Carry out the first machine's commands while it is connected. Raises LinkLost."""
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=MAX_LINE_BYTES)
        except OSError as error:
            raise LinkLost("does not answer") from error
        link = NodeLink(reader, writer)
        try:
            await link.join(self._key, self._rank)
            self._say(f"connected to {self._host}:{self._port} as node {self._rank}")
            while True:
                message = await link.receive()
                await self._end()
                if "start" in message:
                    await self._start([str(each) for each in message["start"]], link)
        finally:
            await link.close()

    async def _start(self, arguments: Sequence[str], link: NodeLink) -> None:
        # Its log is this program's log. A separate session, so that its child processes are ended with it.
        self._process = await asyncio.create_subprocess_exec(
            *ended_with_us([self._program, *arguments]), stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        self._waiting = asyncio.create_task(self._report_end(self._process, link))

    async def _report_end(self, process: asyncio.subprocess.Process, link: NodeLink) -> None:
        status = await process.wait()
        self._say(f"vllm ended with status {status}")
        link.send({"ended": status})

    async def _end(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            # Unlike `suppress`, this does not hide a cancellation of the caller.
            await asyncio.gather(self._waiting, return_exceptions=True)
            self._waiting = None
        if self._process is not None:
            await end_group(self._process, STOP_SECONDS)
            self._process = None

    @staticmethod
    def _say(text: str) -> None:
        print(f"nearfar node: {text}", file=sys.stderr, flush=True)
