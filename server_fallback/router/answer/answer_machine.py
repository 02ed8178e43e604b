"""The answer machine: the course of one answer that two sides may write.

`AnswerMachine.step` receives an event and returns the effects that the driver must carry out, in order. Both are
objects with a "type", which `web/src/shared/router/events.ts` lists. The machine is `answer_machine.ts` beside it,
which states its rules, with the watch of near's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nearfar.compiler.runtime.errors import NearfarError
from nearfar.compiler.shared.script import SharedScript

from ...schema.route import Side
from ..decision.policy import Escalation

Event = Mapping[str, Any]
Effect = Mapping[str, Any]
Phase = Literal["choosing", "running", "switching", "done", "failed", "aborted"]


class WatchedToken(NamedTuple):
    """A token of near's answer. ``alternatives``: the logprobs of the most likely tokens. None: not known."""

    text: str
    logprob: float | None = None
    alternatives: Sequence[float] | None = None


class Failure(NamedTuple):
    """What an error of a side means: its kind, whether the side may be asked again, and when."""

    kind: str
    retryable: bool
    wait_ms: float


class AnswerMachine:
    """``side`` writes, or is the first to be asked; with ``reason`` and ``switched_at`` it is the answer's route.

    ``rules`` are those of `Policy.answer_rules`. ``watched``: the rules of the watch; without them, near's answer never
    escalates, nor after ``max_tokens``. ``doubts``: a token has made an escalation likely. Used in one thread, and
    closed after the answer.
    """

    def __init__(
        self, rules: Mapping[str, Any], watched: Escalation | None = None, max_tokens: int | None = None
    ) -> None:
        self.watched = watched
        self.phase: Phase = "choosing"
        self.side: Side | None = None
        self.reason = ""
        self.switched_at: int | None = None
        self.doubts = False
        self._script = SharedScript.of_thread()
        watch = None if watched is None else {**watched.model_dump(), "max_tokens": max_tokens}
        self._id: int = self._script.ask("openAnswer", rules, watch)

    def step(self, event: Event) -> Sequence[Effect]:
        """The effects of an event: none after the end, or for an event of an attempt that no longer runs."""
        answer = self._script.ask("stepAnswer", self._id, event)
        self.phase, self.side = answer["phase"], answer["side"]
        self.reason, self.switched_at = answer["reason"], answer["switched_at"]
        effects: Sequence[Effect] = answer["effects"]
        return effects

    def watch(self, tokens: Sequence[WatchedToken]) -> str | None:
        """The reason to escalate after tokens of near's answer, if there is one."""
        written = [
            {
                "text": token.text,
                "logprob": None if token.logprob is None else finite(token.logprob),
                "alternatives": token.alternatives and [*map(finite, token.alternatives)],
            }
            for token in tokens
        ]
        answer = self._script.ask("watchAnswer", self._id, written)
        self.doubts = answer["doubts"]
        reason: str | None = answer["reason"]
        return reason

    def failure(self, side: Side, error: Mapping[str, Any], spread: float) -> Failure:
        """What a `side_error` means. ``spread``: a random number from 0 to 1."""
        return Failure(**self._script.ask("answerFailure", self._id, side, error, spread))

    def fail_error(self, fail: Effect) -> NearfarError:
        """The error of the effect "fail" for which no side reported one."""
        try:
            self._script.ask("failAnswer", self._id, fail)
        except NearfarError as error:
            return error
        raise AssertionError("an answer that failed has an error")

    def timed_side(self, timer: str) -> Side | None:
        """The side that a timer waits for; None for the hedge timer."""
        side: Side | None = self._script.ask("answerTimedSide", self._id, timer)
        return side

    def close(self) -> None:
        self._script.ask("closeAnswer", self._id)


def finite(logprob: float) -> float:
    """JSON does not have minus infinity, the log-probability of an impossible token."""
    return max(logprob, -1e300)
