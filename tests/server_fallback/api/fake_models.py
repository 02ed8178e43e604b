"""Models that generate the texts that a test requires, for tests of the API without a model."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from answers import Generating

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.executor import Call, ExecutorState, ModelChange, UnknownModel
from nearfar.server_fallback.schema.chat import (
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    ToolCallDelta,
)
from nearfar.server_fallback.schema.common import PromptTokensDetails, TokenLogprob, TopLogprob, Usage
from nearfar.server_fallback.schema.completions import CompletionChunk, CompletionChunkChoice, CompletionRequest
from nearfar.server_fallback.schema.embeddings import Embedding, EmbeddingRequest, EmbeddingResponse
from nearfar.server_fallback.schema.encoding import EncodingUsage
from nearfar.server_fallback.schema.functions import FunctionCallDelta
from nearfar.server_fallback.schema.models import (
    LoadAdapterRequest,
    LoadRequest,
    ModelCard,
    UnloadAdapterRequest,
    UnloadRequest,
)
from nearfar.server_fallback.schema.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

CREATED = 1_700_000_000


@dataclass
class FakeExecutor(Generating):
    """Generates ``pieces``, each after ``delay_seconds``; raises ``error`` before piece number ``error_at``. ``calls``
    and ``requests`` record the arguments; ``open`` counts running answers, ``cancelled`` those that were closed early.
    """

    pieces: Sequence[str] = ("Hel", "lo", "!")
    delay_seconds: float = 0.0
    error: BaseException | None = None
    error_at: int = 0
    context: int = 256
    current: ExecutorState = field(default_factory=lambda: ExecutorState(ready=True, detail="fake", memory_bytes=1000))
    requests: list[ChatCompletionRequest | CompletionRequest | EmbeddingRequest] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    open: int = 0
    cancelled: int = 0

    async def chat(self, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        def chunk(index: int, delta: Delta, **more: object) -> ChatCompletionChunk:
            choice = ChunkChoice.model_validate({"index": index, "delta": delta, **more})
            return ChatCompletionChunk(id="chatcmpl-1", created=CREATED, model="fake", choices=[choice])

        choices = range(request.n or 1)
        for index in choices:
            yield chunk(index, Delta(role="assistant", content=""))
        async for piece in self._said(request, call):
            for index in choices:
                logprobs = ChatLogprobs(content=[_logprob(piece)]) if request.logprobs else None
                if request.tools:
                    name = request.tools[0].function.name
                    function = FunctionCallDelta(name=name if piece == self.pieces[0] else None, arguments=piece)
                    call_delta = ToolCallDelta(index=0, id="call_1", type="function", function=function)
                    yield chunk(index, Delta(tool_calls=[call_delta]))
                else:
                    yield chunk(index, Delta(content=piece), logprobs=logprobs)
        for index in choices:
            yield chunk(index, Delta(), finish_reason="tool_calls" if request.tools else "stop")
        yield ChatCompletionChunk(
            id="chatcmpl-1", created=CREATED, model="fake", choices=[], usage=self._usage(len(choices))
        )

    async def complete(self, request: CompletionRequest, call: Call) -> AsyncGenerator[CompletionChunk, None]:
        def chunk(*choices: CompletionChunkChoice, usage: Usage | None = None) -> CompletionChunk:
            return CompletionChunk(id="cmpl-1", created=CREATED, model="fake", choices=list(choices), usage=usage)

        async for piece in self._said(request, call):
            yield chunk(CompletionChunkChoice(index=0, text=piece))
        yield chunk(CompletionChunkChoice(index=0, text="", finish_reason="length"))
        yield chunk(usage=self._usage(1))

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:
        self.requests.append(request)
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        vector = [0.5, -1.0]
        coded = base64.b64encode(struct.pack("<2f", *vector)).decode()
        given = Embedding(index=0, embedding=coded if request.encoding_format == "base64" else vector)
        return EmbeddingResponse(data=[given], model="fake", usage=EncodingUsage(prompt_tokens=3, total_tokens=3))

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        if (request.prompt is None) == (request.messages is None):
            raise RequestError("exactly one of prompt and messages", param="prompt")
        tokens = list((request.prompt or "chat").encode())
        return TokenizeResponse(tokens=tokens, count=len(tokens), max_model_len=self.context)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        return DetokenizeResponse(prompt=bytes(token % 128 for token in request.tokens).decode())

    def state(self) -> ExecutorState:
        return self.current

    async def close(self) -> None:
        pass

    async def _said(self, request: ChatCompletionRequest | CompletionRequest, call: Call) -> AsyncGenerator[str, None]:
        self.requests.append(request)
        self.calls.append(call)
        if call.observe_queue is not None:
            call.observe_queue(0.25)
        self.open += 1
        try:
            for number, piece in enumerate(self.pieces):
                if self.error is not None and number == self.error_at:
                    raise self.error
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                yield piece
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.open -= 1

    def _usage(self, choices: int) -> Usage:
        num_tokens = len(self.pieces) * choices
        details = PromptTokensDetails(cached_tokens=2)
        return Usage(
            prompt_tokens=5, completion_tokens=num_tokens, total_tokens=5 + num_tokens, prompt_tokens_details=details
        )


@dataclass
class FakeModels:
    """The model "fake", its alias "other/name", and loaded models. Each can run and queue ``most_answers``. ``users``
    requests use one.
    """

    fake: FakeExecutor = field(default_factory=FakeExecutor)
    loaded: dict[str, FakeExecutor] = field(default_factory=dict)
    load_error: Exception | None = None
    most_answers: int | None = None
    closed_after: float | None = None
    users: int = 0

    def cards(self) -> Sequence[ModelCard]:
        fixed = [
            ModelCard(id="fake", created=CREATED, max_model_len=256),
            ModelCard(id="other/name", created=CREATED, root="fake", max_model_len=256),
        ]
        return fixed + [ModelCard(id=name, created=CREATED) for name in self.loaded]

    def states(self) -> Mapping[str, ExecutorState]:
        return {"fake": self.fake.state(), **{name: executor.state() for name, executor in self.loaded.items()}}

    def answers_at_once(self, name: str) -> int | None:  # noqa: ARG002
        return self.most_answers

    async def executor(self, name: str) -> FakeExecutor:
        if name in ("fake", "other/name"):
            return self.fake
        if name not in self.loaded:
            raise UnknownModel(f"the model {name[:100]!r} does not exist here; available: fake, other/name")
        return self.loaded[name]

    @asynccontextmanager
    async def using(self, name: str) -> AsyncGenerator[FakeExecutor]:
        executor = await self.executor(name)
        self.users += 1
        try:
            yield executor
        finally:
            self.users -= 1

    async def change(self, change: ModelChange) -> ModelCard | None:
        match change:
            case LoadRequest():
                if self.load_error is not None:
                    raise self.load_error
                name = change.name or change.model
                self.loaded[name] = FakeExecutor()
                return ModelCard(id=name, created=CREATED)
            case LoadAdapterRequest():
                self.loaded[change.lora_name] = self.fake
                return ModelCard(id=change.lora_name, created=CREATED, parent=change.model)
            case UnloadRequest() | UnloadAdapterRequest():
                name = change.model if isinstance(change, UnloadRequest) else change.lora_name
                if self.loaded.pop(name, None) is None:
                    raise UnknownModel(f"no model {name[:100]!r} here")
        return None

    async def close(self, drain_seconds: float) -> None:
        self.closed_after = drain_seconds


def _logprob(piece: str) -> TokenLogprob:
    top = TopLogprob(token=piece, bytes=list(piece.encode()), logprob=-0.5)
    return TokenLogprob(token=piece, bytes=list(piece.encode()), logprob=-0.5, top_logprobs=[top])
