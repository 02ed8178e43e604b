"""The answer machine with any order of events, including late ones: always exactly one answer or one error."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nearfar.server_fallback.router.answer.answer_machine import AnswerMachine, Rules
from nearfar.server_fallback.router.answer.events import (
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
    Finish,
    Start,
    Switch,
    Tick,
    Timer,
    TimerName,
    Token,
    Warm,
    Withdraw,
)
from nearfar.server_fallback.schema.route import Side

# Mostly rules with which an answer continues, because one that fails at once tests little.
MOSTLY = st.sampled_from([True, True, True, False])
RULES = st.builds(
    Rules,
    then=st.sampled_from(["continue", "restart", "never"]),
    warm=st.sampled_from(["doubt", "always", "never"]),
    near_continues=MOSTLY,
    far_takes_over=MOSTLY,
    hedge_after_ms=st.sampled_from([100, None]),
    retries=st.sampled_from([2, 1, 0]),
    private=MOSTLY.map(lambda mostly: not mostly),
    resumes=st.sampled_from([("near", "far"), ("near",), ("far",), ()]),
)
# The attempt of an event: any attempt so far, the last one first.
ASK = st.sampled_from([0, 0, 0, 1, 2, 4])


@dataclass
class Tracked:
    side: Side
    attempt: int
    live: bool = True
    started: bool = False
    # The text that it continues, and the text that it has sent since.
    answer: str = ""


class AnswerMachineTest(RuleBasedStateMachine):
    """A driver that tracks the answer from the effects alone."""

    @initialize(rules=RULES, side=st.sampled_from(["near", "far"]), standby=MOSTLY)
    def start(self, rules: Rules, side: Side, standby: bool) -> None:
        self.given, self.decided, self.standby = rules, side, standby
        self.machine = AnswerMachine(rules)
        self.asks: list[Tracked] = []
        self.timers: set[TimerName] = set()
        self.switches: list[Switch] = []
        self.shown, self.tool_calls, self.withdrawn = "", False, False
        self.ends: list[Effect] = []
        self.aborted, self.warmed = False, False
        self.send(Start(side, "prefer", standby))

    @rule(text=st.sampled_from(["", "a", "é👍"]))
    def token_of_the_last(self, text: str) -> None:
        self.token(0, text, False)

    @rule(ask=ASK, text=st.sampled_from(["", "a", "é👍"]), tool_call=st.sampled_from([False, False, False, True]))
    def token(self, ask: int, text: str, tool_call: bool) -> None:
        tracked = self.pick(ask)
        effects = self.send(Token(tracked.side, tracked.attempt, text, tool_call))
        is_shown = tracked.live and not self.over_before
        shows = is_shown and (text != "" or tool_call)
        assert [effect for effect in effects if isinstance(effect, Emit)] == (
            [Emit(tracked.side, text, tool_call)] if shows else []
        )
        if is_shown:
            # This side writes now, and no other one.
            assert [each for each in self.asks if each.live] == [tracked]

    # Rarely, because little can follow an early end.
    @precondition(lambda self: len(self.asks) > 1)
    @rule(ask=ASK)
    def end(self, ask: int) -> None:
        tracked = self.pick(ask)
        was_live, tracked.live = tracked.live, False
        self.send(End(tracked.side, tracked.attempt, "stop"))
        assert not was_live or self.over

    @rule(ask=ASK, kind=st.sampled_from(["connection", "overloaded", "server", "device", "request"]), retryable=MOSTLY)
    def failed(self, ask: int, kind: str, retryable: bool) -> None:
        tracked = self.pick(ask)
        was_live, tracked.live = tracked.live, False
        effects = self.send(Failed(tracked.side, tracked.attempt, kind, retryable))  # type: ignore[arg-type]
        again = [effect for effect in effects if isinstance(effect, Ask) and effect.side == tracked.side]
        assert not again or (was_live and retryable and kind != "request" and not tracked.started)

    @precondition(lambda self: self.timers)
    @rule(index=st.integers(0, 2))
    def tick(self, index: int) -> None:
        # "hedge" comes before the first tokens.
        timers = sorted(self.timers, key=lambda name: (name != "hedge", name))
        self.fire(timers[index % len(timers)])

    @rule(reason=st.sampled_from(["escalated_logprob", "escalated_schema"]))
    def escalate(self, reason: str) -> None:
        writing = [tracked.side for tracked in self.asks if tracked.live and tracked.started]
        effects = self.send(Escalate(reason))  # type: ignore[arg-type]
        assert not effects or (writing == ["near"] and self.given.then != "never")

    @rule()
    def doubt(self) -> None:
        writing = [tracked.side for tracked in self.asks if tracked.live and tracked.started]
        effects = self.send(Doubt())
        assert not effects or (effects == (Warm(),) and writing == ["near"] and self.given.warm == "doubt")

    @precondition(lambda self: len(self.asks) > 2)
    @rule()
    def abort(self) -> None:
        effects = self.send(Abort())
        self.aborted = True
        assert all(isinstance(effect, Cancel | CancelTimer) for effect in effects)
        assert not self.timers
        assert not any(tracked.live for tracked in self.asks)

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        # If no side sends anything more, the timers end the answer.
        for _ in range(20):
            if self.timers:
                self.fire(min(self.timers))
        self.machine.close()
        assert self.aborted or len(self.ends) == 1

    # The driver's own checks.

    @property
    def over(self) -> bool:
        return self.aborted or len(self.ends) > 0

    def pick(self, ask: int) -> Tracked:
        # If the decision was far, no side gets a private request.
        return self.asks[-1 - ask % len(self.asks)] if self.asks else Tracked("far", 1, live=False)

    def fire(self, timer: TimerName) -> None:
        self.timers.remove(timer)
        self.send(Tick(timer))

    def send(self, event: Event) -> tuple[Effect, ...]:
        self.over_before = self.over
        effects = self.machine.step(event)
        assert not (self.over_before and effects)
        for effect in effects:
            assert not self.ends, "after the end comes nothing"
            self.act(effect)
        if isinstance(event, Token) and not self.over_before:
            for tracked in self.asks:
                tracked.started = tracked.started or (
                    tracked.live and (tracked.side, tracked.attempt) == (event.side, event.attempt)
                )
        live = {tracked.side for tracked in self.asks if tracked.live}
        if self.over or isinstance(event, Abort):
            assert not live
            assert not self.timers
        else:
            assert live, "a side is asked until the end"
            for tracked in self.asks:
                # Every running attempt has a timer, so nothing waits forever.
                assert (
                    not tracked.live
                    or ("between_tokens" if tracked.started else f"{tracked.side}_first_token") in self.timers
                )
        return effects

    def act(self, effect: Effect) -> None:
        match effect:
            case Ask(side, continue_from, attempt):
                before = [tracked for tracked in self.asks if tracked.side == side]
                assert attempt == len(before) + 1
                assert not any(tracked.live for tracked in before)
                assert not (side == "far" and self.given.private)
                assert side == self.decided or (self.standby and not self.given.private)
                assert not self.tool_calls, "a tool would be called twice"
                # The client may have to pay for the beginning of far's answer.
                assert side == "near" or not any(tracked.started for tracked in before)
                # The maximum number of tries for the first part, and for a part that a side resumes or takes over.
                assert attempt <= 2 * (self.given.retries + 1)
                assert continue_from in (None, self.shown)
                assert continue_from is None or side in self.given.resumes
                self.asks.append(Tracked(side, attempt, answer=continue_from or ""))
            case Warm():
                assert not self.warmed
                assert self.standby
                assert not self.given.private
                assert not self.tool_calls
                assert "never" not in (self.given.then, self.given.warm)
                # Far has computed the prompt.
                assert all(tracked.side == "near" for tracked in self.asks)
                self.warmed = True
            case Cancel(side):
                [tracked] = [tracked for tracked in self.asks if tracked.side == side and tracked.live]
                tracked.live = False
            case Emit(side, text, tool_call):
                assert side == (self.switches[-1].side if self.switches else self.decided)
                self.withdrawn = False
                # The text shown is the text that the writing side knows.
                [tracked] = [tracked for tracked in self.asks if tracked.live]
                assert tracked.answer == self.shown
                self.shown += text
                tracked.answer = self.shown
                self.tool_calls = self.tool_calls or tool_call
            case Withdraw():
                assert self.shown
                self.shown, self.withdrawn = "", True
            case Switch(side, _, at):
                assert not self.tool_calls
                assert all(switch.side != side for switch in self.switches)
                assert at == (0 if self.withdrawn else len(self.shown) or None)
                self.switches.append(effect)
            case Finish(_, side, reason, switched_at):
                last = self.switches[-1] if self.switches else Switch(self.decided, "prefer", None)  # type: ignore[arg-type]
                assert (side, reason, switched_at) == (last.side, last.reason, last.at)
                self.ends.append(effect)
            case Fail():
                self.ends.append(effect)
            case Timer(name):
                self.timers.add(name)
            case CancelTimer(name):
                self.timers.remove(name)
            case CircuitOutcome():
                pass


TestAnswerMachine = AnswerMachineTest.TestCase
TestAnswerMachine.settings = settings(max_examples=300, stateful_step_count=20, deadline=None)
