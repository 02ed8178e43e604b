"""Reads a request in Anthropic's form as one of a chat, so that executors and the router know one form of chats.

A message with results of tools becomes one message of the role tool for each, followed by the rest of it. Consecutive
turns of one role become one. `TranslatedChat.paths` says where each part of the chat comes from, for errors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import (
    ChatCompletionRequest,
    FileData,
    FilePart,
    ImagePart,
    ImageUrl,
    JsonSchema,
    JsonSchemaFormat,
    Message,
    Part,
    TextPart,
)
from ..schema.functions import Function, FunctionCall, NamedFunction, NamedToolChoice, Tool, ToolCall
from ..schema.messages import (
    AnyChoice,
    AssistantTurn,
    Base64Source,
    ContentSource,
    CustomTool,
    DocumentBlock,
    ImageBlock,
    MessagesCountRequest,
    MessagesRequest,
    NoneChoice,
    RoutedMessagesRequest,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoice,
    ToolResultBlock,
    UserTurn,
)
from ..schema.routed import ROUTING, RoutedChatRequest
from .thinking import SWITCH
from .translated_chat import TranslatedChat

# Between the texts of turns that become one.
TURN_GAP = "\n\n"
FAILED = "[The tool failed]\n"
# A chat's parameters -> Anthropic's.
NAMES = {
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "chat_template_kwargs": "thinking",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "continue_final_message": "messages",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "user": "metadata.user_id",
}


@dataclass(slots=True)
class _Turn:
    """A message of the chat in the making. Each part comes after its path in the request."""

    role: str
    path: str
    parts: list[tuple[str, Part]] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    call_id: str | None = None


def translated(request: MessagesCountRequest) -> TranslatedChat:
    """Raises RequestError for a result without its call, and for an answer that cannot be continued."""
    turns = _turns(request)
    paths, messages = dict(NAMES), []
    for index, turn in enumerate(turns):
        name = f"messages[{index}]"
        paths[name] = turn.path
        for number, (path, part) in enumerate(turn.parts):
            here = f"{name}.content[{number}]"
            inner = "image_url" if isinstance(part, ImagePart) else "file"
            paths |= {here: path, f"{here}.{inner}": f"{path}.source"}
        messages.append(_message(turn))
    for index, _ in enumerate(request.tools or ()):
        own = f"tools[{index}]"
        paths |= {f"{own}.function": own, f"{own}.function.parameters": f"{own}.input_schema"}
    thinking = request.thinking
    paths["reasoning_effort"] = "thinking" if isinstance(thinking, ThinkingDisabled) else "output_config.effort"
    given = {
        "model": request.model,
        "messages": messages,
        "tools": None if request.tools is None else [_tool(tool) for tool in request.tools],
        **_choice(request),
        **_thinking(request),
        "response_format": _format(request),
        "continue_final_message": _continues(turns) or None,
        **(_sampling(request) if isinstance(request, MessagesRequest) else {}),
    }
    routing = {name: getattr(request, name) for name in ROUTING} if isinstance(request, RoutedMessagesRequest) else {}
    kind = RoutedChatRequest if routing else ChatCompletionRequest
    set_values = {name: value for name, value in (given | routing).items() if value is not None}
    return TranslatedChat(kind.model_construct(**set_values), paths)


def as_chat(request: MessagesCountRequest) -> ChatCompletionRequest:
    """Raises the errors of `translated`."""
    return translated(request).chat


def renamed(request: MessagesCountRequest, error: RequestError) -> RequestError:
    """The error with the name that its parameter has in the request."""
    return translated(request).renamed(error)


# --- messages ---


def _turns(request: MessagesCountRequest) -> list[_Turn]:
    turns: list[_Turn] = []
    if request.system:
        turns.append(_Turn("system", "system", _texts(request.system, "system")))
    called: set[str] = set()
    for index, turn in enumerate(request.messages):
        path = f"messages[{index}]"
        if isinstance(turn, AssistantTurn):
            read = [_assistant(turn, path)]
            called |= {call.id for call in read[0].calls}
        elif isinstance(turn, SystemTurn):
            read = [_Turn("system", path, _texts(turn.content, f"{path}.content"))]
        else:
            read = _user(turn, path, called)
        for each in read:
            _append(turns, each)
    return turns


def _append(turns: list[_Turn], turn: _Turn) -> None:
    last = turns[-1] if turns else None
    if last is None or last.role != turn.role or turn.role == "tool":
        turns.append(turn)
        return
    gap: list[tuple[str, Part]] = [(turn.path, _text(TURN_GAP))] if last.parts and turn.parts else []
    last.parts += [*gap, *turn.parts]
    last.reasoning += turn.reasoning
    last.calls += turn.calls


def _texts(content: str | Sequence[TextBlock], path: str) -> list[tuple[str, Part]]:
    if isinstance(content, str):
        return [(path, _text(content))]
    return [(f"{path}[{index}]", _text(block.text)) for index, block in enumerate(content)]


def _assistant(turn: AssistantTurn, path: str) -> _Turn:
    if isinstance(turn.content, str):
        return _Turn("assistant", path, _texts(turn.content, f"{path}.content"))
    read = _Turn("assistant", path)
    for index, block in enumerate(turn.content):
        if isinstance(block, TextBlock):
            read.parts.append((f"{path}.content[{index}]", _text(block.text)))
        elif isinstance(block, ThinkingBlock):
            read.reasoning += [block.thinking] if block.thinking else []
        else:
            arguments = json.dumps(block.input, ensure_ascii=False)
            read.calls.append(ToolCall(id=block.id, function=FunctionCall(name=block.name, arguments=arguments)))
    return read


def _user(turn: UserTurn, path: str, called: set[str]) -> list[_Turn]:
    """The results of tools, which are messages of their own, then the rest. ``called``: the calls of earlier turns."""
    if isinstance(turn.content, str):
        return [_Turn("user", path, _texts(turn.content, f"{path}.content"))]
    results: list[_Turn] = []
    rest: list[tuple[str, Part]] = []
    for index, block in enumerate(turn.content):
        where = f"{path}.content[{index}]"
        if isinstance(block, ToolResultBlock):
            if block.tool_use_id not in called:
                name = f"{where}.tool_use_id"
                raise RequestError(f"{name} names no tool_use of an earlier assistant's message; send it", param=name)
            result, images = _result(block, where)
            results.append(result)
            rest += images
        else:
            rest += _parts(block, where)
    return [*results, _Turn("user", path, rest)] if rest or not results else results


def _result(block: ToolResultBlock, path: str) -> tuple[_Turn, list[tuple[str, Part]]]:
    """The result, and its images, which a user's message has: templates write no images of tools."""
    content = block.content or ""
    read = [
        part
        for index, inner in enumerate([] if isinstance(content, str) else content)
        for part in _parts(inner, f"{path}.content[{index}]")
    ]
    if isinstance(content, str):
        read = [(f"{path}.content", _text(content))]
    images = [each for each in read if isinstance(each[1], ImagePart)]
    parts = [each for each in read if not isinstance(each[1], ImagePart)]
    if block.is_error:
        parts.insert(0, (f"{path}.is_error", _text(FAILED)))
    if images:
        images.insert(0, (path, _text(f"[Images of the result of {block.tool_use_id}]\n")))
    return _Turn("tool", path, parts, call_id=block.tool_use_id), images


def _parts(block: TextBlock | ImageBlock | DocumentBlock, path: str) -> list[tuple[str, Part]]:
    if isinstance(block, TextBlock):
        return [(path, _text(block.text))]
    if isinstance(block, ImageBlock):
        return [(path, _image(block))]
    return [(path, part) for part in _document(block)]


def _document(block: DocumentBlock) -> list[Part]:
    """The file, or its text between two lines that say so."""
    source = block.source
    context: list[Part] = [_text(f"{block.context}\n")] if block.context else []
    if isinstance(source, Base64Source):
        file = FileData(filename=block.title, file_data=f"data:{source.media_type};base64,{source.data}")
        return [*context, FilePart(type="file", file=file)]
    name = "Document" if not block.title else f"Document: {' '.join(block.title.split())}"
    inner: list[Part]
    if isinstance(source, ContentSource) and not isinstance(source.content, str):
        inner = [_text(each.text) if isinstance(each, TextBlock) else _image(each) for each in source.content]
    else:
        inner = [_text(source.content if isinstance(source, ContentSource) else source.data)]  # type: ignore[arg-type]
    return [_text(f"[{name}]\n"), *context, *inner, _text(f"\n[End of {name}]\n")]


def _image(block: ImageBlock) -> ImagePart:
    source = block.source
    url = f"data:{source.media_type};base64,{source.data}" if isinstance(source, Base64Source) else source.url
    return ImagePart(type="image_url", image_url=ImageUrl(url=url))


def _text(text: str) -> TextPart:
    return TextPart(type="text", text=text)


def _message(turn: _Turn) -> Message:
    """Texts alone are one text, which every server and template accepts."""
    parts = [part for _, part in turn.parts]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    content: str | list[Part] | None = "".join(texts) if len(texts) == len(parts) else parts
    given: dict[str, Any] = {
        "role": turn.role,
        "content": None if not content and (turn.calls or turn.reasoning) else content,
        "reasoning_content": "\n".join(turn.reasoning) or None,
        "tool_calls": turn.calls or None,
        "tool_call_id": turn.call_id,
    }
    return Message.model_construct(**{name: value for name, value in given.items() if value is not None})


def _continues(turns: Sequence[_Turn]) -> bool:
    """Whether the last turn is the start of the answer. Raises RequestError for one that has no end."""
    last = turns[-1]
    if last.role != "assistant":
        return False
    if last.calls:
        raise RequestError(
            f"{last.path} ends the messages and has tool_use; add a user's message with its tool_result",
            param=last.path,
        )
    return True


# --- parameters ---


def _tool(tool: CustomTool) -> Tool:
    schema = tool.input_schema
    if tool.input_examples:
        # JSON Schema's own word for them.
        schema = {"examples": tool.input_examples, **schema}
    given: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": schema}
    given["strict"] = tool.strict
    function = Function.model_construct(**{name: value for name, value in given.items() if value is not None})
    return Tool.model_construct(type="function", function=function)


def _choice(request: MessagesCountRequest) -> dict[str, Any]:
    choice = request.tool_choice
    if choice is None:
        return {}
    if isinstance(choice, NoneChoice):
        return {"tool_choice": "none"}
    parallel = None if choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use
    if isinstance(choice, ToolChoice):
        named = NamedToolChoice(type="function", function=NamedFunction(name=choice.name))
        return {"tool_choice": named, "parallel_tool_calls": parallel}
    return {"tool_choice": "required" if isinstance(choice, AnyChoice) else "auto", "parallel_tool_calls": parallel}


def _thinking(request: MessagesCountRequest) -> dict[str, Any]:
    effort = None if request.output_config is None else request.output_config.effort
    if isinstance(request.thinking, ThinkingDisabled):
        return {"reasoning_effort": "none"}
    if isinstance(request.thinking, ThinkingEnabled):
        switch = {"chat_template_kwargs": {SWITCH: True}}
        return {**switch, "thinking_token_budget": request.thinking.budget_tokens, "reasoning_effort": effort}
    return {"reasoning_effort": effort}


def _format(request: MessagesCountRequest) -> JsonSchemaFormat | None:
    form = None if request.output_config is None else request.output_config.format
    if form is None:
        return None
    described = JsonSchema.model_construct(name="answer", schema_=form.schema_, strict=True)
    return JsonSchemaFormat.model_construct(type="json_schema", json_schema=described)


def _sampling(request: MessagesRequest) -> dict[str, Any]:
    return {
        "max_tokens": request.max_tokens,
        "stream": request.stream,
        "stop": request.stop_sequences or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "user": None if request.metadata is None else request.metadata.user_id,
    }
