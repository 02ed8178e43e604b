"""RunnerCalls: how an engine's thread calls its runner. An exception becomes a NearfarError, and the time of the runner
is not the engine's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from nearfar.compiler.runtime.batch import Array

from .step_runner import StepRunner, device_errors

T = TypeVar("T")


class RunnerCalls:
    """``other_seconds`` is the time of an engine's turn that is not its overhead: in the runner, and what the engine
    adds for the drafter and for waking event loops.

    The parts of an engine have this object instead of the engine's methods, with which the engine would refer to
    itself, and keep its runner until the garbage collector runs.
    """

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.other_seconds = 0.0

    def __call__(self, call: Callable[..., T], *arguments: object) -> T:
        """The result of a call of the runner. Raises NearfarErrors only, usually DeviceError."""
        started = time.perf_counter()
        try:
            with device_errors(self._runner.device):
                return call(*arguments)
        finally:
            self.other_seconds += time.perf_counter() - started

    def write_state(self, name: str, slot: int, values: Array) -> None:
        """See `StepRunner.write_state`."""
        self(self._runner.write_state, name, slot, values)
