"""A situation: all that a decision depends on, measured before it. What flows in are facts of the request, of both sides and of the device.

Numbers that are not known are None, and nothing is decided on them. Drivers make situations; `Situation.from_json` reads one as strictly
as a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from nearfar.compiler.errors import RequestError

from ...schema.route import Side

# "half-open": one request is let through; who asks for a second one meanwhile says "open".
CircuitState = Literal["closed", "open", "half-open"]
Thermal = Literal["nominal", "fair", "serious", "critical"]

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Message:
    """``content`` is all of its text, the parts joined by nothing. ``parts`` are these if there are several, otherwise ()."""

    __pydantic_config__ = _STRICT

    role: str
    content: str
    labels: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SideState:
    """What is told of either side. ``context`` in tokens, None for no limit known; ``languages`` as BCP 47's first part ("en"), None for
    all."""

    __pydantic_config__ = _STRICT

    context: int | None = None
    tools: bool = True
    vision: bool = False
    languages: tuple[str, ...] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    queue_seconds: float = 0.0
    circuit: CircuitState = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NearState(SideState):
    """``battery`` from 0 to 1."""

    available: bool
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
class NearSignals:
    """What the near model itself says of the prompt: the mean log-probability of its tokens, and of its own first up to 4 answer tokens
    the mean log-probability and the mean entropy; in nats."""

    __pydantic_config__ = _STRICT

    prompt_mean_logprob: float | None = None
    first_entropy: float | None = None
    first_mean_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """``texts`` is every other text that would leave with the request: arguments of tool calls, tool definitions, schemas, stop strings,
    names.

    ``tools`` and ``vision`` tell what the request needs.
    """

    __pydantic_config__ = _STRICT

    messages: tuple[Message, ...]
    near: NearState
    far: FarState
    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    pin: Side | None = None
    max_tokens: int | None = None
    tools: bool = False
    vision: bool = False
    language: str | None = None
    near_signals: NearSignals | None = None

    @classmethod
    def from_json(cls, text: str | bytes) -> Situation:
        """Raises RequestError for a key that is not known, or a value of another type."""
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise RequestError(
                f"the situation's {place or 'JSON'}: {first['msg']}", code="bad_situation", param=place
            ) from None


@cache
def _adapter() -> TypeAdapter[Situation]:
    return TypeAdapter(Situation)
