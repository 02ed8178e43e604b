"""QueueWaits: how long the last answers of each model waited for the device. A header reports it to clients that choose
which side answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ..executors.executor import ExecutorState

ANSWERS = 16


class QueueWaits:
    """By the requested name. If an executor does not report its waits, its model has no entry."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def observe(self, model: str, seconds: float) -> None:
        self._seconds.setdefault(model, deque(maxlen=ANSWERS)).append(seconds)

    def wait_ms(self, states: Mapping[str, ExecutorState]) -> int | None:
        """The expected wait of a request now: the mean of the last 16 answers, or 0 if no request waits; the longest
        one of several models.

        None if no model of ``states`` has reported a wait yet.
        """
        known = {model: state for model, state in states.items() if model in self._seconds}
        return max((self._mean_ms(model) if state.waiting else 0 for model, state in known.items()), default=None)

    def _mean_ms(self, model: str) -> int:
        seconds = self._seconds[model]
        return round(1000 * sum(seconds) / len(seconds))
