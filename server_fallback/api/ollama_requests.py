"""Translates requests of Ollama's API into ours, which executors answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.store.parameters import Parameters

from ..executors.executor import Abilities, Executor, HasStored, TellsAbilities
from ..schema.chat import ChatCompletionRequest, ImagePart, ImageUrl, Message, Part, TextPart
from ..schema.completions import CompletionRequest
from ..schema.functions import FunctionCall, Tool, ToolCall
from ..schema.ollama import CalledTool, OllamaChatRequest, OllamaGenerateRequest, OllamaMessage, OllamaRequest
from .validation import dotted

Made = TypeVar("Made", ChatCompletionRequest, CompletionRequest)
# What Ollama samples with if neither a request nor its model says otherwise (docs/modelfile.mdx, "PARAMETER").
DEFAULTS = Parameters(temperature=0.8, top_p=0.9)
# An extension of OpenAI's API, which other servers may not have.
DEFAULT_TOP_K = Parameters(top_k=40)
# The base64 of the first bytes of files. Their exact type is found when they are decoded.
IMAGE_TYPES = {"/9j/": "jpeg", "iVBOR": "png", "UklGR": "webp", "R0lGO": "gif", "Qk": "bmp"}


def chat_request(body: OllamaChatRequest, executor: Executor) -> ChatCompletionRequest:
    """Raises RequestError for what the model cannot do."""
    return _chat(body, executor, _messages(body.messages or ()), body.tools)


def generate_request(body: OllamaGenerateRequest, executor: Executor) -> ChatCompletionRequest:
    """A prompt with the chat template. Raises RequestError for what the model cannot do."""
    system = [] if body.system is None else [Message(role="system", content=body.system)]
    user = Message(role="user", content=_content(body.prompt or "", body.images))
    variables: dict[str, Any] | None = None
    if body.suffix:
        stored = executor.stored if isinstance(executor, HasStored) else None
        if stored is None or stored.template is None or "suffix" not in stored.template.lower():
            raise RequestError(
                "suffix: this model's template has no place for a suffix; create a model whose TEMPLATE has one, or "
                "send raw: true with the model's own marks for a gap in the prompt",
                param="suffix",
            )
        variables = {"prompt": body.prompt or "", "suffix": body.suffix}
    return _chat(body, executor, [*system, user], None, variables)


def raw_request(body: OllamaGenerateRequest, executor: Executor) -> CompletionRequest:
    """A text that is continued, with the control tokens that it spells. Raises RequestError."""
    given = {"system": body.system, "suffix": body.suffix, "images": body.images, "think": body.think}
    for name, value in given.items():
        if value:
            raise RequestError(
                f"{name} needs the chat template, which raw switches off; use one of the two", param=name
            )
    fields = _fields(body, executor)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _made(
        CompletionRequest, fields | {"prompt": body.prompt, "split_special_tokens": False, "logprobs": logprobs}
    )


def _chat(
    body: OllamaRequest,
    executor: Executor,
    messages: Sequence[Message],
    tools: Sequence[Any] | None,
    variables: dict[str, Any] | None = None,
) -> ChatCompletionRequest:
    fields = _fields(body, executor) | {"messages": list(messages)}
    if tools:
        fields["tools"] = [Tool(type="function", function=tool.function) for tool in tools]
    if body.logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    fields |= _thinking(body, executor)
    if variables is not None:
        fields["chat_template_kwargs"] = {**fields.get("chat_template_kwargs", {}), **variables}
    return _made(ChatCompletionRequest, fields)


def _fields(body: OllamaRequest, executor: Executor) -> dict[str, Any]:
    options = body.options or Parameters()
    if options.num_ctx is not None and executor.context and options.num_ctx > executor.context:
        raise RequestError(
            f"options.num_ctx is {options.num_ctx}, but {body.model} was loaded with a context of {executor.context} "
            "tokens; create a model with PARAMETER num_ctx, or start the server with --context",
            param="options.num_ctx",
        )
    stored = executor.stored if isinstance(executor, HasStored) else None
    chosen = options.over(Parameters() if stored is None else stored.parameters).over(DEFAULTS)
    if isinstance(executor, TellsAbilities):
        chosen = chosen.over(DEFAULT_TOP_K)
    fields = chosen.fields() | {"model": body.model, "stream": body.stream is not False}
    if body.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(body.format, dict):
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": body.format}}
    return fields


def _thinking(body: OllamaRequest, executor: Executor) -> dict[str, Any]:
    if body.think is None:
        return {}
    if body.think is False:
        return {"reasoning_effort": "none"}
    abilities = abilities_of(executor)
    if abilities is not None and not abilities.thinks:
        raise RequestError(f"think: {body.model} does not reason before it answers; leave it out", param="think")
    return (
        {"chat_template_kwargs": {"enable_thinking": True}} if body.think is True else {"reasoning_effort": body.think}
    )


def abilities_of(executor: Executor) -> Abilities | None:
    return executor.abilities() if isinstance(executor, TellsAbilities) else None


def _messages(given: Sequence[OllamaMessage]) -> list[Message]:
    """Calls get ids, to which their results refer."""
    messages, open_calls = list[Message](), list[tuple[str, str]]()
    for index, each in enumerate(given):
        content = _content(each.content, each.images)
        if each.role == "tool":
            messages.append(Message(role="tool", content=content or "", tool_call_id=_called(each, open_calls, index)))
            continue
        calls = [_call(call, index, number) for number, call in enumerate(each.tool_calls or ())]
        open_calls += [(call.id, call.function.name) for call in calls]
        messages.append(
            Message(
                role=each.role,
                content=content if content is not None or calls or each.thinking else "",
                name=each.name,
                reasoning_content=each.thinking,
                tool_calls=calls or None,
            )
        )
    return messages


def _call(call: CalledTool, index: int, number: int) -> ToolCall:
    # Some chat templates require ids of nine letters and digits.
    name, arguments = call.function.name, json.dumps(call.function.arguments, ensure_ascii=False)
    return ToolCall(id=call.id or f"c{index:04d}{number:04d}", function=FunctionCall(name=name, arguments=arguments))


def _called(message: OllamaMessage, open_calls: list[tuple[str, str]], index: int) -> str:
    """The id of the call that a result belongs to, which is not open any more."""
    if message.tool_call_id is not None:
        open_calls[:] = [call for call in open_calls if call[0] != message.tool_call_id]
        return message.tool_call_id
    name = message.tool_name or message.name
    found = next((call for call in open_calls if name in (None, call[1])), None)
    if found is None:
        return f"c{index:04d}0000"
    open_calls.remove(found)
    return found[0]


def _content(text: str | None, images: Sequence[str] | None) -> str | list[Part] | None:
    if not images:
        return text
    parts: list[Part] = [
        ImagePart(type="image_url", image_url=ImageUrl(url=f"data:{_type_of(data)};base64,{data}")) for data in images
    ]
    return [*parts, TextPart(type="text", text=text)] if text else parts


def _type_of(data: str) -> str:
    kind = next((kind for begin, kind in IMAGE_TYPES.items() if data.startswith(begin)), None)
    return "" if kind is None else f"image/{kind}"


def _made(kind: type[Made], fields: dict[str, Any]) -> Made:
    """Raises RequestError for a request that is larger than ours may be."""
    try:
        return kind(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = dotted([part for part in first["loc"] if isinstance(part, str | int)])
        raise RequestError(f"{where}: {first['msg']}", param=where) from error
