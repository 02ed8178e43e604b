"""Worker: an engine in simulated time. The engine's scheduler builds each step, and the device's costs say how long it
takes.

As in `EngineLoop`, some steps are submitted before the oldest one is read, and a request that arrives while a step
runs takes part in the next one that is built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..engine.sequence import RUNNING, Sequence, SequenceParams
from ..engine.step import Row, Step
from .costs import shape_of
from .device import Device
from .events import Clock
from .leaps import LeapingScheduler, answer_token
from .prefixes import adopt
from .request import NEVER, SimulatedRequest

# A leap of fewer turns takes longer than the turns.
LEAST_LEAP = 2
MOST_LEAP = 4096


class Leap(NamedTuple):
    """``turns`` that were planned at once. ``seconds`` are those of the steps that they submit, ``ends`` the times at
    which the open steps end, and then these.
    """

    began: float
    ends: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]
    turns: int


class Worker:
    """``number`` is the worker's place in the cluster. ``leaps``: whether turns that only decode are taken together,
    which changes no result.
    """

    def __init__(self, clock: Clock, device: Device, number: int, *, leaps: bool = True) -> None:
        self.device, self.number = device, number
        self.scheduler = LeapingScheduler(device.scheduler_config())
        self.busy_seconds = 0.0
        self.computed_tokens = 0
        self.most_pages = 0
        self.steps = 0
        self._clock, self._leaps = clock, leaps
        self._requests: dict[Sequence, SimulatedRequest] = {}
        # What is called when a sequence has its last token, and its first one.
        self._ends: dict[Sequence, Callable[[], None]] = {}
        self._begins: dict[Sequence, Callable[[], None]] = {}
        # Sequences whose pages go to another worker, and what is called with the position up to which they are full.
        self._exports: dict[Sequence, Callable[[int], None]] = {}
        # Submitted steps and when each ends.
        self._open: deque[tuple[Step, float]] = deque()
        # When the device has computed all that was submitted.
        self._free_at = 0.0
        self._is_steady = self._is_reading = self._is_calling = False
        # What is done between two steps, in this order.
        self._calls: list[Callable[[], None]] = []
        self._leap: Leap | None = None
        # Events of the clock that were planned before this number are void.
        self._plan = 0

    @property
    def queue(self) -> int:
        """Requests that wait."""
        return len(self.scheduler.waiting)

    def cached_prefix(self, tokens: Items[int]) -> int:
        """The tokens of a prompt that its prefix cache holds; the last token is always computed."""
        return self.scheduler.kv.prefixes.find(tokens, len(tokens) - 1).length

    def write_prefix(self, tokens: Items[int]) -> int:
        """Let requests start from keys and values that came from elsewhere. Returns the tokens now in the cache."""
        self._interrupt()
        held = adopt(self.scheduler.kv, tokens)
        self._resume()
        return held

    def call(self, action: Callable[[], None]) -> None:
        """Call ``action`` between two steps, as `Inbox.call` does: when the oldest step is read, at once if there is
        none.
        """
        self._interrupt()
        if self._open or self._is_calling:
            self._calls.append(action)
        else:
            action()

    def add(
        self,
        request: SimulatedRequest,
        prompt: Items[int],
        output_tokens: int,
        ended: Callable[[], None],
        begun: Callable[[], None] | None = None,
    ) -> None:
        """Queue a request now. ``begun`` is called when it has its first token, and ``ended`` when it has
        ``output_tokens``; neither may add requests.
        """
        self._interrupt()
        request.workers.append(self.number)
        sequence = Sequence(request.number, prompt, SequenceParams(max_tokens=output_tokens))
        self._requests[sequence], self._ends[sequence] = request, ended
        if begun is not None:
            self._begins[sequence] = begun
        self.scheduler.add(sequence)
        self._is_steady = False
        self._resume()

    def export(self, request: SimulatedRequest, tokens: Items[int], end: int, computed: Callable[[int], None]) -> None:
        """Compute the positions of a prompt before ``end``, for another worker. ``computed`` is called as this goes on,
        with the position up to which they are, and may not add requests.
        """
        self._interrupt()
        request.workers.append(self.number)
        sequence = Sequence(request.number, tokens[: end + 1], SequenceParams(prefill_end=end))
        self._requests[sequence], self._exports[sequence] = request, computed
        self.scheduler.add(sequence)
        self._is_steady = False
        self._resume()

    # --- turns ---

    def _turn(self, now: float) -> None:
        """Submit steps ahead, from ``now`` on, and plan to read the oldest one."""
        while len(self._open) < self.device.lookahead and (step := self.scheduler.next()) is not None:
            self._submit(step, now)
        if self._exports:
            self._end_cached_exports()
        if self._open:
            self._at(self._open[0][1], self._read)

    def _submit(self, step: Step, now: float) -> None:
        shape = shape_of(step.rows)
        seconds = self.device.costs.seconds(shape)
        start = max(now, self._free_at)
        self._free_at = start + seconds
        self._open.append((step, self._free_at))
        self._count(1, seconds, shape.positions)
        for sequence in step.admitted:
            request = self._requests[sequence]
            if request.started == NEVER:
                request.started = start
        self._is_steady = not step.admitted and len(step.rows) == shape.positions == len(self.scheduler.running)

    def _count(self, steps: int, seconds: float, positions: int) -> None:
        self.steps += steps
        self.busy_seconds += seconds
        self.computed_tokens += positions
        (pages,) = self.scheduler.kv.pages
        self.most_pages = max(self.most_pages, pages.size - pages.free - len(pages.idle))

    def _read(self) -> None:
        """The oldest step is done."""
        step, _ = self._open.popleft()
        tokens = [answer_token(row.sequence) for row in step.rows for _ in range(row.num_sampled)]
        calls: list[Callable[[], None]] = []
        for kind, sequence, *_ in self.scheduler.commit(step, tokens):
            if kind == "token":
                if sequence.generated == 1:
                    request = self._requests[sequence]
                    if sequence in self._begins:
                        calls.append(self._begins.pop(sequence))
                    if request.first == NEVER:
                        request.first = self._clock.now
                        # What a prefill worker computed for it is in the cache, too.
                        request.cached_tokens = max(0, sequence.cached_tokens - request.prefilled_tokens)
            else:
                assert kind == "finished", kind
                calls.append(self._end(sequence))
        self._is_reading = True
        for call in calls:
            call()
        for row in step.rows if self._exports else ():
            if row.sequence in self._exports:
                self._exported(row.sequence, row.start + row.length)
        self._is_reading = False
        self._continue()

    def _end(self, sequence: Sequence) -> Callable[[], None]:
        """A sequence has its last token. Returns what to call."""
        self._requests.pop(sequence).finish = self._clock.now
        self._is_steady = False
        return self._ends.pop(sequence)

    def _exported(self, sequence: Sequence, position: int) -> None:
        """A step is done that computed an export up to a position."""
        computed = self._exports[sequence]
        if position == sequence.params.prefill_end:
            self._requests[sequence].prefilled_tokens = position - sequence.cached_tokens
            del self._exports[sequence], self._requests[sequence]
            self.scheduler.finish(sequence, "length")
            self._is_steady = False
        computed(position)

    def _end_cached_exports(self) -> None:
        """End the exports of prompts that the cache had in full, which no step computes."""
        is_reading, self._is_reading = self._is_reading, True
        computing = {row.sequence for step, _ in self._open for row in step.rows}
        for sequence in list(self._exports):
            end = sequence.params.prefill_end
            if sequence.state == RUNNING and sequence.computed == end and sequence not in computing:
                self._exported(sequence, end)
        self._is_reading = is_reading

    def _continue(self) -> None:
        self._run_calls()
        if not (self._leaps and not self._calls and self._begin_leap()):
            self._turn(self._clock.now)
        while self._calls and not self._open:
            self._run_calls()
            self._turn(self._clock.now)

    def _run_calls(self) -> None:
        """Those that are added meanwhile come between the next two steps."""
        if not self._calls:
            return
        calls, self._calls = self._calls, []
        self._is_calling = True
        for call in calls:
            call()
        self._is_calling = False

    # --- leaps ---

    def _begin_leap(self) -> bool:
        """Plan many turns that only decode, if the next ones are such turns."""
        scheduler = self.scheduler
        if len(self._open) != self.device.lookahead - 1:
            return False
        turns = scheduler.turns_to_leap(MOST_LEAP, is_steady=self._is_steady)
        if turns < LEAST_LEAP:
            return False
        reads = sum(sequence.computed + 1 for sequence in scheduler.running)
        seconds = self.device.costs.decode_seconds(len(scheduler.running), reads, turns)
        start = max(self._clock.now, self._free_at)
        submitted = np.cumsum(np.concatenate(([start], seconds)))[1:]
        ends = np.concatenate(([end for _, end in self._open], submitted))
        self._leap = Leap(self._clock.now, ends, seconds, turns)
        self._at(float(ends[turns - 1]), self._end_leap)
        return True

    def _end_leap(self) -> None:
        assert self._leap is not None
        self._take(self._leap, self._leap.turns)
        calls = [self._end(sequence) for sequence in self.scheduler.end_complete()]
        self._is_reading = True
        for call in calls:
            call()
        self._is_reading = False
        self._continue()

    def _interrupt(self) -> None:
        """Something is about to change: take those turns of a leap that are over, and begin the current one."""
        assert not self._is_reading, "requests come through the clock, between turns"
        leap = self._leap
        if leap is None:
            return
        self._plan += 1
        turns = int(np.searchsorted(leap.ends[: leap.turns], self._clock.now))
        self._take(leap, turns)
        self._turn(leap.began if turns == 0 else float(leap.ends[turns - 1]))

    def _take(self, leap: Leap, turns: int) -> None:
        self._leap = None
        if turns == 0:
            return
        scheduler, running, num_open = self.scheduler, self.scheduler.running, len(self._open)
        scheduler.leap(turns)
        self._free_at = float(leap.ends[num_open + turns - 1])
        self._open.clear()
        for index in range(num_open):
            behind = num_open - index
            rows = [Row(sequence, sequence.computed - behind, 1, 1) for sequence in running]
            self._open.append((Step(rows, [], [], []), float(leap.ends[turns + index])))
        self._count(turns, float(leap.seconds[:turns].sum()), len(running) * turns)
        self._is_steady = True

    def _resume(self) -> None:
        """Begin a turn if the worker was idle."""
        if not self._open and self._leap is None and not self._is_calling:
            self._turn(self._clock.now)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        """Call ``action`` at a time, unless another plan was made by then."""
        plan = self._plan

        def act() -> None:
            if plan == self._plan:
                action()

        self._clock.at(time, act)
