"""/v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from .common import (
    EXTENSION,
    EXTENSION_IF_SET,
    OF_ACCOUNTS,
    FinishReason,
    GenerationRequest,
    IfRequested,
    Items,
    LeftOut,
    PromptLogprobs,
    Reply,
    Request,
    StopReason,
    TokenLogprob,
    Unused,
    Usage,
)
from .functions import (
    FunctionCall,
    FunctionCallDelta,
    NamedFunction,
    NamedToolChoice,
    Parsed,
    PlainFunction,
    Tool,
    ToolCall,
    as_tool_messages,
    as_tools,
)
from .pipeline import PipelineTrace
from .receipt import AnswerPart, SignedReceipt
from .route import Route

# Far above what applications send: without bounds, one body of 4 MB occupies the event loop for hundreds of
# milliseconds.
MAX_MESSAGES = 4096
MAX_PARTS = 1024
# Parts and tool calls of all messages together.
MAX_ALL_PARTS = 16_384
MAX_TOOL_CALLS = 1024
MAX_TOOLS = 1024
# Of a video that is sent as frames.
MAX_FRAMES = 256


class TextPart(Request):
    type: Literal["text"]
    text: str


class ImageUrl(Request):
    """``url`` is an address, or the image itself as a data URL."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Request):
    type: Literal["image_url"]
    image_url: ImageUrl


class VideoUrl(Request):
    """``url`` is an address, or the video itself as a data URL."""

    url: str


class VideoPart(Request):
    type: Literal["video_url"]
    video_url: VideoUrl


class FramesPart(Request):
    """A video as its frames, each an address or a data URL of an image, of which a second has ``fps``."""

    type: Literal["video"]
    frames: Annotated[Items[str], Field(min_length=1, max_length=MAX_FRAMES)]
    fps: Annotated[float, Field(gt=0, le=240, allow_inf_nan=False)]


class RefusalPart(Request):
    """Of an assistant's message that OpenAI's models wrote. No template knows it, so only a far side may accept it."""

    type: Literal["refusal"]
    refusal: str


class InputAudio(Request):
    """``data`` is base64."""

    data: str
    format: Literal["wav", "mp3"]


class SoundPart(Request):
    type: Literal["input_audio"]
    input_audio: InputAudio


class FileData(Request):
    """``file_data`` is a data URL, or base64. Files that were sent before, by ``file_id``, are for a far side alone."""

    filename: str | None = None
    file_data: str | None = None
    file_id: str | None = None


class FilePart(Request):
    type: Literal["file"]
    file: FileData


Part = Annotated[
    TextPart | ImagePart | VideoPart | FramesPart | SoundPart | FilePart | RefusalPart, Field(discriminator="type")
]
# Those that a model reads with its tower.
SeenPart: TypeAlias = ImagePart | VideoPart | FramesPart


def require_few_parts(messages: object) -> object:
    """Reject messages with too many parts and calls in total, before each is validated."""
    if isinstance(messages, list) and len(messages) <= MAX_MESSAGES:
        lists = (
            message.get(key) for message in messages if isinstance(message, dict) for key in ("content", "tool_calls")
        )
        count = sum(len(each) for each in lists if isinstance(each, list))
        if count > MAX_ALL_PARTS:
            raise PydanticCustomError(
                "too_long", f"{count} parts and tool calls in total; at most {MAX_ALL_PARTS} are supported"
            )
    return messages


class Message(Request):
    """``content`` is text, or parts: texts, files of text, and images, videos and sound for servers that read them. The
    fields after ``refusal`` appear in messages that clients send back.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[Items[Part], Field(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[Items[ToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    refusal: str | None = None
    # The older form of ``tool_calls``; see `functions`.
    function_call: Annotated[FunctionCall | None, Field(exclude=True)] = None
    parsed: Parsed = None
    annotations: Parsed = None
    audio: Unused = None
    # DeepSeek's name, and vLLM's newer one.
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking_blocks: Unused = None
    provider_specific_fields: Unused = None

    @property
    def text(self) -> str:
        """All of its text, with the parts joined as chat templates receive them."""
        content = self.content
        return (
            content
            if isinstance(content, str)
            else "".join(part.text for part in content or () if isinstance(part, TextPart))
        )

    @property
    def images(self) -> list[SeenPart]:
        """Its pictures and videos."""
        return [part for part in self.content if isinstance(part, SeenPart)] if isinstance(self.content, list) else []


AnyMessage = TypeVar("AnyMessage", bound=Message)
Messages = Annotated[
    Items[AnyMessage],
    Field(min_length=1, max_length=MAX_MESSAGES),
    BeforeValidator(require_few_parts),
    AfterValidator(as_tool_messages),
]


class JsonSchema(Request):
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextFormat(Request):
    type: Literal["text"]


class JsonObjectFormat(Request):
    type: Literal["json_object"]


class JsonSchemaFormat(Request):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class RegexFormat(Request):
    """Extension."""

    type: Literal["regex"]
    pattern: str


class GrammarFormat(Request):
    """Extension: an EBNF grammar that starts at the rule root."""

    type: Literal["grammar"]
    grammar: str


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat, Field(discriminator="type")
]


class ChatCompletionRequest(GenerationRequest):
    """``user`` and ``metadata`` to ``prediction`` are accepted and have no effect: they concern OpenAI's accounts, or
    speed alone.

    ``text/thinking.py`` states how ``chat_template_kwargs``, ``enable_thinking``, ``reasoning_effort``,
    ``thinking_token_budget`` and ``verbosity`` reach the chat template, and how they limit the reasoning.
    """

    messages: Messages[Message]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[Items[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Items[PlainFunction] | None, Field(max_length=MAX_TOOLS, exclude=True)] = None
    """The older form of ``tools``: answers have at most one call, as ``function_call``."""
    function_call: Annotated[Literal["none", "auto"] | NamedFunction | None, Field(exclude=True)] = None
    """The older form of ``tool_choice``."""
    metadata: Annotated[dict[str, str] | None, OF_ACCOUNTS] = None
    store: Annotated[bool | None, OF_ACCOUNTS] = None
    service_tier: Annotated[str | None, OF_ACCOUNTS] = None
    safety_identifier: Annotated[str | None, OF_ACCOUNTS] = None
    prompt_cache_key: Annotated[str | None, OF_ACCOUNTS] = None
    prompt_cache_retention: Annotated[str | None, OF_ACCOUNTS] = None
    prediction: Annotated[dict[str, Any] | None, OF_ACCOUNTS] = None
    modalities: Annotated[Items[Literal["text"]] | None, OF_ACCOUNTS] = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """Switches the reasoning off ("none", "minimal") or bounds it; the chat template gets it as a variable."""
    verbosity: Literal["low", "medium", "high"] | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, EXTENSION_IF_SET] = None
    """Extension of vLLM's: variables of the chat template."""
    thinking_token_budget: Annotated[Annotated[int, Field(ge=0)] | None, EXTENSION] = None
    """Extension of vLLM's: the most tokens of reasoning."""
    enable_thinking: Annotated[bool | None, EXTENSION] = None
    """Extension: the chat template's variable of this name."""
    continue_final_message: Annotated[bool | None, EXTENSION_IF_SET] = None
    """Extension: the last message is the start of the answer, and the model continues it."""

    @model_validator(mode="after")
    def _with_tools(self) -> Self:
        return as_tools(self)


class ChatLogprobs(Reply):
    content: list[TokenLogprob] | None = None
    refusal: None = None


class ToolCallDelta(Reply):
    index: int
    id: LeftOut[str] = None
    type: LeftOut[Literal["function"]] = None
    function: LeftOut[FunctionCallDelta] = None


def as_objects(value: object) -> object:
    """None for another server's field of the same name."""
    return value if isinstance(value, list) and all(isinstance(each, dict) for each in value) else None


class Delta(Reply):
    role: LeftOut[Literal["assistant"]] = None
    content: LeftOut[str] = None
    reasoning_content: Annotated[
        LeftOut[str], Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))
    ] = None
    """Extension: the model's reasoning before its answer, without the markers. vLLM calls it ``reasoning``."""
    tool_calls: LeftOut[list[ToolCallDelta]] = None
    function_call: LeftOut[FunctionCallDelta] = None
    """The call, if the request has ``functions``."""
    annotations: Annotated[LeftOut[list[dict[str, Any]]], BeforeValidator(as_objects)] = None
    """Citations of a far server that searches the web, as it writes them."""


class ChunkChoice(Reply):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None
    token_ids: LeftOut[list[int]] = None
    """Extension, if requested."""

    @property
    def has_text(self) -> bool:
        """Text, reasoning, or a part of a call."""
        return bool(
            self.delta.content or self.delta.reasoning_content or self.delta.tool_calls or self.delta.function_call
        )


class SoundTranscript(Reply):
    """What a transcriber wrote down of a recording: ``param`` is the part that has it, ``seconds`` its length, and
    ``language`` null for transcribers of one language.
    """

    param: str
    text: str
    language: str | None
    seconds: float


class ChatCompletionChunk(Reply):
    """With stream_options.include_usage, ``usage`` is null except in the last chunk, which has no choices. The answer
    of a pair of sides has the route in its first chunk, the first after a switch, and the last.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: IfRequested[Usage | None] = None
    prompt_token_ids: LeftOut[list[int]] = None
    """Extension, if requested."""
    prompt_logprobs: LeftOut[PromptLogprobs] = None
    """Extension, if requested."""
    transcripts: LeftOut[list[SoundTranscript]] = None
    """Extension: the texts that took the places of the prompt's recordings."""
    route: LeftOut[Route] = None
    """Extension, for answers that either of two sides could write."""
    receipts: LeftOut[list[SignedReceipt]] = None
    parts: LeftOut[list[AnswerPart]] = None
    """Extension, if requested: of each side that wrote a part of the answer."""
    nearfar: LeftOut[PipelineTrace] = None
    """Extension: a pipeline's steps."""
    num_prompt_tokens: Annotated[int | None, Field(exclude=True)] = None
    """In the first chunk of our own engine. It is never sent: other forms of answers report it at their start."""


class AnswerFunction(Reply):
    name: str
    arguments: str


class AnswerToolCall(Reply):
    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class AnswerMessage(Reply):
    role: Literal["assistant"] = "assistant"
    content: str | None = None
    reasoning_content: LeftOut[str] = None
    """Extension: the model's reasoning before its answer, without the markers."""
    refusal: None = None
    tool_calls: LeftOut[list[AnswerToolCall]] = None
    function_call: LeftOut[AnswerFunction] = None
    """The call, if the request has ``functions``."""
    annotations: LeftOut[list[dict[str, Any]]] = None
    """Citations of a far server that searches the web, as it writes them."""


class ChatChoice(Reply):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: StopReason = None
    token_ids: LeftOut[list[int]] = None
    """Extension, if requested."""


class ChatCompletion(Reply):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: LeftOut[list[int]] = None
    """Extension, if requested."""
    prompt_logprobs: LeftOut[PromptLogprobs] = None
    """Extension, if requested: by token id, for each token of the prompt; the first has none."""
    transcripts: LeftOut[list[SoundTranscript]] = None
    """Extension: the texts that took the places of the prompt's recordings."""
    route: LeftOut[Route] = None
    """Extension, for answers that either of two sides could write."""
    receipts: LeftOut[list[SignedReceipt]] = None
    parts: LeftOut[list[AnswerPart]] = None
    """Extension, if requested: of each side that wrote a part of the answer."""
    nearfar: LeftOut[PipelineTrace] = None
    """Extension: a pipeline's steps."""
