"""Ollama's /api/chat and /api/generate: two more forms of answers, streamed as lines of JSON; and /api/embed.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from ..executors.executor import Executor, LoadsOnUse
from ..schema.chat import ChatCompletionChunk, ChatLogprobs, ToolCallDelta
from ..schema.common import TokenLogprob, Usage
from ..schema.completions import AnswerRequest, CompletionChunk
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.fold import fold_calls
from ..schema.ollama import (
    AnsweredCall,
    AnsweredFunction,
    AnsweredMessage,
    KeepsAlive,
    OllamaAnswer,
    OllamaChatAnswer,
    OllamaChatRequest,
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateAnswer,
    OllamaGenerateRequest,
    OllamaLogprob,
    OllamaRequest,
)
from .errors import ApiError, openai_message
from .exchange import exchange_of
from .generation import JSON, Kind, open_answer
from .ollama_requests import chat_request, generate_request, raw_request
from .route import OLLAMA, OllamaRoute, keyed_router, post
from .service import Service
from .sse import EventForm
from .texts import embedded

Body = TypeVar("Body", bound=OllamaRequest)
Chunk = ChatCompletionChunk | CompletionChunk


def ollama_error(error: ApiError) -> bytes:
    return json.dumps({"error": openai_message(error)}, ensure_ascii=False).encode()


# Readers parse every line, so nothing fills a silence.
LINES = EventForm("application/x-ndjson", done=b"", error=lambda error: error + b"\n", comment=b"")


class Answer:
    """Adds up the chunks of one answer, and measures it. Implements `Fold`; a call is an `Encode`.

    Most of the text of a stream does not come here: `EventStream` writes it by the line of its first piece.
    """

    def __init__(self, body: OllamaRequest) -> None:
        self._body = body
        self._ready_ns = time.perf_counter_ns()
        self._first_ns: int | None = None
        self._texts, self._thinking = list[str](), list[str]()
        self._calls = list[ToolCallDelta]()
        self._logprobs = list[OllamaLogprob]()
        self._reason, self._usage = "stop", Usage(prompt_tokens=0, completion_tokens=0, total_tokens=0)

    def __call__(self, chunk: Chunk) -> bytes | None:
        """The line of a chunk. Calls are sent when all of them are complete, and the end with the usage."""
        self.add(chunk)
        text, thinking = "".join(self._texts), "".join(self._thinking)
        logprobs, is_end = self._logprobs, chunk.usage is not None
        calls = self._called() if is_end else []
        self._texts, self._thinking, self._logprobs = [], [], []
        if not (text or thinking or logprobs or calls or is_end):
            return None
        lines = [self._line(text, thinking, calls, logprobs)] if text or thinking or calls or logprobs else []
        lines += [self._line("", "", [], [], is_end=True)] if is_end else []
        return b"".join(_json(line) + b"\n" for line in lines)

    def add(self, chunk: Chunk) -> None:
        for choice in chunk.choices:
            if self._first_ns is None and choice.has_text:
                self._first_ns = time.perf_counter_ns()
            if hasattr(choice, "delta"):
                self._texts.append(choice.delta.content or "")
                self._thinking.append(choice.delta.reasoning_content or "")
                self._calls += choice.delta.tool_calls or ()
                if isinstance(choice.logprobs, ChatLogprobs):
                    self._logprobs += [_logprob(each) for each in choice.logprobs.content or ()]
            else:
                self._texts.append(choice.text)
                self._logprobs += _completion_logprobs(choice.logprobs)
            self._reason = choice.finish_reason or self._reason
        self._usage = chunk.usage or self._usage

    def answer(self) -> OllamaAnswer:
        text, thinking = "".join(self._texts), "".join(self._thinking)
        return self._line(text, thinking, self._called(), self._logprobs, is_end=True)

    def _called(self) -> list[AnsweredCall]:
        """The calls, but not one that the end of the answer has cut off."""
        calls = []
        for call in fold_calls(self._calls):
            try:
                arguments = json.loads(call.function.arguments or "{}")
            except ValueError:
                continue
            if isinstance(arguments, dict):
                function = AnsweredFunction(name=call.function.name, arguments=arguments)
                calls.append(AnsweredCall(id=call.id, function=function))
        return calls

    def _line(
        self,
        text: str,
        thinking: str,
        calls: Sequence[AnsweredCall],
        logprobs: Sequence[OllamaLogprob],
        *,
        is_end: bool = False,
    ) -> OllamaAnswer:
        fields: dict[str, Any] = {"model": self._body.model, "created_at": now(), "done": is_end}
        fields |= self._durations() if is_end else {}
        fields["logprobs"] = list(logprobs) or None
        if isinstance(self._body, OllamaGenerateRequest):
            return OllamaGenerateAnswer(response=text, thinking=thinking or None, **fields)
        message = AnsweredMessage(content=text, thinking=thinking or None, tool_calls=list(calls) or None)
        return OllamaChatAnswer(message=message, **fields)

    def _durations(self) -> dict[str, Any]:
        end, arrived, ready = time.perf_counter_ns(), self._body.arrived_ns, self._ready_ns
        first = self._first_ns or end
        return {
            # A call ends an answer like any other.
            "done_reason": "stop" if self._reason in ("tool_calls", "function_call") else self._reason,
            "total_duration": end - arrived,
            "load_duration": ready - arrived,
            "prompt_eval_count": self._usage.prompt_tokens,
            "prompt_eval_duration": first - ready,
            "eval_count": self._usage.completion_tokens,
            "eval_duration": end - first,
        }


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _json(answer: OllamaAnswer) -> bytes:
    # As `EventStream` writes texts.
    return json.dumps(answer.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":")).encode()


def _logprob(token: TokenLogprob) -> OllamaLogprob:
    tops = [OllamaLogprob(token=each.token, logprob=each.logprob, bytes=each.bytes) for each in token.top_logprobs]
    return OllamaLogprob(token=token.token, logprob=token.logprob, bytes=token.bytes, top_logprobs=tops or None)


def _completion_logprobs(logprobs: Any) -> list[OllamaLogprob]:
    if logprobs is None:
        return []
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    return [
        OllamaLogprob(
            token=token,
            logprob=logprob or 0.0,
            top_logprobs=[OllamaLogprob(token=name, logprob=value) for name, value in (top or {}).items()] or None,
        )
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True)
    ]


def _unread(_: OllamaRequest) -> AnswerRequest:
    raise AssertionError("requests of Ollama's API are read with the executor of their model")


def _kind(path: str, body: type[Any], answer: type[Any]) -> Kind[Any, Any, Any]:
    return Kind(path, body, body, answer, _unread, Answer, Answer, _json, LINES, ollama_error)


CHAT_LINES = _kind("/api/chat", OllamaChatRequest, OllamaChatAnswer)
GENERATE_LINES = _kind("/api/generate", OllamaGenerateRequest, OllamaGenerateAnswer)


def ollama_router(service: Service) -> APIRouter:
    router = keyed_router(OllamaRoute)

    @post(router, "/api/chat", OllamaChatRequest, OllamaChatAnswer, OLLAMA)
    async def chat(body: OllamaChatRequest, request: Request) -> Response:
        executor = await kept_alive(service, body, request)
        if not body.messages:
            return await only_loaded(service, body)
        return await _answered(CHAT_LINES, service, body, chat_request(body, executor), request)

    @post(router, "/api/generate", OllamaGenerateRequest, OllamaGenerateAnswer, OLLAMA)
    async def generate(body: OllamaGenerateRequest, request: Request) -> Response:
        executor = await kept_alive(service, body, request)
        if not body.prompt and not body.images and not body.suffix:
            return await only_loaded(service, body)
        asked = raw_request(body, executor) if body.raw else generate_request(body, executor)
        return await _answered(GENERATE_LINES, service, body, asked, request)

    @post(router, "/api/embed", OllamaEmbedRequest, OllamaEmbedAnswer, OLLAMA)
    async def embed(body: OllamaEmbedRequest, request: Request) -> Response:
        arrived = time.perf_counter_ns()
        await kept_alive(service, body, request)
        ready = time.perf_counter_ns()
        found = await _embedded(service, body.model, body.input, body.truncate, body.dimensions, request)
        answer = OllamaEmbedAnswer(
            model=body.model,
            embeddings=[each.embedding for each in found.data if isinstance(each.embedding, list)],
            total_duration=time.perf_counter_ns() - arrived,
            load_duration=ready - arrived,
            prompt_eval_count=found.usage.prompt_tokens,
        )
        return Response(answer.model_dump_json(), media_type=JSON)

    @post(router, "/api/embeddings", OllamaEmbeddingsRequest, OllamaEmbeddingsAnswer, OLLAMA)
    async def embeddings(body: OllamaEmbeddingsRequest, request: Request) -> Response:
        await kept_alive(service, body, request)
        found = await _embedded(service, body.model, body.prompt, None, None, request)
        (vector,) = (each.embedding for each in found.data)
        assert isinstance(vector, list)
        return Response(OllamaEmbeddingsAnswer(embedding=vector).model_dump_json(), media_type=JSON)

    return router


async def _answered(
    kind: Kind[Any, Any, Any], service: Service, body: OllamaRequest, asked: AnswerRequest, request: Request
) -> Response:
    opened = await open_answer(kind, service, body, asked, request)
    if asked.stream:
        return opened.stream()
    answer = await service.drain.run(opened.folded(), request.receive, exchange_of(request).deadline)
    opened.report_queue()
    return Response(kind.write(answer), media_type=JSON)


async def kept_alive(service: Service, body: KeepsAlive, request: Request) -> Executor:
    """Load the model, if it is loaded on use, and set how long it stays after the request."""
    executor = await service.executor(body.model, exchange_of(request))
    if body.keep_seconds is not None and isinstance(service.models, LoadsOnUse):
        service.models.keep(body.model, body.keep_seconds)
    return executor


async def only_loaded(service: Service, body: OllamaChatRequest | OllamaGenerateRequest) -> Response:
    """The answer to a request without a prompt, which loads a model, or unloads it."""
    reason = "unload" if body.keep_seconds == 0 and isinstance(service.models, LoadsOnUse) else "load"
    fields: dict[str, Any] = {"model": body.model, "created_at": now(), "done": True, "done_reason": reason}
    answer: OllamaAnswer
    if isinstance(body, OllamaChatRequest):
        answer = OllamaChatAnswer(message=AnsweredMessage(), **fields)
    else:
        answer = OllamaGenerateAnswer(response="", **fields)
    return Response(_json(answer) + b"\n", media_type=LINES.content_type if body.stream is not False else JSON)


async def _embedded(
    service: Service,
    model: str,
    texts: str | list[str],
    truncate: bool | None,
    dimensions: int | None,
    request: Request,
) -> EmbeddingResponse:
    """As in Ollama, a text that is too long is shortened unless ``truncate`` is false."""
    body = EmbeddingRequest(model=model, input=texts, dimensions=dimensions, truncate=truncate is not False)
    return await embedded(service, body, request)
