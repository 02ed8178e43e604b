"""/v1/responses. Source: OpenAI's API reference, "Responses"."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeGuard

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from .chat import MAX_MESSAGES, MAX_TOOLS, JsonObjectFormat, TextFormat
from .common import OF_ACCOUNTS, Exactly, Int64, Items, LeftOut, Reply, Request, SamplingParameters, Unused
from .pipeline import PipelineTrace
from .response_items import Item, OutputItem
from .route import Route, Side
from .routed import Labels, Language, Stake

MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=MAX_KEY)], Annotated[str, Field(max_length=MAX_VALUE)]],
    Field(max_length=MAX_PAIRS),
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]


def _require_function(value: object) -> object:
    """Refuse a tool that runs at OpenAI, or whose calls have another form, by its name."""
    if _is_foreign(value):
        raise PydanticCustomError(
            "not_a_function",
            "tools of type '{kind}' are not supported; declare a tool of type 'function', which your program runs, or "
            "start the server with --lenient, which leaves others out",
            {"kind": value["type"][:64]},
        )
    return value


def _is_foreign(tool: Any) -> TypeGuard[dict[str, str]]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind not in ("function", "namespace")


class FunctionTool(Request):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Exactly[Literal[False]] | None = None
    allowed_callers: Items[Literal["direct"]] | None = None


class NamespaceTool(Request):
    """Functions that belong together, whose calls have the ``namespace``."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[
        Items[Annotated[FunctionTool, BeforeValidator(_require_function)]], Field(min_length=1, max_length=MAX_TOOLS)
    ]


AnyTool = Annotated[FunctionTool | NamespaceTool, Field(discriminator="type"), BeforeValidator(_require_function)]


class FunctionChoice(Request):
    type: Literal["function"]
    name: str


class AllowedTools(Request):
    """Of the tools, only these may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        Items[Annotated[FunctionChoice, BeforeValidator(_require_function)]],
        Field(min_length=1, max_length=MAX_TOOLS),
    ]


ChoiceObject = Annotated[FunctionChoice | AllowedTools, Field(discriminator="type")]


class NamedSchemaFormat(Request):
    type: Literal["json_schema"]
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Request):
    format: Annotated[TextFormat | JsonObjectFormat | NamedSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Request):
    """With ``summary``, the reasoning is the summary of its item: all of it, so a concise one is not supported.
    ``generate_summary`` is its older name.
    """

    effort: Effort | None = None
    summary: Literal["auto", "detailed"] | None = None
    generate_summary: Literal["auto", "detailed"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Request):
    include_obfuscation: Exactly[Literal[False]] = False


class PromptFields(Request):
    """What a request to count tokens has too."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["input"], "properties": {"input": {"type": ["string", "array"]}}},
                {"required": ["instructions"], "properties": {"instructions": {"type": "string"}}},
                {"required": ["previous_response_id"], "properties": {"previous_response_id": {"type": "string"}}},
            ]
        }
    )

    model: str
    """The name of a model, or of a loaded LoRA adapter."""
    input: str | Annotated[Items[Item], Field(max_length=MAX_MESSAGES)] | None = None
    instructions: str | None = None
    """Not carried over to the responses that continue this one."""
    previous_response_id: str | None = None
    """The stored response that this one continues."""
    tools: Annotated[Items[AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """With "auto", the oldest messages are left out of a prompt that does not fit the model's context."""
    conversation: Unused = None

    @classmethod
    def drop_unsupported(cls, body: Any) -> list[list[str | int]]:
        """Leave out the tools that this server does not have, for a lenient one. Returns their paths."""
        tools = body.get("tools") if isinstance(body, dict) else None
        if not isinstance(tools, list):
            return []
        body["tools"] = [tool for tool in tools if not _is_foreign(tool)]
        return [["tools", place] for place, tool in enumerate(tools) if _is_foreign(tool)]


class ResponseRequest(PromptFields, SamplingParameters):
    """Null has the same meaning as a missing key. The fields after ``top_logprobs`` concern OpenAI's accounts; the
    answer repeats them.
    """

    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    """True by default: the response can be read again, and continued."""
    background: bool | None = None
    """The answer goes on while nobody reads it; it needs ``store``."""
    metadata: Metadata | None = None
    include: Annotated[Items[Includable], Field(max_length=64)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    """The most calls of tools that run at the server, which has none."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    priority: Int64 | None = None
    """Extension: if several requests wait, the highest priority runs first; 0 by default."""
    user: str | None = None
    safety_identifier: Annotated[str | None, OF_ACCOUNTS] = None
    service_tier: Annotated[str | None, OF_ACCOUNTS] = None
    prompt_cache_key: Annotated[str | None, OF_ACCOUNTS] = None
    prompt_cache_retention: Annotated[str | None, OF_ACCOUNTS] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, OF_ACCOUNTS] = None
    client_metadata: Annotated[dict[str, Any] | None, OF_ACCOUNTS] = None
    prompt: Unused = None
    context_management: Unused = None

    def includes(self, what: Includable) -> bool:
        return what in (self.include or ())


class RoutedResponseRequest(ResponseRequest):
    """A request to a pair of sides, as `RoutedChatRequest`."""

    labels: Labels | None = None
    pin: Side | None = None
    language: Language | None = None
    stake: Stake | None = None


class InputTokensRequest(PromptFields):
    pass


class InputTokens(Reply):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class InputTokensDetails(Reply):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Reply):
    reasoning_tokens: int = 0


class ResponseUsage(Reply):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    queue_ms: LeftOut[float] = None
    """Extension, as in chats."""


class ResponseError(Reply):
    code: str
    message: str


class IncompleteDetails(Reply):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseObject(Reply):
    """An answer, and what was requested."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str | None
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None
    route: LeftOut[Route] = None
    """Extension, for answers that either of two sides could write."""
    nearfar: LeftOut[PipelineTrace] = None
    """Extension: a pipeline's steps."""
    transcripts: LeftOut[list[dict[str, Any]]] = None
    """Extension: the texts that took the places of the prompt's recordings."""


class InputItemList(Reply):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Reply):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
