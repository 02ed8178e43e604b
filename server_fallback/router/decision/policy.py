"""The policy: which side may and should answer, as data. `Policy.read` checks a file or a mapping.

These classes define the format: `schema.py` writes policy.schema.json and the TypeScript types from them.
`web/src/shared/decision/policy.ts` reads the files for both routers. Unknown keys, numbers out of range and
contradictions are errors; nothing is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from nearfar.compiler.given_file import read_given
from nearfar.compiler.runtime.errors import RequestError, reason_of
from nearfar.compiler.shared.script import SharedScript

from .predictor import Components, Count, PolicyPart, Predictor
from .privacy import PrivateCheck
from .situation import Thermal

Mode = Literal["near-only", "far-only", "prefer-near", "prefer-far", "auto"]
Media = Literal["near", "far", "describe"]
Label = Annotated[str, Field(min_length=1, max_length=100)]
Labels = Annotated[tuple[Label, ...], Field(max_length=100)]
# The first part of a BCP 47 tag, such as "en".
Language = Annotated[str, Field(min_length=2, max_length=3)]
Languages = Annotated[tuple[Language, ...], Field(max_length=200)]
Kind = Annotated[str, Field(min_length=1, max_length=20)]
Usd = Annotated[float, Field(ge=0, le=1e9)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
Tokens = Annotated[int, Field(ge=1, le=1000)]
Milliseconds = Annotated[int, Field(ge=1, le=86_400_000)]


class MaskPattern(PolicyPart):
    """A pattern of private texts, and their ``kind`` in placeholders, of A to Z, such as "EMAIL"."""

    kind: Kind
    pattern: str


class MaskEntity(PolicyPart):
    """What the finder finds: its ``label`` is a kind that every `Finder` knows, such as "PERSON", and not a model's own
    name of it; ``kind`` is the word in placeholders, as in MaskPattern.
    """

    label: Label
    kind: Kind


class MaskRules(PolicyPart):
    """Private texts that far may have placeholders for: those that match ``patterns``, and the ``entities`` that a
    model on the device finds.

    ``then``: with "mask" far receives placeholders, with "ask" after the application has agreed to what would leave,
    and with "near" the request stays on the device. ``strict``: only listed fields of a chat may leave, of which each
    is shown; see `web/src/shared/masks/strict.ts`.
    """

    patterns: Annotated[tuple[MaskPattern, ...], Field(max_length=100)] = ()
    entities: Annotated[tuple[MaskEntity, ...], Field(max_length=100)] = ()
    then: Literal["mask", "ask", "near"] = "mask"
    strict: bool = False


class PrivateRules(PolicyPart):
    """The rules that make a request private. ``patterns`` are searched in all its texts; see `privacy`.

    ``masks`` are private texts that chats may leave without.

    ``media``: where pictures, recordings and files may go. "near" keeps a request with one on the device, and None one
    whose medium is not text, so that no pattern can be searched in it. "describe" lets a text that near makes of such a
    medium leave, and "far" all. The default is "far" if the policy lists no labels and no patterns here.
    """

    labels: Labels = ("private",)
    patterns: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    ignore_case: bool = True
    media: Media | None = None
    masks: MaskRules | None = None


class Budget(PolicyPart):
    """Limits on the cost of the far side in a UTC day."""

    far_usd_per_day: Usd | None = None
    far_requests_per_day: Count | None = None


class ModelLanguages(PolicyPart):
    """The languages that each side's model knows; None for all.

    A request with a ``language`` is sent to a side that knows it.
    """

    near: Languages | None = None
    far: Languages | None = None


class Price(PolicyPart):
    """The far side's prices in US dollars."""

    prompt_usd_per_million: Usd = 0.0
    completion_usd_per_million: Usd = 0.0


class DeviceRules(PolicyPart):
    """Far answers if the battery is below ``min_battery`` and not charging, if the device is hotter than
    ``max_thermal``, or if near's first token is expected after ``max_first_token_seconds``, however long far takes.
    """

    min_battery: Annotated[float, Field(ge=0, le=1)] | None = None
    max_thermal: Thermal | None = None
    max_first_token_seconds: Seconds | None = None


class Costs(PolicyPart):
    """The cost of a second of waiting, and time limits.

    A side that is expected to exceed a limit loses to one that is not.
    """

    usd_per_second: Usd = 0.0
    max_first_token_seconds: Seconds | None = None
    max_total_seconds: Seconds | None = None


class Quality(PolicyPart):
    """Far answers if its gain is above the threshold."""

    predictor: Predictor | None = None
    threshold: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0

    @property
    def components(self) -> Components | None:
        """The embeddings that the predictor reads."""
        return None if self.predictor is None else self.predictor.embedding


class Repetition(PolicyPart):
    """The last ``tokens * times`` tokens repeat one piece of at most ``tokens`` tokens."""

    tokens: Tokens = 8
    times: Annotated[int, Field(ge=2, le=1000)] = 3


class Escalation(PolicyPart):
    """When near's answer is handed over to far: with "continue" far continues the text, with "restart" it starts over.

    ``warm``: when far computes the prompt of an answer that near writes, so that it can start at once at a hand-over:
    "always" from the start, "doubt" once near's answer begins to go wrong. It costs far the prompt and one token, and
    counts in the budget. It is never done for a private request, nor if far is of the dialect openai.
    """

    then: Literal["never", "continue", "restart"] = "never"
    warm: Literal["never", "doubt", "always"] = "doubt"
    window_tokens: Tokens = 8
    min_mean_logprob: Annotated[float, Field(ge=-1000, le=0)] | None = -1.5
    max_mean_entropy: Annotated[float, Field(ge=0, le=1000)] | None = None
    repetition: Repetition | None = Repetition()
    failing_schema: bool = True


class Fallback(PolicyPart):
    """The sides that continue if the other side fails in the middle of an answer.

    The default of both is false in the modes near-only and far-only.
    """

    near_continues: bool = True
    far_takes_over: bool = True


class Timeouts(PolicyPart):
    """In milliseconds.

    If near has sent no token after ``hedge_after_ms``, far is asked too, and the first token wins.
    """

    near_first_token_ms: Milliseconds = 20_000
    far_first_token_ms: Milliseconds = 20_000
    between_tokens_ms: Milliseconds = 20_000
    hedge_after_ms: Milliseconds | None = None


class Breaker(PolicyPart):
    """After this number of failures in a row, a side is not asked for ``open_ms``; then one request tries it."""

    failures: Annotated[int, Field(ge=1, le=1000)] = 3
    open_ms: Milliseconds = 10_000


class Speculation(PolicyPart):
    """When far answers, near guesses ``draft_tokens`` tokens at a time and far checks them: the same answer in fewer of
    far's forwards.
    """

    draft_tokens: Annotated[int, Field(ge=1, le=16)] = 4


class Prefill(PolicyPart):
    """When near answers, far may compute a prompt of at least ``min_tokens`` tokens that are not in near's cache, and
    near receives its keys and values, if that is expected to be sooner. It costs far the prompt, and counts in the
    budget. It is never done for a private request. Only pages do it. ``states``: how matrices of recurrent states
    travel, at 4, 8 or 16 bits.
    """

    min_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    states: Literal["q4", "q8", "float16"] = "q4"


class Policy(PolicyPart):
    """The complete file. ``labels`` are those that requests and messages may have besides the private ones."""

    version: Literal[1]
    mode: Mode
    labels: Labels = ()
    private: PrivateRules = PrivateRules()
    languages: ModelLanguages = ModelLanguages()
    budget: Budget = Budget()
    price: Price = Price()
    device: DeviceRules = DeviceRules()
    costs: Costs = Costs()
    quality: Quality = Quality()
    escalation: Escalation = Escalation()
    speculation: Speculation | None = None
    prefill: Prefill | None = None
    fallback: Fallback = Fallback()
    timeouts: Timeouts = Timeouts()
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    breaker: Breaker = Breaker()

    @classmethod
    def read(cls, source: Policy | Mapping[str, Any] | Path | str) -> Policy:
        """Read a file, or a mapping such as JSON makes from one.

        Raises RequestError with the code "bad_policy"; ``param`` is the path of the value.
        """
        if isinstance(source, Policy):
            return source
        name = "the policy" if isinstance(source, Mapping) else str(source)
        try:
            value = source if isinstance(source, Mapping) else json.loads(read_given(Path(source)))
            text = json.dumps(value, allow_nan=False)
        except OSError as error:
            raise bad_policy(f"{name}: cannot be read: {reason_of(error)}") from None
        except (RecursionError, TypeError, ValueError) as error:
            raise bad_policy(f"{name}: cannot be read as JSON: {error}") from None
        try:
            read = SharedScript.of_thread().ask_text("readPolicy", text)
        except RequestError as error:
            raise bad_policy(error.message.replace("the policy", name, 1), str(error.details["param"])) from None
        return cls.model_validate_json(json.dumps(read))

    def ask(self, name: str, *values: Any) -> Any:
        """The result of a function of the shared script that takes the key of a policy and these values."""
        script = SharedScript.of_thread()
        answer = script.ask(name, self.key, *values)
        if answer is None:
            script.ask("keepPolicy", self.key, self.model_dump(mode="json"))
            answer = script.ask(name, self.key, *values)
        return answer

    def answer_rules(self, **facts: Any) -> dict[str, Any]:
        """The rules of an answer. ``facts``: AnswerFacts of `web/src/shared/router/answer_machine.ts`."""
        rules: dict[str, Any] = self.ask("rulesOf", facts)
        return rules

    @cached_property
    def key(self) -> str:
        """The name of this policy in the shared script. Equal policies have the same."""
        return sha256(self.model_dump_json().encode()).hexdigest()

    @cached_property
    def private_check(self) -> PrivateCheck:
        masks = self.private.masks
        patterns = (*self.private.patterns, *(each.pattern for each in (masks.patterns if masks else ())))
        return PrivateCheck.of(self.private.labels, patterns, ignore_case=self.private.ignore_case)


def bad_policy(message: str, param: str = "") -> RequestError:
    return RequestError(message, code="bad_policy", param=param)
