"""A situation: everything that a decision depends on, about the request, both sides and the device, measured before the
decision.

Unknown numbers are None, and no rule depends on them. `Situation.from_json` is as strict as the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from nearfar.compiler.errors import RequestError

from ...schema.route import Side

# "half-open": one request is let through; meanwhile the state for any other request is "open".
CircuitState = Literal["closed", "open", "half-open"]
Thermal = Literal["nominal", "fair", "serious", "critical"]

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Message:
    """``content`` is all the text, its parts joined by nothing.

    ``parts`` are its texts in the order of the prompt if there are several, otherwise (): the name, the reasoning, the
    parts of the content, then the names and arguments of its calls.
    """

    __pydantic_config__ = _STRICT

    role: str
    content: str
    labels: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SideState:
    """The state of either side.

    ``context`` is in tokens, None if no limit is known; ``languages`` are first parts of BCP 47 tags ("en"), None for
    all.
    """

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
    """``battery`` is from 0 to 1."""

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
    """The near model's own view of the prompt, in nats: the mean log-probability of the prompt's tokens, and the mean
    log-probability and mean entropy of the first 4 tokens, or fewer, of its own answer.
    """

    __pydantic_config__ = _STRICT

    prompt_mean_logprob: float | None = None
    first_entropy: float | None = None
    first_mean_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """``texts`` are all other texts that would leave the device with the request, as `private_texts` lists them. They
    meet no other text in the prompt; texts that meet only one another, such as a query and a document, are a tuple.

    ``tools`` and ``vision``: whether the request needs them. ``embedding``: the vector of the last user message from
    the model that the policy's predictor names.
    """

    __pydantic_config__ = _STRICT

    messages: tuple[Message, ...]
    near: NearState
    far: FarState
    labels: tuple[str, ...] = ()
    texts: tuple[str | tuple[str, ...], ...] = ()
    pin: Side | None = None
    max_tokens: int | None = None
    tools: bool = False
    vision: bool = False
    language: str | None = None
    near_signals: NearSignals | None = None
    embedding: tuple[float, ...] | None = None

    @classmethod
    def from_json(cls, text: str | bytes) -> Situation:
        """Raises RequestError for an unknown key, or a value of another type."""
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"])
            raise RequestError(
                f"the situation's {path or 'JSON'}: {first['msg']}", code="bad_situation", param=path
            ) from None


@cache
def _adapter() -> TypeAdapter[Situation]:
    return TypeAdapter(Situation)
