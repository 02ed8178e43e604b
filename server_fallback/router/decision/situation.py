"""A situation: everything that a decision depends on, about the request, both sides and the device, measured before the
decision.

Unknown numbers are None, and no rule depends on them. `web/src/shared/decision/situation.ts` has the same in JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ...schema.route import Side

# "half-open": one request is let through; meanwhile the state for any other request is "open".
CircuitState = Literal["closed", "open", "half-open"]
MediaKind = Literal["picture", "video", "sound", "file", "text"]
Thermal = Literal["nominal", "fair", "serious", "critical"]

# The near model's own view of the prompt by the names of `near_signals.ts`, in nats.
NearSignals = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Message:
    """``content`` is all the text, its parts joined by nothing.

    ``parts`` are its texts in the order of the prompt if there are several, otherwise (): the name, the reasoning, the
    parts of the content, then the names and arguments of its calls.
    """

    role: str
    content: str
    labels: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Media:
    """A part of a message that is not text or was a file of text, or with None for both indices, bytes within a text;
    see `web/src/shared/decision/media.ts`.
    """

    kind: MediaKind
    message: int | None
    part: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideState:
    """The state of either side.

    ``context`` is in tokens, None if no limit is known; ``vision``, ``video`` and ``sound``: it reads pictures,
    videos, and sound in messages; ``languages`` are first parts of BCP 47 tags ("en"), None for all.
    """

    context: int | None = None
    tools: bool = True
    vision: bool = False
    video: bool = False
    sound: bool = False
    languages: tuple[str, ...] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    queue_seconds: float = 0.0
    circuit: CircuitState = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NearState(SideState):
    """``battery`` is from 0 to 1. ``describes``: the kinds of media that it can turn into texts."""

    available: bool
    describes: tuple[MediaKind, ...] = ()
    battery: float | None = None
    charging: bool | None = None
    thermal: Thermal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FarState(SideState):
    """``spent_usd_today`` and ``requests_today`` are of this UTC day; see `budget`."""

    online: bool
    round_trip_seconds: float | None = None
    spent_usd_today: float = 0.0
    requests_today: int = 0


@dataclass(frozen=True, slots=True)
class Stake:
    """See `web/src/shared/agent/stake.ts`."""

    weight: float
    doubt: float


@dataclass(frozen=True, slots=True)
class Situation:
    """``texts`` are all other texts that would leave the device with the request, as `private_texts` lists them. They
    meet no other text in the prompt; texts that meet only one another, such as a query and a document, are a tuple.

    ``tools``: whether the request needs them. ``media``: those of all messages. ``stake``: that of a step of an agent.
    ``embedding``: the vector of the last user message from the model that the policy's predictor names.
    """

    messages: tuple[Message, ...]
    near: NearState
    far: FarState
    labels: tuple[str, ...] = ()
    texts: tuple[str | tuple[str, ...], ...] = ()
    pin: Side | None = None
    max_tokens: int | None = None
    tools: bool = False
    media: tuple[Media, ...] = ()
    language: str | None = None
    stake: Stake | None = None
    near_signals: NearSignals | None = None
    embedding: tuple[float, ...] | None = None

    @property
    def last_user_text(self) -> str:
        """The text that a predictor reads; empty if there is no user message."""
        return next((message.content for message in reversed(self.messages) if message.role == "user"), "")

    def to_json(self) -> dict[str, Any]:
        """Without the texts in which only private patterns are searched. A number that is not finite is None."""
        messages = [{"role": each.role, "content": each.content, "labels": each.labels} for each in self.messages]
        vector = self.embedding and [value if math.isfinite(value) else None for value in self.embedding]
        return {
            **asdict(replace(self, messages=(), texts=(), embedding=None)),
            "messages": messages,
            "embedding": vector,
        }
