"""Compiles the grammars of all models and adapters of a server in separate processes.

There are two lanes. A grammar begins in the quick lane, where each grammar has little time, so that small schemas never
wait for long, and little memory. A grammar that needs more begins again in the slow lane, whose process runs only while
it is needed. A client that has just sent a costly grammar begins in the slow lane too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from nearfar.compiler.runtime.errors import Unavailable

from ...processes.worker import NICENESS, START_SECONDS, WorkerEnded, WorkerLimits, WorkerProcess
from ..fair_turns import FairTurns
from .messages import READY, UNKNOWN_VOCABULARY, Compiled, Job, Setup
from .source import GrammarSource

# Costly grammars yield to the quick lane too.
SLOW_NICENESS = 10


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """The limits of time and memory.

    A grammar may take ``quick_seconds`` and then ``slow_seconds``, with the search for its shortest answer.
    ``quick_bytes`` and ``slow_bytes`` limit all memory of the lanes' processes. A process that holds more than
    ``keeps_bytes`` afterwards is replaced.

    After a grammar that took ``costly_seconds`` of processor time, the grammars of its client begin in the slow lane
    for ``slow_lane_seconds``. Time that passes while the processor is busy with other work does not count, so that an
    overloaded server does not send every client to the slow lane.
    """

    quick_seconds: float = 3.0
    slow_seconds: float = 20.0
    costly_seconds: float = 0.5
    slow_lane_seconds: float = 60.0
    quick_bytes: int = 384 * 2**20
    slow_bytes: int = 640 * 2**20
    keeps_bytes: int = 320 * 2**20


class GrammarCompiler:
    """Used from one event loop.

    A process starts when it is first needed. Both have ended when the last user has left.
    """

    def __init__(self, limits: CompileLimits = CompileLimits()) -> None:
        self.lanes: Sequence[CompileLane] = (
            CompileLane(limits, limits.quick_seconds, limits.quick_bytes, self._note, stays=True),
            CompileLane(
                limits, limits.slow_seconds, limits.slow_bytes, self._note, stays=False, niceness=SLOW_NICENESS
            ),
        )
        self._limits = limits
        self._users = 0
        # The time until which the grammars of a client begin in the slow lane.
        self._costly_until: dict[str, float] = {}

    def lanes_of(self, client: str) -> Sequence[CompileLane]:
        """The lanes in which a client's next grammar is tried, one after the other."""
        return self.lanes[1:] if self._costly_until.get(client, 0.0) > monotonic() else self.lanes

    def join(self) -> None:
        """Each model joins once and leaves once."""
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            for lane in self.lanes:
                lane.close()

    def _note(self, client: str, seconds: float) -> None:
        if seconds > self._limits.costly_seconds:
            now = monotonic()
            self._costly_until = {other: until for other, until in self._costly_until.items() if until > now}
            self._costly_until[client] = now + self._limits.slow_lane_seconds


class CompileLane:
    """A process and the turns of its clients. If it does not stay, it ends when nobody waits for it.

    ``note`` is called with a client and the processor time that its grammar has taken, in seconds.
    """

    def __init__(
        self,
        limits: CompileLimits,
        seconds: float,
        memory_bytes: int,
        note: Callable[[str, float], None],
        *,
        stays: bool,
        niceness: int = NICENESS,
    ) -> None:
        self.seconds, self.memory_bytes = seconds, memory_bytes
        self._note = note
        self._niceness = niceness
        self._limits, self._stays = limits, stays
        self._turns = FairTurns()
        self._process: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process, None while it does not run."""
        return None if self._process is None else self._process.pid

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """`compile` is called inside."""
        async with self._turns.turn(client):
            try:
                yield
            finally:
                if not self._stays and not self._turns.waiting:
                    self.close()

    async def compile(self, setup: Setup, source: GrammarSource, client: str) -> Compiled | None:
        """Compile a source for a vocabulary; None if it takes more time or memory than this lane allows.

        A cancelled call gives the process half a second. Raises RequestError for a grammar that is wrong, and
        Unavailable if the process was ended from outside.
        """
        if self._process is None:
            limits = WorkerLimits(self.memory_bytes, self._limits.keeps_bytes, int(self.seconds) + 10, self._niceness)
            self._process = WorkerProcess(f"{__package__}.worker", limits)
        process, job = self._process, Job(setup.key, source)
        try:
            await process.start()
            reply = await self._timed(process, job, client)
            if reply == UNKNOWN_VOCABULARY:
                if await process.call(setup, START_SECONDS) != READY:
                    raise WorkerEnded
                reply = await self._timed(process, job, client)
        except WorkerEnded as ended:
            if ended.timed_out or ended.fault:
                return None
            raise Unavailable("the grammar compiler's process was ended; send the request again") from ended
        except MemoryError:
            return None
        assert isinstance(reply, Compiled)
        return reply

    async def _timed(self, process: WorkerProcess, job: Job, client: str) -> object:
        try:
            return await process.call(job, self.seconds)
        finally:
            self._note(client, process.last_seconds)

    def close(self) -> None:
        """End the process; the next grammar starts another."""
        if self._process is not None:
            self._process.close()
            self._process = None
