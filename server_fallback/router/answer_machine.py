"""The answer machine: what becomes of one answer that two sides may write.

`begin(rules)` is the first state; `step(state, event)` gives the next one and what the driver is to do, in order. Pure: it knows neither time
nor HTTP nor devices, only the events that it is told. web/src/router/answer_machine.ts is the same machine, and
tests/conformance/router_traces.json holds both to the same effects.

choosing --first token--> running --another side is asked--> switching --its first token--> running --> done
    |                        |                                   |                             |
    +------------------------+------------- failed / aborted ----+-----------------------------+
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from .events import Effect, Event, Side, SwitchReason, TimerName

Phase = Literal["choosing", "running", "switching", "done", "failed", "aborted"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the policy says of a running answer, and what is known of the request. Times in milliseconds.

    ``then``: what an escalation does. ``retries``: how often a side is asked again before its first token. ``private``: far is never asked.
    ``resumes``: the sides that can go on from given text; another starts anew, and what was shown is withdrawn.
    """

    then: Literal["never", "continue", "restart"] = "never"
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

    ``switches``: the sides that were switched to. ``next_reason``: why a side other than ``side`` would write; ``restart``: it starts anew.
    """

    rules: Rules
    phase: Phase = "choosing"
    side: Side | None = None
    reason: str = ""
    switched_at: int | None = None
    text: str = ""
    tool_calls: bool = False
    standby: bool = False
    near: Asked = field(default_factory=Asked)
    far: Asked = field(default_factory=Asked)
    switches: tuple[Side, ...] = ()
    next_reason: SwitchReason | None = None
    restart: bool = False
    timers: tuple[TimerName, ...] = ()


def begin(rules: Rules) -> State:
    return State(rules)


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """The state after an event, and what is to be done. What a side says that no longer runs, and all that comes after the end, does nothing."""
    raise NotImplementedError
