"""Ollama's API: /api/chat, /api/generate, /api/embed and the models of the store.

Source: github.com/ollama/ollama, docs/api.md and api/types.go. Durations are in nanoseconds.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr

from nearfar.compiler.store.parameters import Parameters

from ..option_types import read_duration
from .chat import MAX_MESSAGES, MAX_PARTS, MAX_TOOL_CALLS, MAX_TOOLS
from .common import Exactly, Items, LeftOut, Reply, Request
from .functions import Function
from .models import Name


def _check_duration(value: float | str) -> float | str:
    read_duration(value)
    return value


Base64 = Annotated[str, Field(min_length=1)]
Images = Annotated[Items[Base64], Field(max_length=MAX_PARTS)]


class CalledFunction(Request):
    name: str
    arguments: dict[str, Any]
    index: int | None = None
    description: str | None = None


class CalledTool(Request):
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class OllamaTool(Request):
    type: Literal["function"] = "function"
    function: Function


class OllamaMessage(Request):
    """``tool_name`` and ``tool_call_id`` are those of a result; without an id, it belongs to the last call of the name,
    or to the first call that has no result yet.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: Annotated[Items[CalledTool], Field(max_length=MAX_TOOL_CALLS)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class KeepsAlive(Request):
    """``keep_alive``: how long the model stays loaded after this request."""

    model: Name
    keep_alive: Annotated[float | str, AfterValidator(_check_duration)] | None = None

    @property
    def keep_seconds(self) -> float | None:
        return None if self.keep_alive is None else read_duration(self.keep_alive)


class OllamaRequest(KeepsAlive):
    """What requests for answers have in common. They are streamed unless ``stream`` is false."""

    options: Parameters | None = None
    stream: bool | None = True
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncate: Exactly[Literal[False]] | None = None
    """A chat that is longer than the context is refused here, and never shortened."""
    shift: Exactly[Literal[False]] | None = None
    """An answer ends when the context is full."""

    _arrived_ns: int = PrivateAttr(default_factory=time.perf_counter_ns)

    @property
    def arrived_ns(self) -> int:
        """When the request was read, as `time.perf_counter_ns`."""
        return self._arrived_ns


class OllamaChatRequest(OllamaRequest):
    """Without messages, the model is loaded, or with a ``keep_alive`` of 0 unloaded."""

    messages: Annotated[Items[OllamaMessage], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[Items[OllamaTool], Field(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """The prompt is a user's message, or with ``raw`` a text that is continued. Without a prompt, as in
    `OllamaChatRequest`.
    """

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: Images | None = None
    raw: bool | None = None


class OllamaEmbedRequest(KeepsAlive):
    input: str | Items[str]
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    options: Parameters | None = None


class OllamaEmbeddingsRequest(KeepsAlive):
    """The older form of `OllamaEmbedRequest`, for one text."""

    prompt: str
    options: Parameters | None = None


# --- answers ---


class Durations(Reply):
    """Of a complete answer. ``load_duration`` is the time until the model was ready, ``prompt_eval_duration`` the time
    from then to the first token, and ``eval_duration`` that of the other tokens.
    """

    total_duration: LeftOut[int] = None
    load_duration: LeftOut[int] = None
    prompt_eval_count: LeftOut[int] = None
    prompt_eval_duration: LeftOut[int] = None
    eval_count: LeftOut[int] = None
    eval_duration: LeftOut[int] = None


class OllamaLogprob(Reply):
    token: str
    logprob: float
    bytes: LeftOut[list[int]] = None
    top_logprobs: LeftOut[list[OllamaLogprob]] = None


class AnsweredFunction(Reply):
    name: str
    arguments: dict[str, Any]


class AnsweredCall(Reply):
    id: str
    function: AnsweredFunction


class AnsweredMessage(Reply):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: LeftOut[str] = None
    tool_calls: LeftOut[list[AnsweredCall]] = None


class OllamaAnswer(Durations):
    """A whole answer, or a line of a streamed one, of which the last is ``done``."""

    model: str
    created_at: str
    done: bool
    done_reason: LeftOut[str] = None
    logprobs: LeftOut[list[OllamaLogprob]] = None


class OllamaChatAnswer(OllamaAnswer):
    message: AnsweredMessage


class OllamaGenerateAnswer(OllamaAnswer):
    response: str
    thinking: LeftOut[str] = None


class OllamaEmbedAnswer(Durations):
    model: str
    embeddings: list[list[float]]


class OllamaEmbeddingsAnswer(Reply):
    embedding: list[float]


class OllamaError(Reply):
    error: str


# --- models ---


class OllamaDetails(Reply):
    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] | None = None
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(Reply):
    """``expires_at`` and what follows is of models that are loaded; ``device`` is an extension."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    modified_at: LeftOut[str] = None
    expires_at: LeftOut[str] = None
    size_vram: LeftOut[int] = None
    context_length: LeftOut[int] = None
    device: LeftOut[str] = None


class OllamaModels(Reply):
    models: list[OllamaModel]


class OllamaShow(Reply):
    modelfile: str
    parameters: str
    template: str
    system: LeftOut[str] = None
    license: LeftOut[str] = None
    messages: LeftOut[list[dict[str, str]]] = None
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(Reply):
    version: str


class NamedModel(Request):
    """``name`` is the older key for ``model``."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["model"]}, {"required": ["name"]}]})

    model: Name | None = None
    name: Name | None = None
    verbose: bool | None = None


class OllamaPull(NamedModel):
    insecure: Exactly[Literal[False]] | None = None
    stream: bool | None = True


class OllamaCopy(Request):
    source: Name
    destination: Name


class OllamaCreateMessage(Request):
    role: Literal["system", "user", "assistant"]
    content: str


class OllamaCreate(NamedModel):
    """``files`` and ``adapters``: digests ("sha256:HEX") of uploaded files by name."""

    from_: Annotated[Name | None, Field(alias="from")] = None
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    template: str | None = None
    license: str | Items[str] | None = None
    system: str | None = None
    parameters: Parameters | None = None
    messages: Items[OllamaCreateMessage] | None = None
    quantize: str | None = None
    stream: bool | None = True


class OllamaStatus(Reply):
    status: str
    digest: LeftOut[str] = None
    total: LeftOut[int] = None
    completed: LeftOut[int] = None
