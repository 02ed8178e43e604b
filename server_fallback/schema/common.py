"""The parts that requests and answers of several routes share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from .limits import MAX_CHOICES, MAX_GUIDED_CHOICES, MAX_LOGIT_BIASES, MAX_STOP_TOKENS, MAX_STOPS, MAX_TEXTS

Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Item = TypeVar("Item")
# Report only the first of a million invalid items: a list of a million errors takes seconds to build.
Items = Annotated[list[Item], Field(fail_fast=True)]


def _require_few_texts(value: object) -> object:
    """Reject a list of too many texts before each is validated. The number of token ids in one text is not limited
    here.
    """
    if isinstance(value, list) and len(value) > MAX_TEXTS and not isinstance(value[0], int):
        raise PydanticCustomError("too_long", f"{len(value)} texts; at most {MAX_TEXTS} are supported")
    return value


Texts = Annotated[str | Items[str] | Items[int] | Items[Items[int]], BeforeValidator(_require_few_texts)]


def _require_nothing(value: object) -> None:
    """Raises ValueError unless a value is null or empty, or contains only such values."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _require_nothing(inner)
    elif value is not None and value != "":
        raise ValueError("only null or an empty value is supported here; leave it out")


# Clients send back these keys of an answer's message, which are null in our answers. They are never passed on.
Unused = Annotated[
    dict[str, Any] | list[Any] | Literal[""] | None, AfterValidator(_require_nothing), Field(exclude=True)
]


class Request(BaseModel):
    """An unknown key is an error, and so is a string in place of a number: nothing in a request is ignored or
    guessed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")


class StreamOptions(Request):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class StructuredOutputs(Request):
    """Exactly one of the fields. ``json_`` is a JSON schema, or its text; ``choice`` lists the possible answers;
    ``json_object`` is any JSON object.
    """

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[Items[str], Field(min_length=1, max_length=MAX_GUIDED_CHOICES)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GenerationRequest(Request):
    """The parameters of both kinds of completions. Null has the same meaning as a missing key."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: str | Annotated[Items[str], Field(max_length=MAX_STOPS)] | None = None
    seed: Int64 | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    # JSON's keys are strings.
    logit_bias: (
        Annotated[
            dict[Annotated[int, Field(strict=False)], Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=MAX_LOGIT_BIASES),
        ]
        | None
    ) = None
    user: str | None = None
    # Extensions: see `nearfar.compiler.ir.sampling`; -1 and 0 mean all tokens. A higher priority is served first.
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    priority: Int64 | None = None
    # Extensions from vLLM, with its meaning. `stop_token_ids` end the answer and are its last token. Neither they nor
    # the model's end tokens nor stop strings end it before it has `min_tokens` tokens.
    stop_token_ids: Annotated[Items[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOP_TOKENS)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    # Extensions from vLLM: the format of the answer. Each of the older names stands for one key of
    # `structured_outputs`.
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Items[str], Field(min_length=1, max_length=MAX_GUIDED_CHOICES)] | None = None
    guided_grammar: str | None = None
    # Extensions from vLLM. `prompt_logprobs`: how many alternatives are listed for each token of the prompt;
    # `return_token_ids`: the ids of prompt and answer, with the token that ended it.
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None


class PromptTokensDetails(Answer):
    cached_tokens: int = 0


class CompletionTokensDetails(Answer):
    reasoning_tokens: int = 0


class Usage(Answer):
    """``queue_ms`` (extension) is how long the answer waited until its first tokens were passed to the device, the
    longest wait of several answers; None if unknown.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    queue_ms: float | None = None


class TopLogprob(Answer):
    token: str
    bytes: list[int] | None = None
    logprob: float


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob] = []


class PromptLogprob(Answer):
    """vLLM's. ``rank`` counts from 1; None if unknown."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# By token id, for each token of the prompt; the first has none.
PromptLogprobs = list[dict[int, PromptLogprob] | None]


class ErrorDetail(Answer):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(Answer):
    error: ErrorDetail


# Another server's own value, such as "recitation", reaches the client unchanged.
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"] | str
