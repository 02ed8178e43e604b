"""The items of /v1/responses: messages, calls of functions with their results, and reasoning.

Prompts and answers are lists of items. Clients send the items of an answer back as a part of the next prompt, so each
item of an answer is valid in a prompt.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .chat import MAX_PARTS, InputAudio
from .common import Items, LeftOut, Reply, Request, TokenLogprob, Unused
from .functions import Parsed

Status = Literal["in_progress", "completed", "incomplete"]
# A field that concerns OpenAI's cache.
CacheBreakpoint = Annotated[dict[str, Any] | None, Field(exclude=True)]

# --- in prompts ---


class InputText(Request):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint = None


class InputImage(Request):
    """``image_url`` is an address, or the image itself as a data URL."""

    type: Literal["input_image"]
    image_url: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: str | None = None
    prompt_cache_breakpoint: CacheBreakpoint = None


class InputFile(Request):
    """``file_data`` is a data URL, or base64."""

    type: Literal["input_file"]
    filename: str | None = None
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None
    prompt_cache_breakpoint: CacheBreakpoint = None


class InputSound(Request):
    type: Literal["input_audio"]
    input_audio: InputAudio


class SaidText(Request):
    """A text that a model wrote. The fields after ``text`` are those of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: Parsed = None
    logprobs: Parsed = None
    parsed: Parsed = None


class SaidRefusal(Request):
    type: Literal["refusal"]
    refusal: str


InputPart = Annotated[
    InputText | InputImage | InputFile | InputSound | SaidText | SaidRefusal, Field(discriminator="type")
]
InputParts = Annotated[Items[InputPart], Field(max_length=MAX_PARTS)]


class MessageItem(Request):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | InputParts
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class CallItem(Request):
    """A call of a function, which may be one of a ``namespace``. ``call_id`` is that of its result."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None
    parsed_arguments: Parsed = None
    namespace: str | None = None
    caller: Unused = None


class ResultItem(Request):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | InputParts
    id: str | None = None
    status: Status | None = None
    name: str | None = None
    namespace: str | None = None
    caller: Unused = None


class ReasoningSummary(Request):
    type: Literal["summary_text"]
    text: str


class ReasoningText(Request):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Request):
    """``encrypted_content`` is that of this server's answers; see `api/response_reasoning.py`."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Items[ReasoningSummary] | None = None
    content: Items[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


class ItemReference(Request):
    """An item of a stored response."""

    type: Literal["item_reference"] = "item_reference"
    id: str


def _with_type(value: Any) -> Any:
    """An item with its type, which messages and references may lack."""
    if not isinstance(value, dict) or value.get("type") is not None:
        return value
    kind = "item_reference" if value.keys().isdisjoint(("role", "content")) and "id" in value else "message"
    return {**value, "type": kind}


Item = Annotated[
    MessageItem | CallItem | ResultItem | ReasoningItem | ItemReference,
    Field(discriminator="type"),
    BeforeValidator(_with_type),
]

# --- in answers ---


class OutputText(Reply):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[TokenLogprob]


class OutputMessage(Reply):
    id: str
    type: Literal["message"] = "message"
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputCall(Reply):
    id: str
    type: Literal["function_call"] = "function_call"
    status: Status
    call_id: str
    name: str
    namespace: LeftOut[str] = None
    arguments: str


class SummaryText(Reply):
    type: Literal["summary_text"] = "summary_text"
    text: str


class ThoughtText(Reply):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputReasoning(Reply):
    """``summary`` holds the reasoning if the request asks for a summary, and otherwise ``content`` does."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: Status
    summary: list[SummaryText]
    content: LeftOut[list[ThoughtText]] = None
    encrypted_content: LeftOut[str] = None


OutputItem = OutputMessage | OutputCall | OutputReasoning
