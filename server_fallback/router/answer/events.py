"""What happens to one answer, and what its driver is to do: events flow into `answer_machine.step`, effects flow out.

Both are data. Their JSON form is an object of their fields with a ``type``, the same in both languages: it is what
tests/conformance/router_traces.json is written in. A side is "near" or "far"; ``attempt`` counts what was asked of that side in this
answer, from 1, so that what a cancelled or failed attempt says late is told apart from what the next one says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...schema.route import Side

EscalationReason = Literal["escalated_logprob", "escalated_entropy", "escalated_repetition", "escalated_schema"]
# Why another side writes than the one that was decided for.
SwitchReason = Literal[EscalationReason, "near_failed", "far_failed", "near_late", "near_timeout", "far_timeout"]
TimerName = Literal["near_first_token", "far_first_token", "between_tokens", "hedge"]
# connection: none, or it broke. overloaded: 429 or 503. server: it answers with another 5xx, or with nonsense. unauthorized: 401 or 403.
# request: it says that the request is at fault (another 4xx). device: lost, or out of memory.
FailureKind = Literal["connection", "overloaded", "server", "unauthorized", "request", "device"]


@dataclass(frozen=True, slots=True)
class Start:
    """The decision. ``side`` None: nobody may or can. ``standby``: the other side may be asked too, should it come to that.

    ``standby`` holds where no hard rule forbids the other side: the request is not pinned, and with a pin to the other side the decision
    would be that side.
    """

    side: Side | None
    reason: str
    standby: bool


@dataclass(frozen=True, slots=True)
class Token:
    """A token came (a chunk with a role alone is none). ``text`` is "" while a character is incomplete.

    ``tool_call``: a part of a tool call is in it. ``reasoning``: a part of the reasoning is, which ``text`` does not hold.
    """

    side: Side
    attempt: int
    text: str
    tool_call: bool = False
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The side has answered."""

    side: Side
    attempt: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The side says nothing more. ``retryable``: to ask the same again may help (no connection, 429, 503)."""

    side: Side
    attempt: int
    kind: FailureKind
    retryable: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer is due that an effect asked for. Not sent for one that was cancelled or started anew since."""

    timer: TimerName


@dataclass(frozen=True, slots=True)
class Escalate:
    """The near answer goes astray (see `watch.Watch`)."""

    reason: EscalationReason


@dataclass(frozen=True, slots=True)
class Doubt:
    """The near answer begins to go astray (see `watch.Watch.doubts`)."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Whoever asked has left."""


Event = Start | Token | End | Failed | Tick | Escalate | Doubt | Abort


@dataclass(frozen=True, slots=True)
class Ask:
    """Send the request to a side. ``continue_from``: it goes on from this text, which counts towards ``max_tokens``; None: from the start.

    Where the side asks for patience (Retry-After), a second attempt may wait for as long as the timer of its first token lasts.
    """

    side: Side
    continue_from: str | None
    attempt: int


@dataclass(frozen=True, slots=True)
class Warm:
    """Let far compute the prompt, and show nothing. It is no attempt: nothing waits for it, and that it fails is no event."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop what was asked of the side last. What it still says is ignored."""

    side: Side


@dataclass(frozen=True, slots=True)
class Emit:
    """Show the token of this event. It is an effect of that event alone, so the driver passes on what else came with it."""

    side: Side
    text: str
    tool_call: bool


@dataclass(frozen=True, slots=True)
class Withdraw:
    """All the text that was shown no longer holds; what follows starts anew. The switch follows."""


@dataclass(frozen=True, slots=True)
class Switch:
    """From now on another side writes. ``at``: characters (code points) that stand before; None where nothing had been shown."""

    side: Side
    reason: SwitchReason
    at: int | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is whole. ``side``, ``reason`` and ``switched_at`` are its route."""

    finish_reason: str
    side: Side
    reason: str
    switched_at: int | None


@dataclass(frozen=True, slots=True)
class Fail:
    """There is no answer. ``side``: whose failure is the error, the last one; None: no side was to be asked (``reason`` says why)."""

    side: Side | None
    kind: FailureKind | Literal["timeout", "unavailable"]
    reason: str


@dataclass(frozen=True, slots=True)
class Timer:
    """Send a `Tick` in so many milliseconds. A timer of that name that still runs starts anew."""

    name: TimerName
    ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    name: TimerName


@dataclass(frozen=True, slots=True)
class CircuitOutcome:
    """Tell the side's circuit how it went. A side that was cancelled, is overloaded or blames the request says nothing about its health."""

    side: Side
    outcome: Literal["succeeded", "failed"]


Effect = Ask | Warm | Cancel | Emit | Withdraw | Switch | Finish | Fail | Timer | CancelTimer | CircuitOutcome

EVENTS: Mapping[str, type[Event]] = {
    "start": Start,
    "token": Token,
    "end": End,
    "failed": Failed,
    "tick": Tick,
    "escalate": Escalate,
    "doubt": Doubt,
    "abort": Abort,
}
EFFECTS: Mapping[type[Effect], str] = {
    Ask: "ask",
    Warm: "warm",
    Cancel: "cancel",
    Emit: "emit",
    Withdraw: "withdraw",
    Switch: "switch",
    Finish: "finish",
    Fail: "fail",
    Timer: "timer",
    CancelTimer: "cancel_timer",
    CircuitOutcome: "circuit",
}


def event_of_json(value: Mapping[str, Any]) -> Event:
    """Raises KeyError for a type that is none, and TypeError for fields that are not those of its type."""
    return EVENTS[value["type"]](**{name: field for name, field in value.items() if name != "type"})


def effect_json(effect: Effect) -> dict[str, Any]:
    return {"type": EFFECTS[type(effect)], **asdict(effect)}
