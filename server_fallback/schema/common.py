"""The parts that requests and answers of several routes share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError, PydanticKnownError
from typing_extensions import TypeAliasType

from nearfar.compiler.ir.sampling import (
    DEFAULTS,
    WORD,
    FrequencyPenalty,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Sampling,
    Temperature,
    TopP,
)

from .limits import MAX_CHOICES, MAX_GUIDED_CHOICES, MAX_LOGIT_BIASES, MAX_STOP_TOKENS, MAX_STOPS, MAX_TEXTS

Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]


class Mark(NamedTuple):
    """What a dialect does with a parameter (`executors/dialect.py`)."""

    name: str


# A parameter of OpenAI's own accounts, which is not sent.
OF_ACCOUNTS = Mark("accounts")
# A parameter that OpenAI's API does not have. An empty or false value of the second kind has no effect.
EXTENSION, EXTENSION_IF_SET = Mark("extensions"), Mark("extensions_if_set")

# The statuses with which a server, or a proxy in front of it, says that it is unavailable or overloaded: the same
# request may succeed later or elsewhere. A 500 is not among them: the request may well fail elsewhere too.
NOT_NOW_STATUSES = (408, 429, 502, 503, 504, 529)
# An error in the middle of a stream has no status; OpenAI's error types stand for one.
STATUS_OF_TYPE = {"invalid_request_error": 400, "rate_limit_error": 429, "timeout_error": 503}

TOKEN_ID = re.compile(r"0|-?[1-9][0-9]*")
ApiTemperature = Annotated[Temperature, Field(le=2)]
Item = TypeVar("Item")
# Report only the first of a million invalid items: a list of a million errors takes seconds to build.
Items = Annotated[list[Item], Field(fail_fast=True)]


def _token_id(key: object) -> object:
    """The token id that a key of JSON, which is a string, is in decimal digits. Two spellings of one id would be one
    key.
    """
    if isinstance(key, str) and TOKEN_ID.fullmatch(key) is None:
        raise PydanticKnownError("int_parsing")
    return key


def _require_few_texts(value: object) -> object:
    """Reject a list of too many texts before each is validated. The number of token ids in one text is not limited
    here.
    """
    if isinstance(value, list) and len(value) > MAX_TEXTS and not isinstance(value[0], int):
        raise PydanticCustomError("too_long", f"{len(value)} texts; at most {MAX_TEXTS} are supported")
    return value


Texts = Annotated[str | Items[str] | Items[int] | Items[Items[int]], BeforeValidator(_require_few_texts)]


def texts_of(given: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[int]]:
    """Each text, or the tokens of each. An empty list is a text without tokens."""
    if isinstance(given, str):
        return [given]
    # A list of numbers is one text.
    return [given] if not given or isinstance(given[0], int) else given  # type: ignore[list-item]


def _require_nothing(value: object) -> object:
    """The value. Raises ValueError unless a value is null or empty, or contains only such values."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _require_nothing(inner)
    elif value is not None and value != "":
        raise ValueError("only null or an empty value is supported here; leave it out")
    return value


Nothing = TypeAliasType("Nothing", "dict[str, Nothing] | list[Nothing] | Literal[''] | None")
# Clients send back these keys of an answer's message, which are null in our answers. They are never passed on.
Unused = Annotated[Nothing, BeforeValidator(_require_nothing), Field(exclude=True)]


def _exactly(value: object, read: ValidatorFunctionWrapHandler) -> object:
    literal = read(value)
    if type(literal) is not type(value):
        # As pydantic words it for other values.
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": repr(literal)})
    return literal


Exact = TypeVar("Exact", bound=int)
# A literal for one value: Python finds that false is equal to 0, and true to 1.
Exactly = Annotated[Exact, WrapValidator(_exactly)]


class Request(BaseModel):
    """An unknown key is an error, and so is a string in place of a number: nothing in a request is ignored or
    guessed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Reply(BaseModel):
    """A part of an answer. Its fields are always sent, null or not, except `LeftOut` or `IfRequested`."""

    model_config = ConfigDict(extra="ignore", json_schema_serialization_defaults_required=True)


def _without_null(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]


Value = TypeVar("Value")
# A field of an answer that is left out instead of null.
LeftOut = Annotated[Value | None, Field(exclude_if=lambda value: value is None, json_schema_extra=_without_null)]
# A field of an answer that is sent, null or not, if the request asks for it. Otherwise `api/generation.py` leaves
# it out.
IfRequested = Annotated[Value, Field(exclude_if=lambda _: False)]


class StreamOptions(Request):
    include_usage: bool = False
    include_obfuscation: Exactly[Literal[False]] = False


class StructuredOutputs(Request):
    """Exactly one of the fields. ``json_`` is a JSON schema, or its text; ``choice`` lists the possible answers;
    ``json_object`` is any JSON object.
    """

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[Items[str], Field(min_length=1, max_length=MAX_GUIDED_CHOICES)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class SamplingParameters(Request):
    """How tokens are drawn, by completions and for the drafts of /v1/nearfar/verify."""

    temperature: ApiTemperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[Annotated[int, Field(ge=-1)] | None, EXTENSION] = None
    """Extension: samples from the ``top_k`` likeliest tokens only; -1 or 0 for all."""
    min_p: Annotated[MinP | None, EXTENSION] = None
    """Extension: samples only from tokens with at least this probability relative to the likeliest token."""
    seed: Int64 | None = None

    def sampling(self, seed: int | None, temperature: float, logit_bias: Mapping[int, float] | None = None) -> Sampling:
        """``temperature`` is the one of a request without a temperature. ``seed``: its low 32 bits count."""
        given = {name: value for name in DEFAULTS if (value := getattr(self, name, None)) is not None}
        given["top_k"] = max(0, given.get("top_k", 0))
        seed = None if seed is None else seed & WORD
        return Sampling(**{"temperature": temperature, **given}, logit_bias=logit_bias or {}, seed=seed)


@cache
def marked(request: type[BaseModel], mark: Mark) -> tuple[str, ...]:
    """The parameters with a mark."""
    return tuple(name for name, field in request.model_fields.items() if mark in field.metadata)


class GenerationRequest(SamplingParameters):
    """The parameters of both kinds of completions. Null has the same meaning as a missing key."""

    model: str
    """The name of a model, or of a loaded LoRA adapter."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: str | Annotated[Items[str], Field(max_length=MAX_STOPS)] | None = None
    frequency_penalty: Annotated[FrequencyPenalty, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[PresencePenalty, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        Annotated[
            dict[
                Annotated[int, Field(strict=False), BeforeValidator(_token_id)],
                Annotated[float, Field(ge=-100, le=100)],
            ],
            Field(max_length=MAX_LOGIT_BIASES),
        ]
        | None
    ) = None
    user: str | None = None
    repetition_penalty: Annotated[RepetitionPenalty | None, EXTENSION] = None
    """Extension: the penalty of Keskar et al. 2019; 1 for none."""
    priority: Int64 | None = None
    """Extension: if several requests wait, the highest priority runs first; 0 by default."""
    # Extensions from vLLM, with its meaning. `stop_token_ids` end the answer and are its last token. Neither they nor
    # the model's end tokens nor stop strings end it before it has `min_tokens` tokens.
    stop_token_ids: Annotated[
        Annotated[Items[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOP_TOKENS)] | None, EXTENSION_IF_SET
    ] = None
    min_tokens: Annotated[Annotated[int, Field(ge=0)] | None, EXTENSION_IF_SET] = None
    ignore_eos: Annotated[bool | None, EXTENSION_IF_SET] = None
    # Extensions from vLLM: the format of the answer. Each of the older names stands for one key of
    # `structured_outputs`.
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Items[str], Field(min_length=1, max_length=MAX_GUIDED_CHOICES)] | None = None
    guided_grammar: str | None = None
    prompt_logprobs: Annotated[Annotated[int, Field(ge=0, le=20)] | None, EXTENSION] = None
    """Extension, as in vLLM: how many alternatives are listed for each token of the prompt."""
    return_token_ids: Annotated[bool | None, EXTENSION_IF_SET] = None
    """Extension, as in vLLM: the ids of prompt and answer, with the token that ended it."""
    receipt: Annotated[bool | None, EXTENSION_IF_SET] = None
    """Extension: the last chunk, or the answer, has a signed receipt, which `nearfar verify` checks. It has hashes of
    the request and of the tokens, and with ``return_token_ids`` the tokens of the answer.
    """
    watermark: Annotated[bool | None, EXTENSION_IF_SET] = None
    """Extension, as in TGI: mark the answer, so that `nearfar watermark detect` finds it."""
    id_slot: Annotated[Annotated[int, Field(ge=-1)] | None, EXTENSION] = None
    """Extension, as in llama.cpp: the slot of the answer, on a server with --slot-save-path. Otherwise it has no
    effect.
    """
    cache_prompt: Annotated[Exactly[Literal[True]] | None, EXTENSION_IF_SET] = None
    """Extension, as in llama.cpp: prompts always start from what the cache has of them."""
    skip_special_tokens: Annotated[bool | None, EXTENSION] = None
    include_stop_str_in_output: Annotated[bool | None, EXTENSION_IF_SET] = None


class PromptTokensDetails(Reply):
    cached_tokens: int = 0


class CompletionTokensDetails(Reply):
    reasoning_tokens: int = 0
    """For models that reason: the tokens up to the end of the reasoning, including its markers."""
    accepted_prediction_tokens: LeftOut[int] = None
    """Drafts that were right, of which several are checked at once. Missing if no drafts were checked."""
    rejected_prediction_tokens: LeftOut[int] = None
    tokens_per_pass: LeftOut[float] = None
    """Extension: the tokens of the answers, with those that ended them, divided by the passes of the model that chose
    them; 1 if all drafts were wrong. Missing if no drafts were checked.
    """


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: LeftOut[PromptTokensDetails] = None
    """Missing if a stop string or an interrupt ended the answer, because the engine then does not report the count."""
    completion_tokens_details: LeftOut[CompletionTokensDetails] = None
    """Missing if the model does not reason and no drafts were checked."""
    queue_ms: LeftOut[float] = None
    """Extension of `nearfar serve`: how long the answer waited until its first tokens were passed to the device, the
    longest wait of several answers. Missing if unknown.
    """


class TopLogprob(Reply):
    token: str
    bytes: list[int] | None = None
    logprob: float


class TokenLogprob(TopLogprob):
    """The page adds ``token_id``, the token's id in the model's vocabulary (extension)."""

    top_logprobs: list[TopLogprob] = []


class PromptLogprob(Reply):
    """vLLM's. ``rank`` counts from 1; null if unknown."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# By token id, for each token of the prompt; the first has none.
PromptLogprobs = list[dict[int, PromptLogprob] | None]


class MaskedText(Reply):
    """A text with placeholders such as [PERSON_1] in place of private texts. ``path`` is that of the request's own
    text, such as "messages[0].content"; that of near's text is "answer.text" or "answer.reasoning".
    """

    path: str
    text: str


class ErrorDetail(Reply):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    confirm: LeftOut[str] = None
    """Of the code "confirmation_required": the value of X-Nearfar-Confirm that agrees to ``masked``."""
    masked: LeftOut[list[MaskedText]] = None
    """All texts that would leave the machine, if its policy asks."""


class ErrorResponse(Reply):
    error: ErrorDetail


def _text_or_none(value: object) -> object:
    """vLLM has token ids here, too."""
    return value if isinstance(value, str) else None


# Extension of vLLM's: the stop string that ended the choice. It is left out otherwise.
StopReason = Annotated[LeftOut[str], BeforeValidator(_text_or_none)]
# Another server's own value, such as "recitation", reaches the client unchanged.
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"] | str
