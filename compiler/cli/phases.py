"""The phases of a compile: their progress, and the wall time and processor time of each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .output import new_console

# The compiler's name of each phase and the name that users read, in order. The compiler reports all but the first.
PHASES = {
    "start": "loading compiler",
    "read": "reading model",
    "sample": "writing text",
    "importance": "weighing tokens",
    "choice": "choosing formats",
    "fit": "fitting matrices",
    "tune": "tuning",
    "graph": "building graph",
    "kernels": "lowering kernels",
    "weights": "packing weights",
    "self-test": "running reference",
    "prefixes": "making prefixes",
    # Of a model for the store, or of a catalog's bundle.
    "download": "downloading",
    "copy": "copying",
}
# The columns of the longest name.
NAME_WIDTH = max(map(len, PHASES.values()))
# Waiting is reported if wall time exceeds processor time by this share of the wall time and by these seconds.
WAITED_SHARE, WAITED_SECONDS = 0.25, 1.0


@dataclass(slots=True)
class Duration:
    """``processor_seconds`` counts all threads, and the child processes that have ended."""

    seconds: float = 0.0
    processor_seconds: float = 0.0

    def to_json(self) -> dict[str, float]:
        return {"seconds": round(self.seconds, 3), "processor_seconds": round(self.processor_seconds, 3)}


class PhaseClock:
    """Measures phases. Each phase ends when the next one begins, so their sum is the time since the clock was created.

    ``shown`` receives the compiler's progress; ``ended`` receives each phase that has ended, with its duration.
    """

    def __init__(
        self,
        shown: Callable[[str, int, int], None] = lambda *_: None,
        ended: Callable[[str, Duration], None] = lambda *_: None,
    ) -> None:
        self.durations: dict[str, Duration] = {}
        self._shown, self._ended = shown, ended
        self._phase = "start"
        self._wall, self._processor = time.perf_counter(), processor_seconds()
        shown(self._phase, 0, 1)

    def progress(self, phase: str, done: int, total: int) -> None:
        """The progress callback for the compiler."""
        if phase != self._phase:
            if self._phase == "start":
                self._shown("start", 1, 1)
            self.finish()
            self._phase = phase
        self._shown(phase, done, total)

    def finish(self) -> None:
        """End the current phase."""
        wall, processor = time.perf_counter(), processor_seconds()
        duration = self.durations.setdefault(self._phase, Duration())
        duration.seconds += wall - self._wall
        duration.processor_seconds += processor - self._processor
        self._wall, self._processor = wall, processor
        self._ended(self._phase, duration)

    @property
    def total(self) -> Duration:
        """The sum over all phases that have ended."""
        durations = self.durations.values()
        return Duration(sum(each.seconds for each in durations), sum(each.processor_seconds for each in durations))


def processor_seconds() -> float:
    """The processor time of this process's threads and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextmanager
def timed_phases(*, quiet: bool = False) -> Iterator[PhaseClock]:
    """A clock that shows its phases on standard error: as bars on a terminal, otherwise as one line per ended phase."""
    if quiet or not new_console(stderr=True).is_terminal:
        clock = PhaseClock() if quiet else PhaseClock(ended=print_phase)
        yield clock
        clock.finish()
        return
    # The bars disappear, because the table of all phases follows.
    with progress_bars(transient=True) as bars:
        clock = PhaseClock(phases(bars))
        yield clock
        clock.finish()


def print_phase(phase: str, duration: Duration) -> None:
    line = f"{PHASES[phase]:{NAME_WIDTH}} {duration.seconds:8.1f} s, processor {duration.processor_seconds:.1f} s"
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress_bars(*, quiet: bool = False, transient: bool = False) -> Iterator[Progress]:
    """Progress bars on standard error, so that a command's output can be piped. They appear after ``start()``.

    ``transient``: the bars disappear at the end.
    """
    name = TextColumn(f"{{task.description:{NAME_WIDTH}}}", markup=False)
    columns = (name, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=new_console(stderr=True), disable=quiet, transient=transient)
    try:
        yield bars
    finally:
        # Stopping bars that never started would print an empty line above an error.
        if bars.tasks:
            bars.stop()


def phases(bars: Progress) -> Callable[[str, int, int], None]:
    """A progress callback for the compiler, which shows one bar per phase."""
    tasks: dict[str, TaskID] = {}
    # Phases of unknown length, which the next phase ends.
    endless: set[str] = set()

    def progress(phase: str, done: int, total: int) -> None:
        for ended in endless - {phase}:
            bars.update(tasks[ended], completed=1, total=1)
            endless.remove(ended)
        if phase not in tasks:
            bars.start()
            tasks[phase] = bars.add_task(PHASES[phase], total=total or None)
        bars.update(tasks[phase], completed=done, total=total or None)
        (endless.discard if total else endless.add)(phase)

    return progress


def phase_table(clock: PhaseClock) -> Table:
    """The seconds of each phase. The last line is the total."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    table.add_column("processor", justify="right")
    for phase, duration in clock.durations.items():
        table.add_row(PHASES[phase], f"{duration.seconds:.1f}", f"{duration.processor_seconds:.1f}")
    table.add_row("total", f"{clock.total.seconds:.1f}", f"{clock.total.processor_seconds:.1f}", style="bold")
    return table


def waiting(total: Duration) -> str | None:
    """A message for a compile that spent much of its time waiting; None for others."""
    waited = total.seconds - total.processor_seconds
    if waited < max(WAITED_SECONDS, WAITED_SHARE * total.seconds):
        return None
    return f"{waited:.1f} s of this was spent waiting for other programs, the disk or the network"


def phases_json(durations: Mapping[str, Duration]) -> dict[str, dict[str, float]]:
    return {phase: duration.to_json() for phase, duration in durations.items()}
