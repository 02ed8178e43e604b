"""Reads a request of /v1/responses as one of a chat.

An assistant's reasoning, message and calls that follow each other become one message of the chat, and each result of a
call one of the role tool. ``instructions`` and the system messages at the beginning become one: many chat templates
know no second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import (
    MAX_MESSAGES,
    ChatCompletionRequest,
    FileData,
    FilePart,
    ImagePart,
    ImageUrl,
    JsonSchema,
    JsonSchemaFormat,
    Message,
    Part,
    RefusalPart,
    SoundPart,
    TextPart,
)
from ..schema.functions import Function, FunctionCall, NamedFunction, NamedToolChoice, Tool, ToolCall
from ..schema.response_items import (
    CallItem,
    InputFile,
    InputImage,
    InputPart,
    InputSound,
    InputText,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
    ResultItem,
    SaidRefusal,
    SaidText,
)
from ..schema.responses import (
    AllowedTools,
    FunctionChoice,
    FunctionTool,
    NamedSchemaFormat,
    NamespaceTool,
    PromptFields,
    ResponseRequest,
    RoutedResponseRequest,
)
from ..schema.routed import ROUTING, RoutedChatRequest, RoutedMessage
from .response_reasoning import reasoning_of
from .translated_chat import TranslatedChat

# Between the texts of system messages that become one.
GAP = "\n\n"
# A chat's parameters -> those of a response.
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "top_logprobs",
}


@dataclass(slots=True)
class _Turn:
    """A message of the chat in the making. Each part comes after its path in the request, and each call after that of
    its item.
    """

    role: str
    path: str
    parts: list[tuple[str, Part]] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, ToolCall]] = field(default_factory=list)
    call_id: str | None = None


def translated(request: PromptFields, earlier: Sequence[Item], own: Sequence[Item]) -> TranslatedChat:
    """``earlier`` are the items of the responses that this one continues, ``own`` those of the request, whose
    references have been resolved. Raises RequestError for a prompt without messages, a result without its call, and
    parts that this server does not read.
    """
    turns = _turns(request.instructions, earlier, own)
    if not turns:
        message = "Missing required parameter: 'input'."
        raise RequestError(message, param="input", code="missing_required_parameter")
    if len(turns) > MAX_MESSAGES:
        raise RequestError(f"input has {len(turns)} messages; at most {MAX_MESSAGES} are supported", param="input")
    tools = _tools(request)
    is_routed = isinstance(request, RoutedResponseRequest)
    given = {
        "model": request.model,
        "messages": [_message(turn, RoutedMessage if is_routed else Message) for turn in turns],
        "tools": None if tools is None else [_tool(each) for each in tools],
        "tool_choice": _choice(request),
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": _format(request),
        "verbosity": None if request.text is None else request.text.verbosity,
        "reasoning_effort": None if request.reasoning is None else request.reasoning.effort,
        **(_sampling(request) if isinstance(request, ResponseRequest) else {}),
    }
    routing = {name: getattr(request, name) for name in ROUTING} if is_routed else {}
    set_values = {name: value for name, value in (given | routing).items() if value is not None}
    chat = (RoutedChatRequest if is_routed else ChatCompletionRequest).model_construct(**set_values)
    return TranslatedChat(chat, _paths(turns, [each.path for each in tools or ()]))


def items_of(given: str | Sequence[Item] | None) -> list[Item]:
    """The items of an ``input``."""
    if isinstance(given, str):
        return [MessageItem(role="user", content=given)]
    return list(given or ())


# --- messages ---


def _turns(instructions: str | None, earlier: Sequence[Item], own: Sequence[Item]) -> list[_Turn]:
    turns = [_Turn("system", "instructions", [("instructions", _text(instructions))])] if instructions else []
    called: set[str] = set()
    placed = [("previous_response_id", item) for item in earlier]
    placed += [(f"input[{index}]", item) for index, item in enumerate(own)]
    is_open = False
    for path, item in placed:
        last = turns[-1] if turns else None
        match item:
            case ReasoningItem():
                text = reasoning_of(item, path)
                if last is None or not is_open or last.parts or last.calls:
                    last = _Turn("assistant", path)
                    turns.append(last)
                last.reasoning += [text] if text else []
            case CallItem(call_id=call_id, arguments=arguments):
                if last is None or not is_open:
                    last = _Turn("assistant", path)
                    turns.append(last)
                called.add(call_id)
                function = FunctionCall(name=joined_name(item.namespace, item.name), arguments=arguments)
                last.calls.append((path, ToolCall(id=call_id, function=function)))
            case MessageItem(role="assistant"):
                if last is None or not is_open or last.parts or last.calls:
                    last = _Turn("assistant", path)
                    turns.append(last)
                last.path, last.parts = path, _parts(item.content, f"{path}.content")
            case MessageItem(role=role):
                _append_message(turns, "system" if role == "developer" else role, item, path)
            case ResultItem():
                turns += _result(item, path, called)
            case ItemReference():
                raise AssertionError("references are resolved before")
        is_open = isinstance(item, ReasoningItem | CallItem) or (
            isinstance(item, MessageItem) and item.role == "assistant"
        )
    # Reasoning that was empty, or left out.
    return [turn for turn in turns if turn.role != "assistant" or turn.parts or turn.calls or turn.reasoning]


def _append_message(turns: list[_Turn], role: str, item: MessageItem, path: str) -> None:
    parts = _parts(item.content, f"{path}.content")
    if role == "system" and len(turns) == 1 and turns[0].role == "system":
        turns[0].parts += [(path, _text(GAP)), *parts]
    else:
        turns.append(_Turn(role, path, parts))


def _result(item: ResultItem, path: str, called: set[str]) -> list[_Turn]:
    """The result, and a user's message with its pictures: templates write none of tools."""
    if item.call_id not in called:
        raise RequestError(
            f"{path}.call_id names no function_call before it; send the call too, or the previous_response_id of the "
            "response that has it",
            param=f"{path}.call_id",
        )
    parts = _parts(item.output, f"{path}.output")
    texts = [each for each in parts if isinstance(each[1], TextPart)]
    others = [each for each in parts if not isinstance(each[1], TextPart)]
    result = _Turn("tool", path, texts or [(path, _text(""))], call_id=item.call_id)
    if not others:
        return [result]
    return [result, _Turn("user", path, [(path, _text(f"[Of the result of {item.call_id}]\n")), *others])]


def _parts(content: str | Sequence[InputPart], path: str) -> list[tuple[str, Part]]:
    if isinstance(content, str):
        return [(path, _text(content))]
    return [(f"{path}[{index}]", _part(part, f"{path}[{index}]")) for index, part in enumerate(content)]


def _part(part: InputPart, path: str) -> Part:
    match part:
        case InputText(text=text) | SaidText(text=text):
            return _text(text)
        case SaidRefusal(refusal=refusal):
            return RefusalPart(type="refusal", refusal=refusal)
        case InputSound(input_audio=sound):
            return SoundPart(type="input_audio", input_audio=sound)
        case InputImage(image_url=url):
            if part.file_id is not None or url is None:
                wrong, right = ("file_id" if part.file_id else "no image_url"), "a data URL as image_url"
                raise RequestError(f"{path} has {wrong}; send {right}", param=path)
            return ImagePart(type="image_url", image_url=ImageUrl(url=url, detail=part.detail))
        case InputFile():
            if part.file_url is not None:
                message = f"{path}.file_url: this server fetches no files; send the file as file_data"
                raise RequestError(message, param=f"{path}.file_url")
            file = FileData(filename=part.filename, file_data=part.file_data, file_id=part.file_id)
            return FilePart(type="file", file=file)


def _text(text: str) -> TextPart:
    return TextPart(type="text", text=text)


def _message(turn: _Turn, kind: type[Message]) -> Message:
    """Texts alone are one text, which every server and template accepts."""
    parts = [part for _, part in turn.parts]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    content: str | list[Part] | None = "".join(texts) if len(texts) == len(parts) else parts
    given: dict[str, Any] = {
        "role": turn.role,
        "content": None if not content and (turn.calls or turn.reasoning) else content,
        "reasoning_content": GAP.join(turn.reasoning) or None,
        "tool_calls": [call for _, call in turn.calls] or None,
        "tool_call_id": turn.call_id,
    }
    return kind.model_construct(**{name: value for name, value in given.items() if value is not None})


def _paths(turns: Sequence[_Turn], tools: Sequence[str]) -> Mapping[str, str]:
    paths = dict(NAMES)
    for index, turn in enumerate(turns):
        name = f"messages[{index}]"
        inside = ".output" if turn.role == "tool" else ".content" if turn.path.startswith("input[") else ""
        paths |= {name: turn.path, f"{name}.content": f"{turn.path}{inside}"}
        for number, (path, part) in enumerate(turn.parts):
            here = f"{name}.content[{number}]"
            inner = {f"{here}.file": path} if isinstance(part, FilePart) else {}
            paths |= {here: path, **inner}
        for number, (path, _) in enumerate(turn.calls):
            here = f"{name}.tool_calls[{number}]"
            paths |= {here: path, f"{here}.function": path}
    for index, path in enumerate(tools):
        paths |= {f"tools[{index}]": path, f"tools[{index}].function": path}
    return paths


# --- parameters ---


def namespaces(request: PromptFields) -> Mapping[str, tuple[str, str]]:
    """The names of functions in a chat -> their namespaces and names."""
    return {
        joined_name(group.name, tool.name): (group.name, tool.name)
        for group in request.tools or ()
        if isinstance(group, NamespaceTool)
        for tool in group.tools
    }


def joined_name(namespace: str | None, name: str) -> str:
    """The name of a function in a chat, which has no namespaces."""
    return name if namespace is None else f"{namespace}__{name}"


class _Function(NamedTuple):
    """A function that may be called. ``about`` describes its namespace."""

    path: str
    name: str
    tool: FunctionTool
    about: str | None = None


def _tools(request: PromptFields) -> list[_Function] | None:
    """Raises RequestError for a choice of other functions."""
    if request.tools is None:
        return None
    functions, choice = list[_Function](), request.tool_choice
    for index, each in enumerate(request.tools):
        path = f"tools[{index}]"
        if isinstance(each, FunctionTool):
            functions.append(_Function(path, each.name, each))
        else:
            functions += [
                _Function(f"{path}.tools[{place}]", joined_name(each.name, tool.name), tool, each.description)
                for place, tool in enumerate(each.tools)
            ]
    if not isinstance(choice, AllowedTools):
        return functions
    allowed = {tool.name for tool in choice.tools}
    if unknown := allowed - {function.name for function in functions}:
        message = f"tool_choice names '{min(unknown)[:64]}', which is none of the tools"
        raise RequestError(message, param="tool_choice")
    return [function for function in functions if function.name in allowed]


def _tool(function: _Function) -> Tool:
    tool = function.tool
    described = "\n".join(text for text in (function.about, tool.description) if text)
    given: dict[str, Any] = {
        "name": function.name,
        "description": described or None,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    set_values = {name: value for name, value in given.items() if value is not None}
    return Tool(type="function", function=Function.model_construct(**set_values))


def _choice(request: PromptFields) -> str | NamedToolChoice | None:
    choice = request.tool_choice
    if isinstance(choice, FunctionChoice):
        return NamedToolChoice(type="function", function=NamedFunction(name=choice.name))
    return choice.mode if isinstance(choice, AllowedTools) else choice


def _format(request: PromptFields) -> Any:
    given = None if request.text is None else request.text.format
    if not isinstance(given, NamedSchemaFormat):
        return given
    described = given.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
    return JsonSchemaFormat(type="json_schema", json_schema=JsonSchema.model_validate(described))


def _sampling(request: ResponseRequest) -> Mapping[str, Any]:
    lists_tokens = request.includes("message.output_text.logprobs") or bool(request.top_logprobs)
    return {
        **{
            name: getattr(request, name)
            for name in ("stream", "temperature", "top_p", "top_k", "min_p", "seed", "priority", "user")
        },
        "max_completion_tokens": request.max_output_tokens,
        "logprobs": lists_tokens or None,
        "top_logprobs": (request.top_logprobs or 0) if lists_tokens else None,
    }
