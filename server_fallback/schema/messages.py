"""/v1/messages and /v1/messages/count_tokens, as in Anthropic's API.

Source: Anthropic's API reference, "Messages", and the types of its Python package (version 2).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from nearfar.compiler.ir.sampling import TopP

from .chat import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, require_few_parts
from .common import ApiTemperature, Exactly, Items, LeftOut, Reply, Request, Unused
from .limits import MAX_STOPS
from .pipeline import PipelineTrace
from .route import Route, Side
from .routed import Labels, Language, Stake

# --- requests: content ---


class CacheControl(Request):
    """Has no effect: every prefix is cached while there is room."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Request):
    cache_control: CacheControl | None = None


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: Unused = None


class Base64Source(Request):
    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(Request):
    type: Literal["url"]
    url: str


class ImageBlock(Block):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]


class PlainTextSource(Request):
    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class ContentSource(Request):
    type: Literal["content"]
    content: (
        str
        | Annotated[Items[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]], Field(max_length=MAX_PARTS)]
    )


class NoCitations(Request):
    enabled: Exactly[Literal[False]] | None = None


class DocumentBlock(Block):
    type: Literal["document"]
    source: Annotated[Base64Source | PlainTextSource | ContentSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None
    citations: NoCitations | None = None


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        str
        | Annotated[
            Items[Annotated[TextBlock | ImageBlock | DocumentBlock, Field(discriminator="type")]],
            Field(max_length=MAX_PARTS),
        ]
        | None
    ) = None
    is_error: bool | None = None


class ThinkingBlock(Request):
    """``signature`` is not checked: the reasoning is ours, or that of another model."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class DirectCaller(Request):
    type: Literal["direct"]


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller | None = None
    toolset_name: Unused = None


UserBlock = Annotated[TextBlock | ImageBlock | DocumentBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class UserTurn(Request):
    role: Literal["user"]
    content: str | Annotated[Items[UserBlock], Field(max_length=MAX_PARTS)]


class AssistantTurn(Request):
    role: Literal["assistant"]
    content: str | Annotated[Items[AssistantBlock], Field(max_length=MAX_PARTS)]


class SystemTurn(Request):
    role: Literal["system"]
    content: str | Annotated[Items[TextBlock], Field(max_length=MAX_PARTS)]


Turn = UserTurn | AssistantTurn | SystemTurn

# --- requests: tools and parameters ---


def _require_custom(value: object) -> object:
    """Name a tool that Anthropic defines, and of which a model of ours knows no schema."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "custom":
        raise PydanticCustomError(
            "server_tool",
            "'{kind}' is a tool that Anthropic defines, and it does not exist here; give a custom tool with an "
            "input_schema",
            {"kind": kind[:64]},
        )
    return value


class CustomTool(Block):
    """``eager_input_streaming`` has no effect: input is always sent while it is written."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    input_examples: Annotated[Items[dict[str, Any]], Field(max_length=MAX_PARTS)] | None = None
    eager_input_streaming: bool | None = None
    defer_loading: Exactly[Literal[False]] | None = None
    allowed_callers: Annotated[Items[Literal["direct"]], Field(min_length=1, max_length=1)] | None = None


class AutoChoice(Request):
    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Request):
    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class ToolChoice(Request):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class NoneChoice(Request):
    type: Literal["none"]


class ThinkingEnabled(Request):
    """``budget_tokens``: the most tokens of reasoning."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1)]
    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(Request):
    type: Literal["disabled"]


class ThinkingAdaptive(Request):
    """The model decides, as without ``thinking``."""

    type: Literal["adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Request):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Request):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessagesMetadata(Request):
    user_id: str | None = None


class MessagesCountRequest(Request):
    """What makes the prompt. ``cache_control`` and ``speed`` have no effect."""

    model: str
    messages: Annotated[
        Items[Annotated[Turn, Field(discriminator="role")]],
        Field(min_length=1, max_length=MAX_MESSAGES),
        BeforeValidator(require_few_parts),
    ]
    system: str | Annotated[Items[TextBlock], Field(max_length=MAX_PARTS)] | None = None
    tools: (
        Annotated[Items[Annotated[CustomTool, BeforeValidator(_require_custom)]], Field(max_length=MAX_TOOLS)] | None
    ) = None
    tool_choice: Annotated[AutoChoice | AnyChoice | ToolChoice | NoneChoice, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive, Field(discriminator="type")] | None = (
        None
    )
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    speed: Literal["standard"] | None = None


class MessagesRequest(MessagesCountRequest):
    """``service_tier`` has no effect: it concerns Anthropic's accounts."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[Items[str], Field(max_length=MAX_STOPS)] | None = None
    temperature: ApiTemperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    metadata: MessagesMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class RoutedMessagesRequest(MessagesRequest):
    """To a pair of sides (extension); see `RoutedChatRequest`."""

    labels: Labels | None = None
    pin: Side | None = None
    language: Language | None = None
    stake: Stake | None = None


# --- answers ---


class TextContent(Reply):
    """Without ``citations``, which some clients accept as a list or not at all."""

    type: Literal["text"] = "text"
    text: str


class ThinkingContent(Reply):
    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseContent(Reply):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class OutputTokensDetails(Reply):
    thinking_tokens: int


class MessagesUsage(Reply):
    """The prompt has ``input_tokens`` and ``cache_read_input_tokens``."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int
    output_tokens_details: LeftOut[OutputTokensDetails] = None


class MessagesAnswer(Reply):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Annotated[TextContent | ThinkingContent | ToolUseContent, Field(discriminator="type")]]
    stop_reason: str | None = None
    """Null at the start of a stream. Another server's own reason reaches the client unchanged."""
    stop_sequence: str | None = None
    stop_details: None = None
    usage: MessagesUsage
    route: LeftOut[Route] = None
    """Extension, for answers that either of two sides could write."""
    nearfar: LeftOut[PipelineTrace] = None
    """Extension: a pipeline's steps."""


class MessagesCount(Reply):
    input_tokens: int


class AnthropicErrorDetails(Reply):
    """``error_code`` and ``param`` are those of OpenAI's form; ``confirm`` and ``masked`` are explained there."""

    error_code: LeftOut[str] = None
    param: LeftOut[str] = None
    confirm: LeftOut[str] = None
    masked: LeftOut[list[Any]] = None


class AnthropicErrorObject(Reply):
    type: str
    message: str
    details: LeftOut[AnthropicErrorDetails] = None


class AnthropicError(Reply):
    type: Literal["error"] = "error"
    error: AnthropicErrorObject
