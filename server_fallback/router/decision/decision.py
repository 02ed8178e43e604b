"""A decision: who answers, and why. Every answer carries it as its route (`schema/route.py`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

from ...schema.route import Side

# Why a side, or the last remaining side, cannot answer.
Lack = Literal[
    "private", "mode", "near_unavailable", "offline", "circuit_open", "context", "tools", "vision", "language", "budget"
]
PinnedLack = Literal[
    "pinned_mode",
    "pinned_near_unavailable",
    "pinned_offline",
    "pinned_circuit_open",
    "pinned_context",
    "pinned_tools",
    "pinned_vision",
    "pinned_language",
    "pinned_budget",
]
DecisionReason = Lack | PinnedLack | Literal["pinned", "prefer", "battery", "thermal", "seconds", "quality", "cost"]


@dataclass(frozen=True, slots=True)
class Scores:
    """The expectations for both sides; None for unknown ones.

    ``*_right`` are probabilities. ``gain`` is how much more far's answer is worth than near's, in the unit of the
    policy's threshold.
    """

    near_right: float | None = None
    far_right: float | None = None
    gain: float | None = None
    near_first_token_seconds: float | None = None
    near_total_seconds: float | None = None
    far_first_token_seconds: float | None = None
    far_total_seconds: float | None = None
    far_usd: float | None = None

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Decision:
    """``side`` is None if no side may or can answer; ``reason`` then says what ruled out the last side.

    A private request is answered by near or not at all.
    """

    side: Side | None
    reason: DecisionReason
    private: bool
    scores: Scores = field(default_factory=Scores)

    def to_json(self) -> dict[str, object]:
        return {"side": self.side, "reason": self.reason, "private": self.private, "scores": self.scores.to_json()}
