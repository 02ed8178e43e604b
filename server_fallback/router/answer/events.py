"""The events of one answer, and the effects that its driver must carry out: the input and output of
`AnswerMachine.step`.

Both are data. Their JSON form is an object of their fields and a ``type`` (`web/src/shared/router/events.ts`). A side
is "near" or "far". ``attempt`` counts the attempts of that side in this answer from 1, to distinguish late output of a
cancelled or failed attempt from output of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...schema.route import Side

EscalationReason = Literal["escalated_logprob", "escalated_entropy", "escalated_repetition", "escalated_schema"]
# Why another side writes than the one that was chosen.
SwitchReason = Literal[EscalationReason, "near_failed", "far_failed", "near_late", "near_timeout", "far_timeout"]
TimerName = Literal["near_first_token", "far_first_token", "between_tokens", "hedge"]
# connection: no connection, or it broke. overloaded: 429 or 503. server: another 5xx, or a response that is not in
# OpenAI's form. unauthorized: 401 or 403. request: the side rejects the request as wrong (another 4xx). device: lost,
# or out of memory.
FailureKind = Literal["connection", "overloaded", "server", "unauthorized", "request", "device"]


@dataclass(frozen=True, slots=True)
class Start:
    """The decision. ``side`` is None if no side may or can answer. ``standby``: the other side may be asked too if
    necessary.

    ``standby`` is true if no hard rule forbids the other side: the request is not pinned, and with a pin to the other
    side the decision would be that side.
    """

    side: Side | None
    reason: str
    standby: bool


@dataclass(frozen=True, slots=True)
class Token:
    """A token arrived. A chunk with only a role is not a token. ``text`` is "" while a character is incomplete.

    ``tool_call``: it contains part of a tool call. ``reasoning``: it contains part of the reasoning, which is not in
    ``text``.
    """

    side: Side
    attempt: int
    text: str
    tool_call: bool = False
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The side has finished its answer."""

    side: Side
    attempt: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The side failed and sends nothing more.

    ``retryable``: the same request may succeed if it is sent again (no connection, 429, 503).
    """

    side: Side
    attempt: int
    kind: FailureKind
    retryable: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer that an effect started is due. A timer that was cancelled or restarted since sends no tick."""

    timer: TimerName


@dataclass(frozen=True, slots=True)
class Escalate:
    """The near answer goes wrong (see `AnswerMachine.watch`)."""

    reason: EscalationReason


@dataclass(frozen=True, slots=True)
class Doubt:
    """The near answer begins to go wrong (see `AnswerMachine.doubts`)."""


@dataclass(frozen=True, slots=True)
class Abort:
    """The client has left."""


Event = Start | Token | End | Failed | Tick | Escalate | Doubt | Abort


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the request to a side. ``continue_from``: the side continues this text, which counts towards ``max_tokens``;
    None: it starts from the beginning.

    If the side asks to wait (Retry-After), a second attempt may wait for as long as the timer of its first token runs.
    """

    side: Side
    continue_from: str | None
    attempt: int


@dataclass(frozen=True, slots=True)
class Warm:
    """Let far compute the prompt, and show nothing.

    This is not an attempt: nothing waits for it, and its failure is not an event.
    """


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the last attempt of the side. Ignore what it still sends."""

    side: Side


@dataclass(frozen=True, slots=True)
class Emit:
    """Show the token of this event.

    The effect belongs to that event alone, so the driver also passes on the event's other content.
    """

    side: Side
    text: str
    tool_call: bool


@dataclass(frozen=True, slots=True)
class Withdraw:
    """All text shown so far is withdrawn, and the answer starts over. A switch follows."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Another side writes from now on.

    ``at``: the number of characters (code points) shown before; None if nothing had been shown.
    """

    side: Side
    reason: SwitchReason
    at: int | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete. ``side``, ``reason`` and ``switched_at`` are its route."""

    finish_reason: str
    side: Side
    reason: str
    switched_at: int | None


@dataclass(frozen=True, slots=True)
class Fail:
    """The answer failed.

    ``side``: the side whose failure, the last one, is the error; None: no side could be asked, and ``reason`` says why.
    """

    side: Side | None
    kind: FailureKind | Literal["timeout", "unavailable"]
    reason: str


@dataclass(frozen=True, slots=True)
class Timer:
    """Send a `Tick` after ``ms`` milliseconds. If a timer of that name is running, it restarts."""

    name: TimerName
    ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    name: TimerName


@dataclass(frozen=True, slots=True)
class CircuitOutcome:
    """Report the outcome to the side's circuit.

    A side that was cancelled, is overloaded or rejects the request reveals nothing about its health.
    """

    side: Side
    outcome: Literal["succeeded", "failed"]


Effect = Ask | Warm | Cancel | Emit | Withdraw | Switch | Finish | Fail | Timer | CancelTimer | CircuitOutcome

EVENTS: Mapping[type[Event], str] = {
    Start: "start",
    Token: "token",
    End: "end",
    Failed: "failed",
    Tick: "tick",
    Escalate: "escalate",
    Doubt: "doubt",
    Abort: "abort",
}
EFFECTS: Mapping[str, type[Effect]] = {
    "ask": Ask,
    "warm": Warm,
    "cancel": Cancel,
    "emit": Emit,
    "withdraw": Withdraw,
    "switch": Switch,
    "finish": Finish,
    "fail": Fail,
    "timer": Timer,
    "cancel_timer": CancelTimer,
    "circuit": CircuitOutcome,
}


def event_json(event: Event) -> dict[str, Any]:
    return {"type": EVENTS[type(event)], **asdict(event)}


def effect_of_json(value: Mapping[str, Any]) -> Effect:
    return EFFECTS[value["type"]](**{name: field for name, field in value.items() if name != "type"})
