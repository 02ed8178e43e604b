"""The watch: detects, token by token, a near answer that goes wrong.

It reads tokens with the model's log-probabilities and returns the reason to escalate, if any.
web/src/router/answer/watch.ts is the same, and tests/conformance/router_traces.json requires the same reasons of both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .events import EscalationReason

if TYPE_CHECKING:
    from ..decision.policy import Escalation


class Watch:
    """Applies the escalation rules of the policy. A window is the last ``window_tokens`` tokens; logprobs and entropies
    (in nats) are means over a window.

    ``doubts``: a token has made an escalation likely, which is half of the threshold over at least half a window. Once
    true, it stays true.
    """

    def __init__(self, rules: Escalation) -> None:
        self._rules = rules
        self.doubts = False
        self._logprobs: deque[float] = deque(maxlen=rules.window_tokens)
        self._entropies: deque[float] = deque(maxlen=rules.window_tokens)
        repetition = rules.repetition
        self._texts: deque[str] = deque(maxlen=0 if repetition is None else repetition.tokens * repetition.times)

    def add(
        self, text: str, logprob: float | None = None, alternatives: Sequence[float] | None = None
    ) -> EscalationReason | None:
        """Add a token of the answer: its text, its logprob, and the logprobs of the most likely tokens.

        None: not known, so it is in no window.
        """
        rules = self._rules
        self._texts.append(text)
        if logprob is not None:
            self._logprobs.append(logprob)
        if alternatives is not None:
            self._entropies.append(entropy(alternatives))
        self.doubts = self.doubts or self._begins_to_stray()
        mean_logprob, mean_entropy = (
            mean(self._logprobs, rules.window_tokens),
            mean(self._entropies, rules.window_tokens),
        )
        if rules.min_mean_logprob is not None and mean_logprob is not None and mean_logprob < rules.min_mean_logprob:
            return "escalated_logprob"
        if rules.max_mean_entropy is not None and mean_entropy is not None and mean_entropy > rules.max_mean_entropy:
            return "escalated_entropy"
        return (
            "escalated_repetition" if rules.repetition is not None and self._repeats(rules.repetition.tokens) else None
        )

    def schema_failed(self) -> EscalationReason | None:
        """The answer can no longer match its schema."""
        return "escalated_schema" if self._rules.failing_schema else None

    def _begins_to_stray(self) -> bool:
        rules, half = self._rules, math.ceil(self._rules.window_tokens / 2)
        mean_logprob, mean_entropy = mean(self._logprobs, half), mean(self._entropies, half)
        if (
            rules.min_mean_logprob is not None
            and mean_logprob is not None
            and mean_logprob < rules.min_mean_logprob / 2
        ):
            return True
        return (
            rules.max_mean_entropy is not None
            and mean_entropy is not None
            and mean_entropy > rules.max_mean_entropy / 2
        )

    def _repeats(self, longest: int) -> bool:
        texts = list(self._texts)
        if len(texts) < (self._texts.maxlen or 0) or not any(texts):
            return False
        return any(texts[period:] == texts[:-period] for period in range(1, longest + 1))


def entropy(logprobs: Sequence[float]) -> float:
    """The entropy in nats, from the most likely tokens. The remaining probability counts as one more token."""
    total, rest = 0.0, 1.0
    for logprob in logprobs:
        probability = math.exp(logprob)
        # 0 log 0 is 0, also if the logprob is -inf.
        total -= probability * logprob if probability > 0 else 0.0
        rest -= probability
    return total - rest * math.log(rest) if rest > 0 else total


def mean(window: deque[float], at_least: int) -> float | None:
    """None for fewer than ``at_least`` tokens, because a few tokens prove nothing."""
    if len(window) < at_least:
        return None
    total = 0.0
    # Not sum(), which compensates for rounding; JavaScript does not.
    for value in window:
        total += value
    return total / len(window)
