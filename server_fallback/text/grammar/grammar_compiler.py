"""The grammar compiler: one process of its own that compiles the grammars of all models and adapters of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nearfar.compiler.errors import RequestError, Unavailable

from ..fair_turns import FairTurns
from ..worker_process import START_SECONDS, WorkerEnded, WorkerProcess
from .messages import READY, UNKNOWN_VOCABULARY, Compiled, Job, Refused, Setup
from .source import GrammarSource

POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """A grammar may take ``seconds`` with the search for its shortest answer, but only ``shared_seconds`` while another client waits.

    ``memory_bytes`` limits the memory that the process has allocated.
    ``waiting`` grammars may wait, ``waiting_of_one`` of one client.
    """

    seconds: float = 20.0
    shared_seconds: float = 4.0
    memory_bytes: int = 1024 * 2**20
    waiting: int = 256
    waiting_of_one: int = 64


class GrammarCompiler:
    """Used from one event loop. The process starts with the first grammar, and ends when the last user has left."""

    def __init__(self, limits: CompileLimits = CompileLimits()) -> None:
        self.limits = limits
        self._turns = FairTurns("the grammar compiler", limits.waiting, limits.waiting_of_one)
        self._process: WorkerProcess | None = None
        self._users = 0

    @property
    def pid(self) -> int | None:
        """The process's, None while there is none."""
        return None if self._process is None else self._process.pid

    def join(self) -> None:
        """Each model joins once and leaves once."""
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0 and self._process is not None:
            self._process.close()
            self._process = None

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """`compile` is called inside. Raises QueueFull."""
        async with self._turns.turn(client):
            yield

    async def compile(self, setup: Setup, source: GrammarSource, client: str) -> Compiled:
        """Compile a source for a vocabulary, in the client's turn. Cancelled, it gives the process half a second to end.

        Raises RequestError for a grammar that is wrong, or takes more than its time or memory; Unavailable if the process was ended from
        outside, or if the grammar takes long and others wait.
        """
        if self._process is None:
            self._process = WorkerProcess(f"{__package__}.worker", self.limits.memory_bytes, int(self.limits.seconds) + 10)
        process, gave_way = self._process, False
        asking = asyncio.create_task(self._ask(process, setup, source))
        try:
            wait_seconds = self.limits.shared_seconds
            while not (await asyncio.wait({asking}, timeout=wait_seconds))[0]:
                wait_seconds = POLL_SECONDS
                if self._turns.others_wait(client):
                    gave_way = True
                    process.end()
            reply = asking.result()
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait({asking})
            raise
        except WorkerEnded as ended:
            if gave_way:
                raise Unavailable(
                    f"the grammar takes more than {self.limits.shared_seconds:g} seconds to compile, and others wait; "
                    "ask again, or make it smaller",
                    retry_after_seconds=self.limits.seconds,
                ) from ended
            if ended.timed_out or ended.fault:
                raise RequestError(
                    f"the grammar cannot be compiled within {self.limits.seconds:g} seconds and the memory for it; make it smaller"
                ) from ended
            raise Unavailable("the grammar compiler's process was ended; ask again") from ended
        if isinstance(reply, Refused):
            raise RequestError(reply.message)
        assert isinstance(reply, Compiled)
        return reply

    async def _ask(self, process: WorkerProcess, setup: Setup, source: GrammarSource) -> object:
        job = Job(setup.key, source)
        reply = await process.ask(job, self.limits.seconds)
        if reply == UNKNOWN_VOCABULARY:
            if await process.ask(setup, START_SECONDS) != READY:
                raise WorkerEnded
            reply = await process.ask(job, self.limits.seconds)
        return reply
