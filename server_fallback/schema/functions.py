"""The functions that a model may call: as tools, and in the older form of OpenAI's API, which is read as tools.

The older form has ``functions`` and ``function_call`` for ``tools`` and ``tool_choice``, ``function_call`` for the call
of a message, and the role "function" for a result. `as_tools` and `as_tool_messages` translate requests while they are
validated, and `with_function_calls` the chunks before it is sent, so that nothing between them knows the older form.
Source: OpenAI's API reference, "Create chat completion", the deprecated parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from nearfar.compiler.runtime.errors import RequestError

from .common import LeftOut, Reply, Request, Unused

if TYPE_CHECKING:
    from .chat import ChatCompletionChunk, ChatCompletionRequest, ChunkChoice, Message

    AnyRequest = TypeVar("AnyRequest", bound=ChatCompletionRequest)
    AnyMessage = TypeVar("AnyMessage", bound=Message)

# The value that a client parsed from a message's text: accepted when it is sent back, and never passed on.
Parsed = Annotated[Any, Field(exclude=True)]


class FunctionCall(Request):
    """The fields after ``arguments`` appear in messages that clients send back."""

    name: str
    arguments: str
    parsed_arguments: Parsed = None
    provider_specific_fields: Unused = None


class ToolCall(Request):
    """The fields after ``function`` appear in messages that clients send back. The calls are in the order of the
    list.
    """

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: Annotated[int | None, Field(exclude=True)] = None
    provider_specific_fields: Unused = None


class PlainFunction(Request):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Function(PlainFunction):
    strict: bool | None = None


class Tool(Request):
    type: Literal["function"]
    function: Function


class NamedFunction(Request):
    name: str


class NamedToolChoice(Request):
    type: Literal["function"]
    function: NamedFunction


class FunctionCallDelta(Reply):
    name: LeftOut[str] = None
    arguments: LeftOut[str] = None


def as_tools(request: AnyRequest) -> AnyRequest:
    """The request with ``functions`` as its tools, of which an answer calls at most one.

    It retains ``functions``, which requests the older form of the answer. Raises RequestError for a request with both
    forms, and for a choice of an unknown function.
    """
    functions, choice = request.functions, request.function_call
    if functions is None and choice is None:
        return request
    newer = [name for name in ("tools", "tool_choice", "parallel_tool_calls") if getattr(request, name)]
    older = "function_call" if functions is None else "functions"
    if newer:
        raise RequestError(
            f"{older} is the older form of tools, and {newer[0]} belongs to the newer one; use one of the two forms",
            param=older,
        )
    names = [function.name for function in functions or ()]
    if isinstance(choice, NamedFunction) and choice.name not in names:
        raise RequestError(
            f"function_call names the function {choice.name!r}, but functions has {', '.join(names) or 'none'}; "
            "name one of functions",
            param="function_call",
        )
    return request.model_copy(
        update={
            "tools": [_tool(function) for function in functions or ()],
            "tool_choice": NamedToolChoice(type="function", function=choice)
            if isinstance(choice, NamedFunction)
            else choice,
            "parallel_tool_calls": False,
        }
    )


def as_tool_messages(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The messages with calls and results of functions as those of tools. A result belongs to the last call of its
    name. Raises RequestError for a message with calls of both forms.
    """
    ids: dict[str | None, str] = {}
    folded = []
    for index, message in enumerate(messages):
        update: Mapping[str, Any] = {}
        # Some chat templates require ids of nine letters and digits.
        new = f"call{index:05d}"
        if (call := message.function_call) is not None:
            if message.tool_calls:
                raise RequestError(
                    f"messages[{index}] has function_call and tool_calls, which mean the same; use one of them",
                    param=f"messages[{index}].function_call",
                )
            ids[call.name] = new
            update = {"function_call": None, "tool_calls": [ToolCall(id=new, function=call)]}
        elif message.role == "function":
            update = {"role": "tool", "tool_call_id": ids.get(message.name, new)}
        folded.append(message.model_copy(update=update) if update else message)
    return folded


def with_function_calls(chunk: ChatCompletionChunk) -> ChatCompletionChunk:
    """The chunk with the first call of each choice in the older form, and without any other call."""
    return chunk.model_copy(update={"choices": [_older(choice) for choice in chunk.choices]})


def _tool(function: PlainFunction) -> Tool:
    given = {name: getattr(function, name) for name in function.model_fields_set}
    return Tool(type="function", function=Function(**given))


def _older(choice: ChunkChoice) -> ChunkChoice:
    update: dict[str, Any] = {}
    if choice.finish_reason == "tool_calls":
        update["finish_reason"] = "function_call"
    if choice.delta.tool_calls is not None:
        called = next((call.function for call in choice.delta.tool_calls if call.index == 0), None)
        update["delta"] = choice.delta.model_copy(update={"tool_calls": None, "function_call": called})
    return choice.model_copy(update=update) if update else choice
