"""One request of /v1/responses: the chat that it asks for, and what becomes of its answer."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Call, Executor
from ..executors.fitted_chat import answer_fitting
from ..schema.chat import ChatCompletionChunk
from ..schema.common import MaskedText
from ..schema.completions import AnswerRequest
from ..schema.response_items import CallItem, Item, ItemReference, MessageItem
from ..schema.responses import FunctionTool, NamespaceTool, PromptFields, ResponseObject, ResponseRequest
from ..text.output import Output
from ..text.response_events import ResponseWriter
from ..text.response_prompt import items_of, namespaces, translated
from ..text.translated_chat import TranslatedChat
from .errors import ApiError, WriteError, api_error, openai_error
from .exchange import Exchange
from .generation import Kind
from .service import Service
from .sse import EventForm
from .stored_responses import StoredResponse, StoredResponses
from .validation import check_calls

PATH = "/v1/responses"
ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])
# An id of an item begins with its kind and ends with its place: "i" and a number for those of a request. Between them
# is what the id of its response has after "resp_".
ITEM_ID = re.compile(r"[a-z]{2,3}_([0-9a-f]{32})_i?[0-9]{1,9}")
PREFIXES: Mapping[str, str] = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """``stored`` is what is stored of the request, None if it asks for nothing to be."""

    body: ResponseRequest
    exchange: Exchange
    chat: TranslatedChat
    writer: ResponseWriter
    responses: StoredResponses
    stored: StoredResponse | None

    def kind(self) -> Kind[Any, ChatCompletionChunk, ResponseObject]:
        """The form of this one answer."""
        return Kind(
            PATH,
            ResponseRequest,
            ResponseRequest,
            ResponseObject,
            lambda _: self.chat.chat,
            lambda _: self.writer.event,
            lambda _: self.writer,
            response_json,
            EventForm(done=b"", error=self.writer.failed_event),
            alike=False,
            respond=self.respond,
        )

    async def respond(self, executor: Executor, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        await answer_fitting(executor, request, call, output, drops=self.body.truncation == "auto")
        events = self.writer.end()
        if self.stored is not None:
            # Before its last event, after which the client may continue it.
            await self._keep(self.writer.answer())
        if self.body.stream or self.body.background:
            output.block(events, ())

    async def fail(self, error: BaseException) -> None:
        """Store that the answer failed, if it is still running."""
        assert self.stored is not None
        written = json.loads(self.exchange.write_error(api_error(error)))
        await self.responses.settle(self._with(self.writer.failed(written["error"])))

    async def _keep(self, response: ResponseObject) -> None:
        if self.body.background:
            await self.responses.settle(self._with(response))
        else:
            await self.responses.put(self._with(response))

    def _with(self, response: ResponseObject) -> StoredResponse:
        assert self.stored is not None
        return replace(self.stored, response=response_json(response), running=False)


async def read_prompt(
    service: Service, body: PromptFields, exchange: Exchange
) -> tuple[TranslatedChat, Sequence[Item]]:
    """The chat, and the request's own items. From now on, errors of the exchange name the request's parameters. Raises
    ApiError and RequestError.
    """
    earlier = await _earlier(service, exchange.client, body.previous_response_id)
    own = await _resolved(service, exchange.client, items_of(body.input))
    chat = translated(body, earlier, own)
    exchange.write_error = _renaming(chat)
    check_calls(chat.chat.messages)
    return chat, own


async def open_turn(service: Service, body: ResponseRequest, exchange: Exchange) -> Turn:
    """Raises the errors of `read_prompt`, and ApiError for a response that cannot be stored."""
    stores = _stores(body, service.config.response_memory_bytes)
    chat, own = await read_prompt(service, body, exchange)
    key = uuid.uuid4().hex
    begun = begun_response(body, f"resp_{key}", stores=stores)
    config = body.reasoning
    writer = ResponseWriter(
        begun,
        key,
        summarizes=config is not None and (config.summary or config.generate_summary) is not None,
        encodes=body.includes("reasoning.encrypted_content"),
        namespaces=namespaces(body),
    )
    stored = None
    if stores:
        items = json.dumps([_stored_item(item, f"{key}_i{place}") for place, item in enumerate(own)])
        stored = StoredResponse(
            exchange.client,
            begun.id,
            response_json(begun),
            items.encode(),
            body.previous_response_id,
            running=bool(body.background),
        )
    return Turn(body, exchange, chat, writer, service.responses, stored)


def response_json(response: ResponseObject) -> bytes:
    return json.dumps(response.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":")).encode()


def items_of_stored(stored: StoredResponse) -> list[Any]:
    """The JSON of a response's own items, and of its answer's."""
    return [*json.loads(stored.items), *json.loads(stored.response)["output"]]


def _stores(body: ResponseRequest, memory_bytes: int) -> bool:
    """Whether the response is stored. Raises ApiError."""
    if memory_bytes == 0 and (body.store or body.background):
        param = "store" if body.store else "background"
        message = "this server stores no responses (--response-memory 0); set store to false, and send all input"
        raise ApiError(400, message, "responses_not_stored", param)
    stores = body.store is not False and memory_bytes > 0
    if body.background and not stores:
        raise ApiError(400, "background needs store; leave out store, or set it to true", "invalid_value", "background")
    if body.stream_options is not None and not body.stream:
        message = "'stream_options' applies to streamed answers only; set 'stream' to true"
        raise ApiError(400, message, "invalid_value", "stream_options")
    return stores


async def _earlier(service: Service, client: str, previous: str | None) -> list[Item]:
    if previous is None:
        return []
    chain = await service.responses.chain(client, previous)
    if chain[-1].running:
        message = "the response that this one continues is still running; wait until it has ended"
        raise ApiError(400, message, "response_running", "previous_response_id")

    def read() -> list[Item]:
        items = [item for stored in chain for item in ITEMS.validate_python(items_of_stored(stored))]
        # The arguments of a call that a limit cut off are not JSON.
        return [item for item in items if not (isinstance(item, CallItem) and item.status == "incomplete")]

    # A conversation may be as long as the memory for all responses.
    return await service.read(read, sum(stored.size for stored in chain), client)


async def _resolved(service: Service, client: str, items: Sequence[Item]) -> list[Item]:
    """The items with stored ones in place of references. Raises ApiError: 404 for one that is not stored, 413 if a
    body with these items would be too large.
    """
    found, size = dict[str, dict[str, Any]](), 0
    resolved = list[Item]()
    for place, item in enumerate(items):
        if not isinstance(item, ItemReference):
            resolved.append(item)
            continue
        match = ITEM_ID.fullmatch(item.id)
        response_id = "" if match is None else f"resp_{match[1]}"
        if match is not None and response_id not in found:
            stored = await service.responses.find(client, response_id)
            listed = [] if stored is None else await service.read(partial(items_of_stored, stored), stored.size, client)
            found[response_id] = {each["id"]: each for each in listed}
        known = found.get(response_id, {}).get(item.id)
        if known is None:
            message = (
                f"Item with id '{item.id[:64]}' not found: its response is not stored here. Items of responses with "
                "store=false are not; send the item itself."
            )
            raise ApiError(404, message, "item_not_found", f"input[{place}].id")
        # References take less room than their items, of which one may be sent any number of times.
        size += len(json.dumps(known, ensure_ascii=False))
        if size > service.config.max_body_bytes:
            message = (
                f"the stored items of this input have more than {service.config.max_body_bytes} bytes, the limit of "
                "a body; leave some out"
            )
            raise ApiError(413, message, "body_too_large", f"input[{place}]")
        resolved += ITEMS.validate_python([known])
    return resolved


def _renaming(chat: TranslatedChat) -> WriteError:
    """Errors of the chat, as errors of the request."""

    def write(error: ApiError) -> bytes:
        if error.param is not None:
            named = chat.renamed(RequestError(error.message, param=error.param))
            error = replace(error, message=named.message, param=str(named.details["param"]))
        if "masked" in error.more:
            masked = [MaskedText.model_validate(each) for each in error.more["masked"]]
            named_texts = [MaskedText(path=chat.name_of(each.path), text=each.text) for each in masked]
            error = replace(error, more={**error.more, "masked": named_texts})
        return openai_error(error)

    return write


def begun_response(body: ResponseRequest, response_id: str, *, stores: bool) -> ResponseObject:
    """The response to a request before its answer."""
    text, choice, config = body.text, body.tool_choice, body.reasoning
    form = {"type": "text"} if text is None or text.format is None else text.format.model_dump(by_alias=True)
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=body.model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        reasoning={
            "effort": None if config is None else config.effort,
            "summary": None if config is None else config.summary or config.generate_summary,
        },
        safety_identifier=body.safety_identifier,
        service_tier=body.service_tier,
        store=stores,
        temperature=body.temperature,
        text={"format": form, **({} if text is None or text.verbosity is None else {"verbosity": text.verbosity})},
        tool_choice=choice if isinstance(choice, str) else "auto" if choice is None else choice.model_dump(),
        tools=[_listed_tool(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _listed_tool(tool: FunctionTool | NamespaceTool) -> dict[str, Any]:
    if isinstance(tool, NamespaceTool):
        return {**tool.model_dump(exclude={"tools"}), "tools": [_listed_tool(each) for each in tool.tools]}
    return {name: getattr(tool, name) for name in ("type", "name", "description", "parameters", "strict")}


def _stored_item(item: Item, key: str) -> dict[str, Any]:
    """An item of a request as it is listed."""
    given: dict[str, Any] = item.model_dump(mode="json", exclude_none=True)
    given = {"id": f"{PREFIXES[item.type]}_{key}", "status": "completed", **given}
    if isinstance(item, MessageItem):
        said = item.role == "assistant"
        if isinstance(item.content, str):
            kind = "output_text" if said else "input_text"
            given["content"] = [{"type": kind, "text": item.content}]
        for part in given["content"]:
            if part["type"] == "output_text":
                part.setdefault("annotations", [])
            elif part["type"] == "input_image":
                part.setdefault("detail", "auto")
    return given
