"""Turns the chunks of a chat into the items of a response, and into OpenAI's typed events about them.

Reasoning, text and calls become items in the order in which they begin. An item ends when one of another kind begins,
except calls, whose parts may alternate: they end with the answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..schema.chat import ChatCompletionChunk, ChunkChoice, ToolCallDelta
from ..schema.common import TokenLogprob, Usage
from ..schema.fold import cut_off, withdraws
from ..schema.response_items import (
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    Status,
    SummaryText,
    ThoughtText,
)
from ..schema.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
)
from ..schema.route import Route
from .response_reasoning import encoded_reasoning

# The finish reasons of an answer that is not complete.
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# OpenAI's errors: the type of an error -> the code of a response that failed. Clients act on some codes of ours.
ERROR_CODES = {"invalid_request_error": "invalid_prompt", "rate_limit_error": "rate_limit_exceeded"}
KEPT_CODES = frozenset({"context_length_exceeded"})
NO_NAMESPACES: Mapping[str, tuple[str, str]] = {}


@dataclass(slots=True)
class _Open:
    """An item that is being written. ``texts`` are the parts of its text, or of its arguments. ``name`` and ``call_id``
    are those of a call.
    """

    kind: str
    id: str
    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    name: str = ""
    namespace: str | None = None
    call_id: str = ""
    done: OutputItem | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class ResponseWriter:
    """A `Fold` of one answer, whose events it writes as well. ``begun`` is the response without its answer, ``key``
    what the ids of its items share. ``summarizes``: the reasoning is the summary of its item. ``encodes``: it is
    repeated as ``encrypted_content``. ``namespaces``: names of functions in the chat -> their namespaces and names.
    """

    def __init__(
        self,
        begun: ResponseObject,
        key: str,
        *,
        summarizes: bool = False,
        encodes: bool = False,
        namespaces: Mapping[str, tuple[str, str]] = NO_NAMESPACES,
    ) -> None:
        self.begun, self._key, self._namespaces = begun, key, namespaces
        self._summarizes, self._encodes = summarizes, encodes
        self._number = 0
        self._items: list[_Open] = []
        self._last: _Open | None = None
        self._calls: dict[int, _Open] = {}
        # Items of an answer that was withdrawn, which the response does not have.
        self._withdrawn = 0
        self._logprobs: list[TokenLogprob] = []
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._route: Route | None = None
        self._extras: dict[str, Any] = {}

    # --- events ---

    def begin(self) -> bytes:
        """The events before those of the answer."""
        first = [self._event("response.created", response=self._dumped(self.begun))]
        if self.begun.status == "queued":
            first.append(self._event("response.queued", response=self._dumped(self.begun)))
        running = self.begun.model_copy(update={"status": "in_progress"})
        return b"".join([*first, self._event("response.in_progress", response=self._dumped(running))])

    def event(self, chunk: ChatCompletionChunk) -> bytes:
        """The events of a chunk, and before those of the first one those of `begin`."""
        begun = b"" if self._number else self.begin()
        return begun + self._events(chunk)

    def end(self) -> bytes:
        """The events after the last chunk. Raises the errors of `answer`."""
        self._require_end()
        closed = self._close_all()
        response = self.answer()
        return closed + self._event(f"response.{response.status}", response=self._dumped(response))

    def failed_event(self, error: bytes) -> bytes:
        """The last event of an answer that failed, from the JSON of its error."""
        begun = b"" if self._number else self.begin()
        return begun + self._event("response.failed", response=self._dumped(self.failed(json.loads(error)["error"])))

    # --- responses ---

    def add(self, chunk: ChatCompletionChunk) -> None:
        self._events(chunk)

    def answer(self) -> ResponseObject:
        """The whole response. Raises Unavailable if the chunks ended too early."""
        reason, usage = self._require_end()
        self._close_all()
        status: Status = "incomplete" if reason in INCOMPLETE else "completed"
        why = IncompleteDetails(reason=INCOMPLETE[reason]) if reason in INCOMPLETE else None  # type: ignore[arg-type]
        return self.begun.model_copy(
            update={
                "status": status,
                "completed_at": int(time.time()) if status == "completed" else None,
                "incomplete_details": why,
                "output": [item.done for item in self._items[self._withdrawn :]],
                "usage": _usage(usage),
                "route": self._route,
                **self._extras,
            }
        )

    def failed(self, error: dict[str, Any]) -> ResponseObject:
        """``error`` is OpenAI's object of an error."""
        code = error["code"] if error["code"] in KEPT_CODES else ERROR_CODES.get(error["type"], "server_error")
        output = [
            item.done or _item(item, "incomplete", summarizes=self._summarizes)
            for item in self._items[self._withdrawn :]
        ]
        why = ResponseError(code=code, message=error["message"])
        return self.begun.model_copy(update={"status": "failed", "error": why, "output": output})

    def _require_end(self) -> tuple[str, Usage]:
        if self._finish_reason is None or self._usage is None:
            raise cut_off()
        return self._finish_reason, self._usage

    # --- chunks ---

    def _events(self, chunk: ChatCompletionChunk) -> bytes:
        events = b""
        if withdraws(self._route, chunk.route):
            events = self._close(self._items, "incomplete")
            self._withdrawn, self._last = len(self._items), None
            self._calls.clear()
        self._route = chunk.route or self._route
        self._usage = chunk.usage or self._usage
        if chunk.nearfar is not None:
            self._extras["nearfar"] = chunk.nearfar
        if chunk.transcripts is not None:
            self._extras["transcripts"] = [each.model_dump() for each in chunk.transcripts]
        for choice in chunk.choices:
            events += self._choice(choice)
        return events

    def _choice(self, choice: ChunkChoice) -> bytes:
        delta, events = choice.delta, b""
        if delta.reasoning_content:
            events += self._text("reasoning", delta.reasoning_content)
        if choice.logprobs is not None and delta.content is not None:
            self._logprobs += [_listed(token) for token in choice.logprobs.content or ()]
        if delta.content:
            events += self._text("message", delta.content)
        for annotation in delta.annotations or ():
            events += self._annotate(annotation)
        for call in delta.tool_calls or ():
            events += self._call(call)
        self._finish_reason = choice.finish_reason or self._finish_reason
        return events

    def _text(self, kind: str, text: str) -> bytes:
        begun = b"" if self._last is not None and self._last.kind == kind else self._begin(kind)
        item = self._last
        assert item is not None
        item.texts.append(text)
        where = {"item_id": item.id, "output_index": item.index}
        if kind == "message":
            new, self._logprobs = self._logprobs, []
            item.logprobs += new
            logprobs = [each.model_dump() for each in new]
            return begun + self._event(
                "response.output_text.delta", **where, content_index=0, delta=text, logprobs=logprobs
            )
        if self._summarizes:
            return begun + self._event("response.reasoning_summary_text.delta", **where, summary_index=0, delta=text)
        return begun + self._event("response.reasoning_text.delta", **where, content_index=0, delta=text)

    def _annotate(self, annotation: dict[str, Any]) -> bytes:
        """Of a text; chats have the fields of a citation in an object of its own."""
        begun = b"" if self._last is not None and self._last.kind == "message" else self._begin("message")
        item, kind = self._last, annotation.get("type")
        assert item is not None
        inner = annotation.get(kind) if isinstance(kind, str) else None
        flat = {"type": kind, **inner} if isinstance(inner, dict) else annotation
        item.annotations.append(flat)
        return begun + self._event(
            "response.output_text.annotation.added",
            item_id=item.id,
            output_index=item.index,
            content_index=0,
            annotation_index=len(item.annotations) - 1,
            annotation=flat,
        )

    def _call(self, delta: ToolCallDelta) -> bytes:
        item, events, function = self._calls.get(delta.index), b"", delta.function
        if item is None:
            events = b"" if self._last is None else self._close([self._last], "completed")
            self._last = None
            item = self._calls[delta.index] = self._new("function_call")
            item.call_id = delta.id or f"call_{item.id}"
            name = (function.name if function is not None else None) or ""
            item.namespace, item.name = self._namespaces.get(name, (None, name))
            events += self._event("response.output_item.added", output_index=item.index, item=self._started(item))
        if function is None or not function.arguments:
            return events
        item.texts.append(function.arguments)
        return events + self._event(
            "response.function_call_arguments.delta",
            item_id=item.id,
            output_index=item.index,
            delta=function.arguments,
        )

    # --- items ---

    def _begin(self, kind: str) -> bytes:
        """Begin a text, after the end of the one before it."""
        closed = b"" if self._last is None else self._close([self._last], "completed")
        return closed + self._open(kind)

    def _open(self, kind: str) -> bytes:
        item = self._last = self._new(kind)
        where = {"item_id": item.id, "output_index": item.index}
        added = self._event("response.output_item.added", output_index=item.index, item=self._started(item))
        if kind == "message":
            part = OutputText(text="", annotations=[], logprobs=[]).model_dump()
            return added + self._event("response.content_part.added", **where, content_index=0, part=part)
        if self._summarizes:
            part = SummaryText(text="").model_dump()
            return added + self._event("response.reasoning_summary_part.added", **where, summary_index=0, part=part)
        part = ThoughtText(text="").model_dump()
        return added + self._event("response.content_part.added", **where, content_index=0, part=part)

    def _new(self, kind: str) -> _Open:
        prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}[kind]
        place = len(self._items)
        item = _Open(kind, f"{prefix}_{self._key}_{place}", place)
        self._items.append(item)
        return item

    def _started(self, item: _Open) -> dict[str, Any]:
        """An item that begins, without its parts."""
        dumped = _item(item, "in_progress", summarizes=self._summarizes).model_dump()
        if item.kind == "message":
            return {**dumped, "content": []}
        return {name: [] if name == "summary" else value for name, value in dumped.items() if name != "content"}

    def _close_all(self) -> bytes:
        """Clients expect an item, if only an empty message. What a limit cuts off is the last one."""
        opened = self._open("message") if len(self._items) == self._withdrawn else b""
        last: Status = "incomplete" if self._finish_reason in INCOMPLETE else "completed"
        return opened + self._close(self._items[:-1], "completed") + self._close(self._items[-1:], last)

    def _close(self, items: Sequence[_Open], status: Status) -> bytes:
        return b"".join(self._close_one(item, status) for item in items if item.done is None)

    def _close_one(self, item: _Open, status: Status) -> bytes:
        if item.kind == "message":
            new, self._logprobs = self._logprobs, []
            item.logprobs += new
        done = item.done = _item(item, status, summarizes=self._summarizes, encodes=self._encodes)
        dumped = done.model_dump()
        where = {"item_id": item.id, "output_index": item.index}
        match done:
            case OutputMessage():
                [part] = dumped["content"]
                said = {"text": part["text"], "logprobs": part["logprobs"]}
                ended = self._ended(where, "content_index", "output_text", said, "content_part", part)
            case OutputCall(arguments=arguments, name=name):
                ended = self._event("response.function_call_arguments.done", **where, name=name, arguments=arguments)
            case OutputReasoning(summary=[_]):
                [part], kinds = dumped["summary"], ("reasoning_summary_text", "reasoning_summary_part")
                ended = self._ended(where, "summary_index", kinds[0], {"text": part["text"]}, kinds[1], part)
            case _:
                [part] = dumped["content"]
                said = {"text": part["text"]}
                ended = self._ended(where, "content_index", "reasoning_text", said, "content_part", part)
        return ended + self._event("response.output_item.done", output_index=item.index, item=dumped)

    def _ended(
        self, where: dict[str, Any], index: str, text: str, said: dict[str, Any], part: str, written: dict[str, Any]
    ) -> bytes:
        """The ends of a text and of its part."""
        at = {**where, index: 0}
        return self._event(f"response.{text}.done", **at, **said) + self._event(
            f"response.{part}.done", **at, part=written
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()

    @staticmethod
    def _dumped(response: ResponseObject) -> dict[str, Any]:
        return response.model_dump(mode="json")


def _listed(token: TokenLogprob) -> TokenLogprob:
    """With bytes, which OpenAI's clients require: none for a special token."""
    top = [each.model_copy(update={"bytes": each.bytes or []}) for each in token.top_logprobs]
    return token.model_copy(update={"bytes": token.bytes or [], "top_logprobs": top})


def _item(item: _Open, status: Status, *, summarizes: bool, encodes: bool = False) -> OutputItem:
    if item.kind == "message":
        text = OutputText(text=item.text, annotations=item.annotations, logprobs=item.logprobs)
        return OutputMessage(id=item.id, status=status, content=[text])
    if item.kind == "function_call":
        return OutputCall(
            id=item.id,
            status=status,
            call_id=item.call_id,
            name=item.name,
            namespace=item.namespace,
            arguments=item.text,
        )
    return OutputReasoning(
        id=item.id,
        status=status,
        summary=[SummaryText(text=item.text)] if summarizes else [],
        content=None if summarizes else [ThoughtText(text=item.text)],
        encrypted_content=encoded_reasoning(item.text) if encodes else None,
    )


def _usage(usage: Usage) -> ResponseUsage:
    cached = 0 if usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens
    details = usage.completion_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=cached),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0 if details is None else details.reasoning_tokens),
        total_tokens=usage.total_tokens,
        queue_ms=usage.queue_ms,
    )
