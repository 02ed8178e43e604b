"""QueueWaits: how long the last answers of each model waited for the device. A header tells it to clients that choose who answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ..executors.executor import ExecutorState

ANSWERS = 16


class QueueWaits:
    """By the name that was asked for. A model whose executor does not tell its waits has none."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def observe(self, model: str, seconds: float) -> None:
        self._seconds.setdefault(model, deque(maxlen=ANSWERS)).append(seconds)

    def told_ms(self, states: Mapping[str, ExecutorState]) -> int | None:
        """What a request would wait now: the mean of the last 16 answers, 0 where nobody waits. Of several models the longest.

        None where no model of ``states`` has told a wait yet.
        """
        known = {model: state for model, state in states.items() if model in self._seconds}
        return max((self._mean_ms(model) if state.waiting else 0 for model, state in known.items()), default=None)

    def _mean_ms(self, model: str) -> int:
        seconds = self._seconds[model]
        return round(1000 * sum(seconds) / len(seconds))
