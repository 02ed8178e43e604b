"""What an agent reports: the events of a run, and what became of its steps and calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EndReason = Literal["answer", "steps", "seconds", "tokens", "repeated"]
CallOutcome = Literal["ran", "failed", "refused", "denied"]


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call that waits for approval. ``name`` is the tool's at its source, ``arguments`` the JSON that the model
    wrote, and ``values`` the same as values, which fit the tool's schema. ``leaves`` is word for word what would leave
    this machine, with placeholders for what a Hybrid's policy masks; None if nothing leaves, or without a Hybrid.
    ``private``: the policy calls the arguments private, and masks none of them; approved, they leave as they are.
    """

    name: str
    server: str | None
    description: str
    arguments: str
    values: Any
    leaves: str | None = None
    private: bool = False


@dataclass(frozen=True, slots=True)
class AgentCall:
    """What became of a call. ``text`` is what the model received, ``error`` what the tool raised, and ``left`` word for
    word what has left this machine, as in `AskedCall`.
    """

    name: str
    server: str | None
    arguments: str
    outcome: CallOutcome
    text: str
    error: Exception | None = None
    left: str | None = None


@dataclass(frozen=True, slots=True)
class AgentStep:
    """``stake`` has the step's weight, its doubt and their reasons. ``route`` is that of a Hybrid's answer, otherwise
    None; ``tokens`` is None if a server does not count them.
    """

    stake: Mapping[str, Any]
    route: Any
    tokens: int | None
    calls: list[AgentCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AgentResult:
    """``text`` and ``answer`` are None without an answer. A run can go on from ``messages``. ``tokens`` are those that
    the model has generated.
    """

    reason: EndReason
    text: str | None
    answer: Any
    steps: list[AgentStep]
    messages: list[dict[str, Any]]
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepBegan:
    """The model is asked."""

    step: int
    stake: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of what the model writes: of its answer, or of the arguments of ``tool``, by the name that the model
    knows.
    """

    step: int
    tool: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A Hybrid's other side begins the step again: its pieces until now do not count."""

    step: int


@dataclass(frozen=True, slots=True)
class Routed:
    """The model has answered."""

    step: int
    route: Any


@dataclass(frozen=True, slots=True)
class Calling:
    """A call begins, or waits for approval."""

    step: int
    name: str
    server: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call has run, or was refused."""

    step: int
    call: AgentCall


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a run."""

    result: AgentResult


AgentEvent = StepBegan | Text | Reasoning | Withdrawn | Routed | Calling | CallEnded | Ended
