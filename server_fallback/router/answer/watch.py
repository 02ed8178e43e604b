"""The watch: whether a near answer goes astray, token by token.

Tokens flow in with what the model thought of them; the reason to escalate flows out, where there is one. web/src/router/answer/watch.ts is
the same, and tests/conformance/router_traces.json holds both to the same reasons.
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
    """By the policy's rules. Windows are the last ``window_tokens`` tokens; logprobs and entropies (nats) are means over them.

    ``doubts``: a token made it likely that a reason will come, half of what makes one over at least half a window. It stays so.
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
        """A token of the answer: its text, its logprob, and the logprobs of the most likely tokens. None: not known, it is in no window."""
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
        """The answer fits its schema no longer."""
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
    """Of the most likely tokens, in nats. What they leave of the probability counts as one more token."""
    total, rest = 0.0, 1.0
    for logprob in logprobs:
        probability = math.exp(logprob)
        # 0 log 0 is 0, also where the logprob is -inf.
        total -= probability * logprob if probability > 0 else 0.0
        rest -= probability
    return total - rest * math.log(rest) if rest > 0 else total


def mean(window: deque[float], at_least: int) -> float | None:
    """None of fewer tokens: a few say nothing."""
    if len(window) < at_least:
        return None
    total = 0.0
    # Not sum(), which compensates for rounding where JavaScript does not.
    for value in window:
        total += value
    return total / len(window)
