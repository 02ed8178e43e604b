"""/completion, /infill, /apply-template and /props, as in llama.cpp's server. Source: its README."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from nearfar.compiler.ir.sampling import FrequencyPenalty, MinP, PresencePenalty, RepetitionPenalty, TopP

from .chat import MAX_TOOLS, Message, Messages
from .common import ApiTemperature, Int64, Items, LeftOut, Reply, Request
from .completions import MAX_FILES, ExtraFile
from .functions import Parsed, Tool
from .limits import MAX_STOPS

# What llama.cpp uses for a request without these.
DEFAULT_TEMPERATURE, DEFAULT_TOP_K, DEFAULT_TOP_P, DEFAULT_MIN_P = 0.8, 40, 0.95, 0.05
Sampler = Literal["dry", "infill", "min_p", "penalties", "temperature", "top_k", "top_n_sigma", "top_p", "typ_p", "xtc"]


class InfillFile(ExtraFile):
    """``time`` is when an editor last saw the text. It has no effect."""

    time: Parsed = None


class LlamaRequest(Request):
    """What both forms of completions have. ``model`` (extension) may be left out if there is one model. For ``id_slot``
    see `GenerationRequest`.

    Clients send ``cache_prompt``, ``n_indent``, ``samplers``, ``t_max_prompt_ms`` and ``t_max_predict_ms``, which have
    no effect: they concern the speed of that server, or how it ends and draws.
    """

    model: str | None = None
    stream: bool = False
    n_predict: Annotated[int, Field(ge=-1)] = -1
    temperature: ApiTemperature = DEFAULT_TEMPERATURE
    top_k: Annotated[int, Field(ge=0)] = DEFAULT_TOP_K
    top_p: TopP = DEFAULT_TOP_P
    min_p: MinP = DEFAULT_MIN_P
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: Annotated[PresencePenalty, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[FrequencyPenalty, Field(ge=-2, le=2)] | None = None
    seed: Int64 = -1
    stop: Annotated[Items[str], Field(max_length=MAX_STOPS)] | None = None
    response_fields: Annotated[Items[str], Field(max_length=64)] | None = None
    cache_prompt: bool | None = None
    id_slot: Annotated[int, Field(ge=-1)] | None = None
    samplers: Annotated[Items[Sampler], Field(max_length=16)] | None = None
    t_max_prompt_ms: int | None = None
    t_max_predict_ms: int | None = None


class InfillRequest(LlamaRequest):
    """``prompt`` begins the text in the gap."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[Items[InfillFile], Field(max_length=MAX_FILES)] | None = None
    prompt: str = ""
    n_indent: int | None = None


class LlamaCompletionRequest(LlamaRequest):
    """``prompt`` is a text, or its tokens. ``grammar`` has the rule `root`."""

    prompt: str | Items[int]
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    ignore_eos: bool = False
    return_tokens: bool = False


class InfillTimings(Reply):
    """``cache_n`` tokens of the prompt were in the cache, ``prompt_n`` were computed."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class InfillPart(Reply):
    """Of a stream."""

    index: int = 0
    content: str
    tokens: LeftOut[list[int]] = None
    stop: Literal[False] = False


class InfillAnswer(Reply):
    """The end of a stream has an empty ``content``. ``tokens`` are those of the answer, if they are requested;
    ``id_slot`` is the request's. With ``response_fields``, only these are sent; "timings/prompt_n"
    is one of `timings`, under this name.
    """

    # Any field may be missing then.
    model_config = ConfigDict(json_schema_extra=lambda schema: schema.pop("required", None))

    index: int = 0
    content: str
    tokens: LeftOut[list[int]] = None
    id_slot: LeftOut[int] = None
    stop: Literal[True] = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    has_new_line: bool
    truncated: bool
    stop_type: Literal["eos", "limit", "word"]
    stopping_word: str
    timings: InfillTimings
    response_fields: Annotated[list[str] | None, Field(exclude=True)] = None


class TemplateRequest(Request):
    """``model`` (extension) may be left out if there is one model."""

    messages: Messages[Message]
    tools: Annotated[Items[Tool], Field(max_length=MAX_TOOLS)] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    model: str | None = None


class TemplateAnswer(Reply):
    prompt: str


class PropsSettings(Reply):
    """``n_ctx`` is the context in tokens, and ``params`` those of a request without them."""

    n_ctx: int
    params: dict[str, float]


class Modalities(Reply):
    vision: bool
    audio: bool


class Props(Reply):
    """``chat_template`` is empty for a model without one, and for another server's."""

    default_generation_settings: PropsSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: Modalities
    build_info: str
