"""The answer machine: what becomes of one answer that two sides may write.

`begin(rules)` is the first state; `step(state, event)` gives the next one and what the driver is to do, in order. Pure: it knows neither
time nor HTTP nor devices, only the events that it is told. web/src/router/answer/answer_machine.ts is the same machine, and
tests/conformance/router_traces.json holds both to the same effects.

choosing --first token--> running --another side is asked--> switching --its first token--> running --> done
    |                        |                                   |                             |
    +------------------------+------------- failed / aborted ----+-----------------------------+

What it keeps to, whatever happens:
- one finish or one fail, and nothing after; after an abort neither.
- Only the side that writes is shown. Of two that were asked at once (hedging) the first that speaks writes.
- A side is asked again only before its first token, and never for a request that it blames. A side that failed for good is asked no more.
  Far ends only by failing, once it writes, so each side is switched to once at most.
- Far computes the prompt ahead (warm) at most once, before it is asked, and for no private request.
- After a part of a tool call was shown nothing is switched: it would be called twice.
- In the middle of the reasoning no side goes on from another's: what was shown is withdrawn.
- Until another side's first token, what was shown stands, so an escalation to a far side that then fails costs no text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ...schema.route import Side
from .events import (
    Abort,
    Ask,
    Cancel,
    CancelTimer,
    CircuitOutcome,
    Doubt,
    Effect,
    Emit,
    End,
    Escalate,
    Event,
    Fail,
    Failed,
    FailureKind,
    Finish,
    Start,
    Switch,
    SwitchReason,
    Tick,
    Timer,
    TimerName,
    Token,
    Warm,
    Withdraw,
)

Phase = Literal["choosing", "running", "switching", "done", "failed", "aborted"]


SIDES: tuple[Side, ...] = ("near", "far")
ENDED: frozenset[Phase] = frozenset(("done", "failed", "aborted"))
SAYS_NOTHING_OF_HEALTH = frozenset(("overloaded", "request"))


@dataclass(frozen=True, slots=True)
class Rules:
    """What the policy says of a running answer, and what is known of the request. Times in milliseconds.

    ``then``: what an escalation does. ``warm``: when far computes the prompt of an answer that may go over to it. ``retries``: how often
    a side is asked again before its first token. ``private``: far is never asked.
    ``resumes``: the sides that can go on from given text; another starts anew, and what was shown is withdrawn.
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A side in this answer. ``attempts`` in all, ``tries`` of the part it was asked for last; ``live``: the last attempt may still speak.

    ``spoke``: the last attempt has. ``failed``: for good.
    """

    attempts: int = 0
    tries: int = 0
    live: bool = False
    spoke: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """``side`` writes, or is the first to be asked; ``reason`` and ``switched_at`` are the answer's route with it. ``text`` stands shown.

    ``reasoning``: a part of the reasoning stands shown too. ``next_reason``: why a side other than ``side`` would write; ``restart``: it
    starts anew. ``warmed``: far was to compute the prompt.
    """

    rules: Rules
    phase: Phase = "choosing"
    side: Side | None = None
    reason: str = ""
    switched_at: int | None = None
    text: str = ""
    tool_calls: bool = False
    reasoning: bool = False
    standby: bool = False
    near: Asked = field(default_factory=Asked)
    far: Asked = field(default_factory=Asked)
    next_reason: SwitchReason | None = None
    restart: bool = False
    warmed: bool = False
    timers: tuple[TimerName, ...] = ()


def begin(rules: Rules) -> State:
    return State(rules)


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """The state after an event, and what is to be done. Nothing, where a side speaks that runs no longer, or after the end."""
    effects: list[Effect] = []
    if state.phase not in ENDED:
        state = _after(state, event, effects)
    return state, tuple(effects)


def timed_side(timer: TimerName, state: State) -> Side | None:
    """The side that a timer waits for; the hedge's is None."""
    return {"near_first_token": "near", "far_first_token": "far", "between_tokens": state.side}.get(timer)


# Each of these gives the next state and adds what is to be done to ``effects``.


def _after(state: State, event: Event, effects: list[Effect]) -> State:
    match event:
        case Start():
            return _start(state, event, effects) if state.side is None else state
        case Token() | End() | Failed():
            asked = _asked(state, event.side)
            if not asked.live or asked.attempts != event.attempt:
                return state
            return _said(state, event, effects)
        case Tick(timer):
            return _tick(state, timer, effects) if timer in state.timers else state
        case Escalate():
            return _escalate(state, event, effects)
        case Doubt():
            near_writes = state.phase == "running" and state.side == "near"
            return _warm(state, effects) if near_writes and state.rules.warm == "doubt" else state
        case Abort():
            return replace(_silence(state, effects), phase="aborted")


def _start(state: State, event: Start, effects: list[Effect]) -> State:
    if event.side is None or (event.side == "far" and state.rules.private):
        effects.append(Fail(None, "unavailable", event.reason if event.side is None else "private"))
        return replace(state, phase="failed")
    state = _ask(replace(state, side=event.side, reason=event.reason, standby=event.standby), event.side, effects)
    if event.side == "near" and state.rules.warm == "always":
        state = _warm(state, effects)
    if event.side == "near" and state.rules.hedge_after_ms is not None and _may_switch(state, "far"):
        return _set_timer(state, "hedge", state.rules.hedge_after_ms, effects)
    return state


def _said(state: State, event: Token | End | Failed, effects: list[Effect]) -> State:
    match event:
        case Token(side, _, text, tool_call, reasoning):
            if not _asked(state, side).spoke:
                state = _writes(state, side, effects)
            if text or tool_call or reasoning:
                effects.append(Emit(side, text, tool_call))
            state = replace(
                state,
                text=state.text + text,
                tool_calls=state.tool_calls or tool_call,
                reasoning=state.reasoning or reasoning,
            )
            return _set_timer(state, "between_tokens", state.rules.between_tokens_ms, effects)
        case End(side, _, finish_reason):
            if not _asked(state, side).spoke:
                state = _writes(state, side, effects)
            state = _silence(_with(state, side, replace(_asked(state, side), live=False)), effects)
            effects.append(CircuitOutcome(side, "succeeded"))
            effects.append(Finish(finish_reason, side, state.reason, state.switched_at))
            return replace(state, phase="done")
        case Failed(side, _, kind, retryable):
            return _failed(
                state, side, kind, "near_failed" if side == "near" else "far_failed", effects, retryable=retryable
            )


def _writes(state: State, side: Side, effects: list[Effect]) -> State:
    """The side speaks for the first time since it was asked: from now on it alone writes."""
    other = _other(side)
    if _asked(state, other).live:
        state = _cancel(state, other, effects)
    state = _stop_timer(_stop_timer(state, _first_token_timer(side), effects), "hedge", effects)
    # Before its own first token a side that resumes its answer changes nothing; nor is there anything to withdraw where nothing was shown.
    withdraws = state.restart and (state.text != "" or state.reasoning)
    if withdraws:
        effects.append(Withdraw())
    if withdraws or side != state.side:
        assert state.next_reason is not None
        # Where no text stands, either none was shown, or the switch before withdrew it.
        at = 0 if withdraws else len(state.text) if state.text else state.switched_at
        effects.append(Switch(side, state.next_reason, at))
        text, reasoning = ("", False) if withdraws else (state.text, state.reasoning)
        state = replace(state, side=side, reason=state.next_reason, switched_at=at, text=text, reasoning=reasoning)
    state = _with(state, side, replace(_asked(state, side), spoke=True))
    return replace(state, phase="running", next_reason=None, restart=False)


def _failed(
    state: State,
    side: Side,
    kind: FailureKind | Literal["timeout"],
    reason: SwitchReason,
    effects: list[Effect],
    *,
    retryable: bool = False,
) -> State:
    asked, other = _asked(state, side), _other(side)
    state = _stop_timer(state, _first_token_timer(side), effects)
    if asked.spoke:
        state = _stop_timer(state, "between_tokens", effects)
    if kind not in SAYS_NOTHING_OF_HEALTH:
        effects.append(CircuitOutcome(side, "failed"))
    if retryable and kind != "request" and not asked.spoke and asked.tries <= state.rules.retries:
        return _ask(state, side, effects, tries=asked.tries + 1)
    state = _with(state, side, replace(asked, live=False, failed=True))
    if _asked(state, other).live:
        # Both were asked: the other goes on alone.
        return state if other == state.side else replace(state, next_reason=reason)
    # A request that is at fault from the start is the client's to see; where one side took it, that side's answer is worth more.
    blamed = kind == "request" and state.phase == "choosing"
    if not blamed and _may_take_over(state, other):
        return _switch(state, other, reason, effects, anew=False)
    state = _silence(state, effects)
    effects.append(Fail(side, kind, reason))
    return replace(state, phase="failed")


def _tick(state: State, timer: TimerName, effects: list[Effect]) -> State:
    state = replace(state, timers=tuple(name for name in state.timers if name != timer))
    if timer == "hedge":
        if not _may_switch(state, "far"):
            return state
        return _ask(replace(state, next_reason="near_late"), "far", effects)
    side = timed_side(timer, state)
    assert side is not None
    state = _cancel(state, side, effects)
    return _failed(state, side, "timeout", "near_timeout" if side == "near" else "far_timeout", effects)


def _escalate(state: State, event: Escalate, effects: list[Effect]) -> State:
    if state.phase != "running" or state.side != "near" or state.rules.then == "never" or not _may_switch(state, "far"):
        return state
    state = _stop_timer(_cancel(state, "near", effects), "between_tokens", effects)
    return _switch(state, "far", event.reason, effects, anew=state.rules.then == "restart")


def _warm(state: State, effects: list[Effect]) -> State:
    """Let far compute the prompt, where the answer may go over to it and it has not seen the request yet."""
    if state.rules.then == "never" or state.warmed or state.far.attempts > 0 or not _may_switch(state, "far"):
        return state
    effects.append(Warm())
    return replace(state, warmed=True)


def _switch(state: State, to: Side, reason: SwitchReason, effects: list[Effect], *, anew: bool) -> State:
    """Ask the other side to write on. What was shown stands until it does."""
    state = _stop_timer(state, "hedge", effects)
    phase: Phase = "choosing" if state.phase == "choosing" else "switching"
    restart = anew or to not in state.rules.resumes or (state.reasoning and state.text == "")
    return _ask(replace(state, phase=phase, next_reason=reason, restart=restart), to, effects)


def _ask(state: State, side: Side, effects: list[Effect], *, tries: int = 1) -> State:
    attempt = _asked(state, side).attempts + 1
    effects.append(Ask(side, None if state.restart or state.text == "" else state.text, attempt))
    state = _with(state, side, Asked(attempt, tries, live=True))
    ms = state.rules.near_first_token_ms if side == "near" else state.rules.far_first_token_ms
    return _set_timer(state, _first_token_timer(side), ms, effects)


def _cancel(state: State, side: Side, effects: list[Effect]) -> State:
    effects.append(Cancel(side))
    state = _stop_timer(state, _first_token_timer(side), effects)
    return _with(state, side, replace(_asked(state, side), live=False))


def _silence(state: State, effects: list[Effect]) -> State:
    """Nothing runs any more."""
    for side in SIDES:
        if _asked(state, side).live:
            state = _cancel(state, side, effects)
    for timer in state.timers:
        effects.append(CancelTimer(timer))
    return replace(state, timers=())


def _set_timer(state: State, name: TimerName, ms: int, effects: list[Effect]) -> State:
    effects.append(Timer(name, ms))
    return state if name in state.timers else replace(state, timers=(*state.timers, name))


def _stop_timer(state: State, name: TimerName, effects: list[Effect]) -> State:
    if name not in state.timers:
        return state
    effects.append(CancelTimer(name))
    return replace(state, timers=tuple(timer for timer in state.timers if timer != name))


def _may_switch(state: State, to: Side) -> bool:
    if to == "far" and state.rules.private:
        return False
    return state.standby and not state.tool_calls and not _asked(state, to).failed


def _may_take_over(state: State, to: Side) -> bool:
    """Whether a side goes on where the other failed."""
    if to == "far":
        return state.rules.far_takes_over and _may_switch(state, "far")
    # Near was well when it was escalated, and nothing was shown of another side since: it resumes its own answer.
    return (state.rules.near_continues or state.side == "near") and _may_switch(state, "near")


def _other(side: Side) -> Side:
    return "far" if side == "near" else "near"


def _first_token_timer(side: Side) -> TimerName:
    return "near_first_token" if side == "near" else "far_first_token"


def _asked(state: State, side: Side) -> Asked:
    return state.near if side == "near" else state.far


def _with(state: State, side: Side, asked: Asked) -> State:
    return replace(state, near=asked) if side == "near" else replace(state, far=asked)
