"""The answer machine: the course of one answer that two sides may write.

`AnswerMachine.step` receives an event and returns the effects that the driver must carry out, in order. The machine is
`web/src/shared/router/answer_machine.ts`, which says its rules, with the watch of near's tokens beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from nearfar.compiler.shared.script import SharedScript

from ...schema.route import Side
from .events import Effect, EscalationReason, Event, TimerName, effect_of_json, event_json

if TYPE_CHECKING:
    from ..decision.policy import Escalation

Phase = Literal["choosing", "running", "switching", "done", "failed", "aborted"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The policy's rules for an answer, and facts about the request. Times are in milliseconds.

    ``then``: the effect of an escalation. ``warm``: when far computes the prompt of an answer that may be handed over
    to it. ``retries``: the number of further attempts of a side before its first token. ``private``: far gets no
    request. ``resumes``: the sides that can continue a given text; any other side starts over, and the text shown so
    far is withdrawn.
    """

    then: Literal["never", "continue", "restart"] = "never"
    warm: Literal["never", "doubt", "always"] = "never"
    near_continues: bool = True
    far_takes_over: bool = True
    near_first_token_ms: int = 20_000
    far_first_token_ms: int = 20_000
    between_tokens_ms: int = 20_000
    hedge_after_ms: int | None = None
    retries: int = 1
    private: bool = False
    resumes: tuple[Side, ...] = ("near", "far")


class WatchedToken(NamedTuple):
    """A token of near's answer. ``alternatives``: the logprobs of the most likely tokens. None: not known."""

    text: str
    logprob: float | None = None
    alternatives: Sequence[float] | None = None


class AnswerMachine:
    """``side`` writes, or is the first to be asked; with ``reason`` and ``switched_at`` it is the answer's route.

    ``watched``: the rules of the watch; without them, near's answer never escalates. ``doubts``: a token has made an
    escalation likely. Used in one thread, and closed after the answer.
    """

    def __init__(self, rules: Rules, watched: Escalation | None = None) -> None:
        self.rules, self.watched = rules, watched
        self.phase: Phase = "choosing"
        self.side: Side | None = None
        self.reason = ""
        self.switched_at: int | None = None
        self.doubts = False
        self._script = SharedScript.of_thread()
        self._id: int = self._script.ask("openAnswer", asdict(rules), None if watched is None else watched.model_dump())

    def step(self, event: Event) -> tuple[Effect, ...]:
        """The effects of an event: none after the end, or for an event of an attempt that no longer runs."""
        answer = self._script.ask("stepAnswer", self._id, event_json(event))
        self.phase, self.side = answer["phase"], answer["side"]
        self.reason, self.switched_at = answer["reason"], answer["switched_at"]
        return tuple(map(effect_of_json, answer["effects"]))

    def watch(self, tokens: Sequence[WatchedToken]) -> EscalationReason | None:
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
        reason: EscalationReason | None = answer["reason"]
        return reason

    def timed_side(self, timer: TimerName) -> Side | None:
        """The side that a timer waits for; None for the hedge timer."""
        sides: dict[TimerName, Side | None] = {"near_first_token": "near", "far_first_token": "far"}
        return self.side if timer == "between_tokens" else sides.get(timer)

    def close(self) -> None:
        self._script.ask("closeAnswer", self._id)


def finite(logprob: float) -> float:
    """JSON does not have minus infinity, the log-probability of an impossible token."""
    return max(logprob, -1e300)
