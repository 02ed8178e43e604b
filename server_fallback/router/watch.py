"""The watch: whether a near answer goes astray, token by token.

Tokens flow in with what the model thought of them; the reason to escalate flows out, where there is one. web/src/router/watch.ts is the
same, and tests/conformance/router_traces.json holds both to the same reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .events import EscalationReason


@dataclass(frozen=True, slots=True)
class Repetition:
    tokens: int
    times: int


@dataclass(frozen=True, slots=True)
class WatchRules:
    """Under the policy's names. Windows are the last ``window_tokens`` tokens; logprobs and entropies (nats) are means over them.

    ``repetition``: the last ``tokens * times`` tokens are one piece of at most ``tokens`` tokens, over and over.
    """

    window_tokens: int = 8
    min_mean_logprob: float | None = None
    max_mean_entropy: float | None = None
    repetition: Repetition | None = None
    failing_schema: bool = True


class Watch:
    def __init__(self, rules: WatchRules) -> None:
        self.rules = rules

    def add(self, text: str, logprob: float | None = None, alternatives: Sequence[float] | None = None) -> EscalationReason | None:
        """A token of the answer: its text, its logprob, and the logprobs of the most likely tokens. None: not known, it is in no window."""
        raise NotImplementedError

    def schema_failed(self) -> EscalationReason | None:
        """The answer no longer fits its schema."""
        raise NotImplementedError
