"""The policy: which side may and should answer, as data. A file or a mapping flows in, a checked policy flows out.

These classes are the format's definition: `schema.py` writes policy.schema.json and the TypeScript types from them, and the browser's
router reads the same files. A key that is not known, a number out of range and a contradiction are errors at creation, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from nearfar.compiler.errors import RequestError, reason_of

from .contradictions import contradictions
from .entry import ITEMS, WHOLE, Count, Entry, Tokens
from .pattern import read_pattern
from .predictor import Predictor
from .privacy import PrivateCheck
from .situation import Thermal

POLICY_VERSION = 1

Mode = Literal["near-only", "far-only", "prefer-near", "prefer-far", "auto"]
Label = Annotated[str, Field(min_length=1, max_length=100)]
Labels = Annotated[tuple[Label, ...], Field(max_length=100), ITEMS]
# BCP 47's first part, such as "en".
Language = Annotated[str, Field(min_length=2, max_length=3)]
Languages = Annotated[tuple[Language, ...], Field(max_length=200), ITEMS]
Usd = Annotated[float, Field(ge=0, le=1e9)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000), WHOLE]


class PrivateRules(Entry):
    """What makes a request private. ``patterns`` are searched for in all its texts; see `pattern`."""

    labels: Labels = ("private",)
    patterns: Annotated[tuple[Annotated[str, AfterValidator(read_pattern)], ...], Field(max_length=100), ITEMS] = ()
    ignore_case: bool = True


class Budget(Entry):
    """What the far side may be asked for in a UTC day."""

    far_usd_per_day: Usd | None = None
    far_requests_per_day: Count | None = None


class Spoken(Entry):
    """The languages that each side's model knows, None for all. A request that tells its language goes to a side that knows it."""

    near: Languages | None = None
    far: Languages | None = None


class Price(Entry):
    """The far side's, in US dollars."""

    prompt_usd_per_million: Usd = 0.0
    completion_usd_per_million: Usd = 0.0


class DeviceRules(Entry):
    """Below this charge, not charging, or hotter than this, far answers."""

    min_battery: Annotated[float, Field(ge=0, le=1)] | None = None
    max_thermal: Thermal | None = None


class Costs(Entry):
    """What a second of waiting costs, and how long it may take. A side that is expected to take longer loses to one that is not."""

    usd_per_second: Usd = 0.0
    max_first_token_seconds: Seconds | None = None
    max_total_seconds: Seconds | None = None


class Quality(Entry):
    """Far answers where its gain is above the threshold."""

    predictor: Predictor | None = None
    threshold: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0


class Repetition(Entry):
    """The last ``tokens * times`` tokens are one piece of at most ``tokens`` tokens, over and over."""

    tokens: Tokens = 8
    times: Annotated[int, Field(ge=2, le=1000), WHOLE] = 3


class Escalation(Entry):
    """When an answer of near's goes over to far: where it says "continue", far goes on from the text; where "restart", it begins anew.

    ``warm``: when far computes the prompt of an answer that near writes, so that a hand-over begins at once: "always" from the start,
    "doubt" once near's answer begins to go astray. It costs far the prompt and one token, and counts in the budget; never for a private
    request, nor where far is of the dialect openai.
    """

    then: Literal["never", "continue", "restart"] = "never"
    warm: Literal["never", "doubt", "always"] = "doubt"
    window_tokens: Tokens = 8
    min_mean_logprob: Annotated[float, Field(ge=-1000, le=0)] | None = -1.5
    max_mean_entropy: Annotated[float, Field(ge=0, le=1000)] | None = None
    repetition: Repetition | None = Repetition()
    failing_schema: bool = True


class Fallback(Entry):
    """Who goes on where the other side breaks in mid-answer. Not given, both are false in the modes near-only and far-only."""

    near_continues: bool = True
    far_takes_over: bool = True


class Timeouts(Entry):
    """In milliseconds. After ``hedge_after_ms`` without a token of near's far is asked too, and the first token wins."""

    near_first_token_ms: Milliseconds = 20_000
    far_first_token_ms: Milliseconds = 20_000
    between_tokens_ms: Milliseconds = 20_000
    hedge_after_ms: Milliseconds | None = None


class Breaker(Entry):
    """After so many failures in a row a side is left alone for ``open_ms``, then one request tries it."""

    failures: Annotated[int, Field(ge=1, le=1000), WHOLE] = 3
    open_ms: Milliseconds = 10_000


class Speculation(Entry):
    """Where far answers, near guesses so many tokens at a time, and far says which hold: the same answer in fewer of far's forwards."""

    draft_tokens: Annotated[int, Field(ge=1, le=16), WHOLE] = 4


class Policy(Entry):
    """The whole file. ``labels`` are those that requests and messages may bear beside the private ones."""

    version: Annotated[Literal[1], WHOLE]
    mode: Mode
    labels: Labels = ()
    private: PrivateRules = PrivateRules()
    languages: Spoken = Spoken()
    budget: Budget = Budget()
    price: Price = Price()
    device: DeviceRules = DeviceRules()
    costs: Costs = Costs()
    quality: Quality = Quality()
    escalation: Escalation = Escalation()
    speculation: Speculation | None = None
    fallback: Fallback = Fallback()
    timeouts: Timeouts = Timeouts()
    retries: Annotated[int, Field(ge=0, le=10), WHOLE] = 1
    breaker: Breaker = Breaker()

    @classmethod
    def read(cls, source: Policy | Mapping[str, Any] | Path | str) -> Policy:
        """From a file, or from what JSON makes of one. Raises RequestError with the code "bad_policy"; ``param`` names the place."""
        if isinstance(source, Policy):
            return source
        where = "the policy" if isinstance(source, Mapping) else str(source)
        try:
            text = json.dumps(source) if isinstance(source, Mapping) else Path(source).read_text(encoding="utf-8")
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = dotted(first["loc"])
            about = f"{place}: " if place else ""
            unknown = first["type"] == "extra_forbidden"
            problem = "is not known; correct or remove it" if unknown else first["msg"].removeprefix("Value error, ")
            raise RequestError(f"{where}: {about}{problem}", code="bad_policy", param=place) from None
        except OSError as error:
            raise RequestError(f"{where}: cannot be read: {reason_of(error)}", code="bad_policy", param="") from None
        except (UnicodeDecodeError, TypeError, ValueError) as error:
            raise RequestError(f"{where}: cannot be read as JSON: {error}", code="bad_policy", param="") from None

    @model_validator(mode="before")
    @classmethod
    def _one_side_has_no_other(cls, source: Any) -> Any:
        """What asks for a second side, or forbids the only one, is no default where there is but one."""
        if not isinstance(source, dict):
            return source
        absent: dict[str, dict[str, object]] = {}
        if source.get("mode") in ("near-only", "far-only"):
            absent["fallback"] = {"near_continues": False, "far_takes_over": False}
        if source.get("mode") == "far-only":
            absent["private"] = {"labels": []}
        for name, values in absent.items():
            given = source.get(name, {})
            if isinstance(given, dict):
                source = {**source, name: {**values, **given}}
        return source

    @model_validator(mode="after")
    def _does_not_contradict_itself(self) -> Self:
        found = next(contradictions(self), None)
        if found is not None:
            place, problem = found
            raise RequestError(f"the policy: {place}: {problem}", code="bad_policy", param=place)
        return self

    @cached_property
    def private_check(self) -> PrivateCheck:
        return PrivateCheck.of(self.private.labels, self.private.patterns, ignore_case=self.private.ignore_case)


def dotted(place: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
