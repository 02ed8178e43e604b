"""The answer machine: the course of one answer that two sides may write.

`begin(rules)` is the first state. `step(state, event)` returns the next state and the effects that the driver must
carry out, in order. The machine is pure: it receives events and knows nothing about time, HTTP or devices.
web/src/router/answer/answer_machine.ts is the same machine, and tests/conformance/router_traces.json requires the same
effects of both.

choosing --first token--> running --another side is asked--> switching --its first token--> running --> done
    |                        |                                   |                             |
    +------------------------+------------- failed / aborted ----+-----------------------------+

These rules always hold:
- There is one finish or one fail, and nothing after it. After an abort there is neither.
- Only the side that writes is shown. If two sides were asked at once (hedging), the one with the first token writes.
- A side is asked again only before its first token, and never for a request that it rejects. A side that failed for
  good is not asked again. Once far writes, it stops only by failing, so each side is switched to at most once.
- Far computes the prompt ahead (warm) at most once, before it is asked, and never for a private request.
- After part of a tool call was shown, there is no switch: the tool would be called twice.
- No side continues another side's unfinished reasoning: what was shown is withdrawn.
- The text shown remains until another side's first token, so an escalation to a far side that fails loses no text.
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
HEALTH_NEUTRAL = frozenset(("overloaded", "request"))


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


@dataclass(frozen=True, slots=True)
class SideStatus:
    """The status of one side in this answer.

    ``attempts``: all attempts. ``tries``: the attempts at the part that the side was last asked for. ``live``: the last
    attempt may still send tokens. ``started``: the last attempt has sent a token. ``failed``: the side failed for good.
    """

    attempts: int = 0
    tries: int = 0
    live: bool = False
    started: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """``side`` writes, or is the first to be asked; with ``reason`` and ``switched_at`` it is the answer's route.
    ``text`` is the text shown so far.

    ``reasoning``: part of the reasoning is shown too. ``next_reason``: why a side other than ``side`` would write.
    ``restart``: that side starts over. ``warmed``: far was already asked to compute the prompt.
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
    near: SideStatus = field(default_factory=SideStatus)
    far: SideStatus = field(default_factory=SideStatus)
    next_reason: SwitchReason | None = None
    restart: bool = False
    warmed: bool = False
    timers: tuple[TimerName, ...] = ()


def begin(rules: Rules) -> State:
    return State(rules)


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Return the state after an event and the effects to carry out.

    There are no effects after the end of the answer, or for an event of an attempt that no longer runs.
    """
    effects: list[Effect] = []
    if state.phase not in ENDED:
        state = _after(state, event, effects)
    return state, tuple(effects)


def timed_side(timer: TimerName, state: State) -> Side | None:
    """The side that a timer waits for; None for the hedge timer."""
    return {"near_first_token": "near", "far_first_token": "far", "between_tokens": state.side}.get(timer)


# Each of these functions returns the next state and appends to ``effects``.


def _after(state: State, event: Event, effects: list[Effect]) -> State:
    match event:
        case Start():
            return _start(state, event, effects) if state.side is None else state
        case Token() | End() | Failed():
            status = _status(state, event.side)
            if not status.live or status.attempts != event.attempt:
                return state
            return _side_event(state, event, effects)
        case Tick(timer):
            return _tick(state, timer, effects) if timer in state.timers else state
        case Escalate():
            return _escalate(state, event, effects)
        case Doubt():
            near_writes = state.phase == "running" and state.side == "near"
            return _warm(state, effects) if near_writes and state.rules.warm == "doubt" else state
        case Abort():
            return replace(_stop_all(state, effects), phase="aborted")


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


def _side_event(state: State, event: Token | End | Failed, effects: list[Effect]) -> State:
    match event:
        case Token(side, _, text, tool_call, reasoning):
            if not _status(state, side).started:
                state = _begin_writing(state, side, effects)
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
            if not _status(state, side).started:
                state = _begin_writing(state, side, effects)
            state = _stop_all(_with(state, side, replace(_status(state, side), live=False)), effects)
            effects.append(CircuitOutcome(side, "succeeded"))
            effects.append(Finish(finish_reason, side, state.reason, state.switched_at))
            return replace(state, phase="done")
        case Failed(side, _, kind, retryable):
            return _failed(
                state, side, kind, "near_failed" if side == "near" else "far_failed", effects, retryable=retryable
            )


def _begin_writing(state: State, side: Side, effects: list[Effect]) -> State:
    """The side sends its first token since it was asked: from now on only this side writes."""
    other = _other(side)
    if _status(state, other).live:
        state = _cancel(state, other, effects)
    state = _stop_timer(_stop_timer(state, _first_token_timer(side), effects), "hedge", effects)
    # A side that resumes its own answer changes nothing before its first token. If nothing was shown, there is nothing
    # to withdraw.
    withdraws = state.restart and (state.text != "" or state.reasoning)
    if withdraws:
        effects.append(Withdraw())
    if withdraws or side != state.side:
        assert state.next_reason is not None
        # If no text is shown, either none was shown before, or an earlier switch withdrew it.
        at = 0 if withdraws else len(state.text) if state.text else state.switched_at
        effects.append(Switch(side, state.next_reason, at))
        text, reasoning = ("", False) if withdraws else (state.text, state.reasoning)
        state = replace(state, side=side, reason=state.next_reason, switched_at=at, text=text, reasoning=reasoning)
    state = _with(state, side, replace(_status(state, side), started=True))
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
    status, other = _status(state, side), _other(side)
    state = _stop_timer(state, _first_token_timer(side), effects)
    if status.started:
        state = _stop_timer(state, "between_tokens", effects)
    if kind not in HEALTH_NEUTRAL:
        effects.append(CircuitOutcome(side, "failed"))
    if retryable and kind != "request" and not status.started and status.tries <= state.rules.retries:
        return _ask(state, side, effects, tries=status.tries + 1)
    state = _with(state, side, replace(status, live=False, failed=True))
    if _status(state, other).live:
        # Both sides were asked: the other one goes on alone.
        return state if other == state.side else replace(state, next_reason=reason)
    # The client must see the error of a request that is wrong from the start. If one side accepted the request, its
    # answer matters more.
    blamed = kind == "request" and state.phase == "choosing"
    if not blamed and _may_take_over(state, other):
        return _switch(state, other, reason, effects, anew=False)
    state = _stop_all(state, effects)
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
    """Let far compute the prompt, if the answer may be handed over to it and it has not received the request yet."""
    if state.rules.then == "never" or state.warmed or state.far.attempts > 0 or not _may_switch(state, "far"):
        return state
    effects.append(Warm())
    return replace(state, warmed=True)


def _switch(state: State, to: Side, reason: SwitchReason, effects: list[Effect], *, anew: bool) -> State:
    """Ask the other side to write on. The text shown so far remains until that side sends a token."""
    state = _stop_timer(state, "hedge", effects)
    phase: Phase = "choosing" if state.phase == "choosing" else "switching"
    restart = anew or to not in state.rules.resumes or (state.reasoning and state.text == "")
    return _ask(replace(state, phase=phase, next_reason=reason, restart=restart), to, effects)


def _ask(state: State, side: Side, effects: list[Effect], *, tries: int = 1) -> State:
    attempt = _status(state, side).attempts + 1
    effects.append(Ask(side, None if state.restart or state.text == "" else state.text, attempt))
    state = _with(state, side, SideStatus(attempt, tries, live=True))
    ms = state.rules.near_first_token_ms if side == "near" else state.rules.far_first_token_ms
    return _set_timer(state, _first_token_timer(side), ms, effects)


def _cancel(state: State, side: Side, effects: list[Effect]) -> State:
    effects.append(Cancel(side))
    state = _stop_timer(state, _first_token_timer(side), effects)
    return _with(state, side, replace(_status(state, side), live=False))


def _stop_all(state: State, effects: list[Effect]) -> State:
    """Stop both sides and all timers."""
    for side in SIDES:
        if _status(state, side).live:
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
    return state.standby and not state.tool_calls and not _status(state, to).failed


def _may_take_over(state: State, to: Side) -> bool:
    """Whether a side may go on after the other one failed."""
    if to == "far":
        return state.rules.far_takes_over and _may_switch(state, "far")
    # Near was well when its answer was escalated, and no other side has shown anything since: near resumes its own
    # answer.
    return (state.rules.near_continues or state.side == "near") and _may_switch(state, "near")


def _other(side: Side) -> Side:
    return "far" if side == "near" else "near"


def _first_token_timer(side: Side) -> TimerName:
    return "near_first_token" if side == "near" else "far_first_token"


def _status(state: State, side: Side) -> SideStatus:
    return state.near if side == "near" else state.far


def _with(state: State, side: Side, status: SideStatus) -> State:
    return replace(state, near=status) if side == "near" else replace(state, far=status)
