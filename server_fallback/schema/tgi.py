"""/generate, /generate_stream and /info, as in Hugging Face's Text Generation Inference.

Source: the package huggingface_hub, "inference/_generated/types/text_generation.py".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from nearfar.compiler.ir.sampling import FrequencyPenalty, RepetitionPenalty, TopP

from .common import ApiTemperature, Exactly, Int64, Items, LeftOut, Reply, Request
from .limits import MAX_STOPS

DEFAULT_NEW_TOKENS = 100


class TgiGrammar(Request):
    """``value``: a schema or its text for "json", a regular expression, or an object with a ``schema``."""

    type: Literal["json", "regex", "json_schema"]
    value: dict[str, Any] | str


class TgiParameters(Request):
    """Without ``do_sample``, the likeliest tokens are taken, unless another parameter asks for a draw."""

    adapter_id: str | None = None
    """The name of a model or an adapter."""
    best_of: Exactly[Literal[1]] | None = None
    decoder_input_details: bool | None = None
    details: bool | None = None
    do_sample: bool | None = None
    frequency_penalty: Annotated[FrequencyPenalty, Field(ge=-2, le=2)] | None = None
    grammar: TgiGrammar | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    return_full_text: bool | None = None
    seed: Annotated[Int64, Field(ge=0)] | None = None
    stop: Annotated[Items[str], Field(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[ApiTemperature, Field(gt=0)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    top_n_tokens: Exactly[Literal[0]] | None = None
    top_p: TopP | None = None
    watermark: bool | None = None


class TgiRequest(Request):
    """``model`` (extension) may be left out if there is one model."""

    inputs: str
    parameters: TgiParameters = Field(default_factory=TgiParameters)
    stream: bool | None = None
    model: str | None = None


class TgiToken(Reply):
    id: int
    text: str
    logprob: float
    special: bool = False


class TgiPrefillToken(Reply):
    """The first token of a prompt has no log-probability."""

    id: int
    text: str
    logprob: float | None


class TgiDetails(Reply):
    finish_reason: str
    generated_tokens: int
    seed: int | None = None
    prefill: list[TgiPrefillToken]
    tokens: list[TgiToken]


class TgiAnswer(Reply):
    generated_text: str
    details: LeftOut[TgiDetails] = None


class TgiAnswers(RootModel[list[TgiAnswer]]):
    """A list of one, at the address of the server itself."""


class TgiStreamDetails(Reply):
    finish_reason: str
    generated_tokens: int
    seed: int | None = None
    input_length: int


class TgiEvent(Reply):
    """A token. The last has the whole text."""

    index: int
    token: TgiToken
    generated_text: str | None = None
    details: TgiStreamDetails | None = None


class TgiError(Reply):
    error: str
    error_type: str


class TgiInfo(Reply):
    model_id: str
    model_pipeline_tag: Literal["text-generation"] = "text-generation"
    max_concurrent_requests: int
    max_best_of: int = 1
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    max_client_batch_size: int = 1
    router: str = "nearfar"
    version: str
