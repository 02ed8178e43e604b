"""/v1/messages: the chunks of a chat as Anthropic's events, or added up to its message; /v1/messages/count_tokens.

Source: Anthropic's documentation, "Streaming messages", "Errors" and "Beta headers".
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers

from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import ChatCompletionChunk, ChunkChoice, ToolCallDelta
from ..schema.common import Usage
from ..schema.fold import cut_off, withdraws
from ..schema.messages import (
    AnthropicError,
    AnthropicErrorDetails,
    AnthropicErrorObject,
    MessagesAnswer,
    MessagesCount,
    MessagesCountRequest,
    MessagesRequest,
    MessagesUsage,
    OutputTokensDetails,
    RoutedMessagesRequest,
)
from ..schema.route import Route
from ..text.messages_form import as_chat, renamed
from ..text.output import Encode
from ..text.translated_chat import tokenize_request
from .document import in_json
from .errors import ApiError
from .exchange import Exchange, exchange_of
from .generation import Kind
from .json_body import printable
from .lenient import IGNORED_HEADER, ignored_header
from .route import EVERYWHERE, WITH_BODY, Responses, keyed_router, post
from .service import Service
from .sse import EventForm

VERSIONS = ("2026-10-21", "2023-06-01")
# Betas without a date that ask for what is always so here, or only allow parameters, each of which is read or refused.
BETAS = frozenset({
    "adaptive-thinking", "advanced-tool-use", "claude-code", "context-1m", "context-management", "dev-full-thinking",
    "effort", "extended-cache-ttl", "fine-grained-tool-streaming", "interleaved-thinking", "max-tokens-3-5-sonnet",
    "messages", "model-context-window-exceeded", "output-128k", "output-300k", "pdfs", "prompt-caching",
    "prompt-caching-scope", "structured-outputs", "token-counting", "token-efficient-tools", "tools",
})  # fmt: skip
DATE = re.compile(r"-\d{4}-?\d{2}-?\d{2}$")
# A client sends it back with the reasoning. Some leave out reasoning without any.
SIGNATURE = "unsigned"
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
EXTENSIONS = ("route", "nearfar")
# What Anthropic's documentation calls the object for input that is not JSON.
NOT_JSON = "INVALID_JSON"
ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 409: "conflict_error", 413: "request_too_large", 415: "invalid_request_error",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
# The wording of `text.requests.context_overflow`, whose numbers clients look for in Anthropic's.
OVERFLOW = re.compile(r"maximum context length is (\d+) tokens\. However, \S+ has (?:at least )?(\d+) tokens")


def anthropic_error(error: ApiError) -> bytes:
    told = error.body().error
    kind = "timeout_error" if told.type == "timeout_error" else ERROR_TYPES.get(error.status)
    kind = kind or ("invalid_request_error" if error.status < 500 else "api_error")
    message = told.message
    if told.code == "context_length_exceeded" and (found := OVERFLOW.search(message)) is not None:
        message = f"prompt is too long: {found[2]} tokens > {found[1]} maximum"
    details = AnthropicErrorDetails(
        error_code=told.code,
        param=told.param,
        confirm=told.confirm,
        masked=None if told.masked is None else [text.model_dump() for text in told.masked],
    )
    has_details = any(value is not None for value in (told.code, told.param))
    written = AnthropicErrorObject(type=kind, message=message, details=details if has_details else None)
    return AnthropicError(error=written).model_dump_json().encode()


def _with_errors(responses: Responses) -> Responses:
    return {status: {**response, **in_json(AnthropicError)} for status, response in responses.items()}


ERRORS = _with_errors(EVERYWHERE | WITH_BODY)


def event(value: dict[str, Any]) -> bytes:
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"event: {value['type']}\ndata: {data}\n\n".encode()


EVENTS = EventForm(
    done=event({"type": "message_stop"}),
    error=lambda json: b"event: error\ndata: " + json + b"\n\n",
    comment=event({"type": "ping"}),
)


def check_headers(headers: Headers, exchange: Exchange, lenient: bool) -> None:
    """Raises ApiError for another version, and for a beta that this server does not have; ``lenient`` ignores those."""
    exchange.answer_headers["request-id"] = exchange.request_id
    version = headers.get("anthropic-version", VERSIONS[0])
    if version not in VERSIONS:
        message = f"the header anthropic-version is {printable(version[:64])!r}; supported: {', '.join(VERSIONS)}"
        raise ApiError(400, message, "invalid_header")
    named = [name.strip() for line in headers.getlist("anthropic-beta") for name in line.split(",")]
    unknown = [name for name in named if name and DATE.sub("", name) not in BETAS]
    if unknown and not lenient:
        message = (
            f"the header anthropic-beta names {printable(unknown[0][:64])!r}, which this server does not have; leave "
            "it out, or start the server with --lenient"
        )
        raise ApiError(400, message, "invalid_header")
    if unknown:
        ignored = ignored_header([["anthropic-beta", name] for name in unknown])
        before = exchange.answer_headers.get(IGNORED_HEADER)
        exchange.answer_headers[IGNORED_HEADER] = ignored if before is None else f"{before}, {ignored}"


class MessageEvents:
    """The events of one answer from the chunks of a chat, except for the last, which has no content.

    A block ends when another begins. ``thinking_is_shown``: otherwise the blocks of reasoning are empty.
    ``max_tokens`` is the request's: a shorter answer has filled the context.
    """

    def __init__(self, max_tokens: int, *, thinking_is_shown: bool) -> None:
        self._max_tokens, self._thinking_is_shown = max_tokens, thinking_is_shown
        self._started = False
        # The type of the block that has begun, and how many have.
        self._open: str | None = None
        self._blocks = 0
        # The block of each call.
        self._calls: dict[int, int] = {}
        self._reason = "end_turn"
        self._stop_sequence: str | None = None

    def add(self, chunk: ChatCompletionChunk) -> list[dict[str, Any]]:
        events = [] if self._started else [self._start(chunk)]
        for choice in chunk.choices:
            events += self._content(choice)
            if choice.finish_reason is not None:
                events += self._close()
                self._end(choice.finish_reason, choice.stop_reason)
        if chunk.usage is not None and not chunk.choices:
            events += [*self._close(), self._delta(chunk, chunk.usage)]
        return events

    def _start(self, chunk: ChatCompletionChunk) -> dict[str, Any]:
        self._started = True
        message = MessagesAnswer(
            id=f"msg_{chunk.id.removeprefix('chatcmpl-')}",
            model=chunk.model,
            content=[],
            usage=MessagesUsage(input_tokens=chunk.num_prompt_tokens or 0, output_tokens=0),
            route=chunk.route,
            nearfar=chunk.nearfar,
        )
        return {"type": "message_start", "message": message.model_dump(mode="json")}

    def _content(self, choice: ChunkChoice) -> list[dict[str, Any]]:
        events, delta = list[dict[str, Any]](), choice.delta
        if delta.reasoning_content:
            if self._open != "thinking":
                events += self._begin({"type": "thinking", "thinking": "", "signature": ""})
            if self._thinking_is_shown:
                events.append(self._part({"type": "thinking_delta", "thinking": delta.reasoning_content}))
        if delta.content:
            if self._open != "text":
                events += self._begin({"type": "text", "text": ""})
            events.append(self._part({"type": "text_delta", "text": delta.content}))
        for call in delta.tool_calls or ():
            events += self._call(call)
        return events

    def _call(self, call: ToolCallDelta) -> list[dict[str, Any]]:
        events, function = list[dict[str, Any]](), call.function
        if call.index not in self._calls:
            name = "" if function is None else function.name or ""
            block = {"type": "tool_use", "id": call.id or f"toolu_{uuid.uuid4().hex}", "name": name, "input": {}}
            events += self._begin(block)
            self._calls[call.index] = self._blocks - 1
        if function is not None and function.arguments:
            part = {"type": "input_json_delta", "partial_json": function.arguments}
            events.append(self._part(part, self._calls[call.index]))
        return events

    def _begin(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        closed = self._close()
        self._open = block["type"]
        self._blocks += 1
        return [*closed, {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}]

    def _part(self, delta: dict[str, Any], index: int | None = None) -> dict[str, Any]:
        index = self._blocks - 1 if index is None else index
        return {"type": "content_block_delta", "index": index, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        signed = [self._part({"type": "signature_delta", "signature": SIGNATURE})] if self._open == "thinking" else []
        self._open = None
        return [*signed, {"type": "content_block_stop", "index": self._blocks - 1}]

    def _end(self, finish_reason: str, stop: str | None) -> None:
        self._reason = STOP_REASONS.get(finish_reason, finish_reason)
        if stop is not None and finish_reason == "stop":
            self._reason, self._stop_sequence = "stop_sequence", stop

    def _delta(self, chunk: ChatCompletionChunk, usage: Usage) -> dict[str, Any]:
        reason = self._reason
        if reason == "max_tokens" and usage.completion_tokens < self._max_tokens:
            reason = "model_context_window_exceeded"
        delta = {"stop_reason": reason, "stop_sequence": self._stop_sequence}
        value = {"type": "message_delta", "delta": delta, "usage": usage_of(usage).model_dump(mode="json")}
        for name in EXTENSIONS:
            if (told := getattr(chunk, name)) is not None:
                value[name] = told.model_dump(mode="json")
        return value


def usage_of(usage: Usage) -> MessagesUsage:
    cached = 0 if usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens
    details = usage.completion_tokens_details
    return MessagesUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=None
        if details is None
        else OutputTokensDetails(thinking_tokens=details.reasoning_tokens),
    )


class MessageFold:
    """A `Fold` of messages: the events, added up as Anthropic's clients do."""

    def __init__(self, events: Callable[[], MessageEvents]) -> None:
        self._create = events
        self._events = events()
        self._message: dict[str, Any] = {}
        self._route: Route | None = None
        self._inputs: dict[int, list[str]] = {}

    def add(self, chunk: ChatCompletionChunk) -> None:
        if withdraws(self._route, chunk.route):
            self._events, self._message = self._create(), {}
            self._inputs.clear()
        self._route = chunk.route or self._route
        for value in self._events.add(chunk):
            self._add(value)

    def answer(self) -> MessagesAnswer:
        if self._message.get("stop_reason") is None:
            raise cut_off()
        content = self._message["content"]
        for index, parts in self._inputs.items():
            content[index]["input"] = _input("".join(parts))
        return MessagesAnswer.model_validate(self._message)

    def _add(self, value: dict[str, Any]) -> None:
        match value["type"]:
            case "message_start":
                self._message = value["message"]
            case "content_block_start":
                self._message["content"].append(value["content_block"])
            case "content_block_delta":
                self._part(value["index"], value["delta"])
            case "message_delta":
                more = {name: value[name] for name in EXTENSIONS if name in value}
                self._message |= {**value["delta"], "usage": value["usage"], **more}

    def _part(self, index: int, delta: dict[str, Any]) -> None:
        block = self._message["content"][index]
        if delta["type"] == "input_json_delta":
            self._inputs.setdefault(index, []).append(delta["partial_json"])
        else:
            name = delta["type"].removesuffix("_delta")
            block[name] += delta[name]


def _input(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {NOT_JSON: text}


def _events_of(body: MessagesRequest) -> MessageEvents:
    display = None if body.thinking is None else getattr(body.thinking, "display", None)
    return MessageEvents(body.max_tokens, thinking_is_shown=display != "omitted")


def _encode(body: MessagesRequest) -> Encode[ChatCompletionChunk]:
    events = _events_of(body)
    return lambda chunk: b"".join(map(event, events.add(chunk))) or None


MESSAGES: Kind[MessagesRequest, ChatCompletionChunk, MessagesAnswer] = Kind(
    "/v1/messages",
    MessagesRequest,
    RoutedMessagesRequest,
    MessagesAnswer,
    as_chat,
    _encode,
    lambda body: MessageFold(lambda: _events_of(body)),
    lambda answer: answer.model_dump_json().encode(),
    EVENTS,
    anthropic_error,
    alike=False,
    check=check_headers,
    renamed=renamed,
    responses=ERRORS,
)


def messages_router(service: Service) -> APIRouter:
    router = keyed_router()

    @post(router, "/v1/messages/count_tokens", MessagesCountRequest, MessagesCount, ERRORS)
    async def count_tokens(body: MessagesCountRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        check_headers(request.headers, exchange, service.config.lenient)
        asked = tokenize_request(as_chat(body))
        executor = await service.executor(body.model, exchange)
        try:
            counted = await service.drain.run(executor.tokenize(asked), request.receive, exchange.deadline)
        except RequestError as error:
            raise renamed(body, error) from error
        return Response(MessagesCount(input_tokens=counted.count).model_dump_json(), media_type="application/json")

    return router
