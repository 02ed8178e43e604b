"""A scripted near model, a scripted far server, and the hybrid of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from answers import Generating
from fake_openai import FakeOpenAI, Received, Reply, running, text_chunks
from waiting import WAIT_SECONDS, hang

from nearfar.compiler.runtime.errors import NearfarError, RequestError
from nearfar.server_fallback.executors.executor import Abilities, Call, ExecutorState
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    ToolCallDelta,
)
from nearfar.server_fallback.schema.common import FinishReason, TokenLogprob, TopLogprob, Usage
from nearfar.server_fallback.schema.completions import CompletionChunk, CompletionChunkChoice, CompletionRequest
from nearfar.server_fallback.schema.embeddings import Embedding, EmbeddingRequest, EmbeddingResponse
from nearfar.server_fallback.schema.encoding import EncodingUsage
from nearfar.server_fallback.schema.functions import FunctionCallDelta
from nearfar.server_fallback.schema.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

Result = TypeVar("Result")
SHA = "5ha"
ABOUT = {"id": "big", "context": 128, "tokenizer_sha256": SHA, "vocab_size": 128, "tools": True, "verify": False}
QUESTION = [{"role": "user", "content": "hi"}]
FAR_USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


@dataclass
class FakeNear(Generating):
    """Generates ``text``, one token per character, or continues with the part that is not in the request yet. It hangs
    before token ``hangs_at``, ``quickly`` as in `hang`, and raises ``error`` before token ``error_at``. ``calls``: it
    generates one tool call instead. Its first ``reasons`` characters are reasoning.

    ``logprobs`` are those of the first tokens, -0.1 for the rest. ``prompt_logprobs`` are the prompt's, and
    ``prompt_reports`` counts how often they were requested. ``requests`` are all requests, ``closed_early`` counts the
    answers that were closed early.
    """

    text: str = "near says"
    error: NearfarError | None = None
    error_at: int = 0
    hangs_at: int | None = None
    quickly: bool = False
    calls: bool = False
    reasons: int = 0
    logprobs: tuple[float, ...] = ()
    prompt_logprobs: tuple[float, ...] = ()
    prompt_reports: int = 0
    embeds: bool = False
    sees: bool = False
    watches: bool = False
    context: int = 512
    requests: list[ChatCompletionRequest | CompletionRequest | EmbeddingRequest] = field(default_factory=list)
    closed_early: int = 0
    closed: bool = False

    async def chat(self, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        def made(
            delta: Delta, logprobs: ChatLogprobs | None = None, finish_reason: FinishReason | None = None
        ) -> ChatCompletionChunk:
            choice = ChunkChoice(index=0, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
            return ChatCompletionChunk(id="near", created=1, model="tiny", choices=[choice])

        start = self._start(request.messages[-1].content) if request.continue_final_message else 0
        count = 0
        yield made(Delta(role="assistant", content=""))
        async for index, character in self._characters(request, call, start):
            count += 1
            logprob = self.logprobs[index] if index < len(self.logprobs) else -0.1
            shown = (
                ChatLogprobs(content=[token_logprob(character, logprob, request.top_logprobs or 0)])
                if request.logprobs
                else None
            )
            if self.calls:
                call_delta = ToolCallDelta(
                    index=0, id="c", type="function", function=FunctionCallDelta(name="f", arguments=character)
                )
                yield made(Delta(tool_calls=[call_delta]), shown)
            else:
                yield made(
                    Delta(reasoning_content=character) if index < self.reasons else Delta(content=character), shown
                )
        yield made(Delta(), finish_reason="tool_calls" if self.calls else "stop")
        usage = Usage(prompt_tokens=5, completion_tokens=count, total_tokens=5 + count)
        yield ChatCompletionChunk(id="near", created=1, model="tiny", choices=[], usage=usage)

    async def complete(self, request: CompletionRequest, call: Call) -> AsyncGenerator[CompletionChunk, None]:
        start = self._start(request.prompt)
        async for _, character in self._characters(request, call, start):
            yield CompletionChunk(
                id="near", created=1, model="tiny", choices=[CompletionChunkChoice(index=0, text=character)]
            )
        yield CompletionChunk(
            id="near", created=1, model="tiny", choices=[CompletionChunkChoice(index=0, text="", finish_reason="stop")]
        )
        usage = Usage(
            prompt_tokens=5, completion_tokens=len(self.text) - start, total_tokens=5 + len(self.text) - start
        )
        yield CompletionChunk(id="near", created=1, model="tiny", choices=[], usage=usage)

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:  # noqa: ARG002
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return EmbeddingResponse(
            data=[Embedding(index=0, embedding=[1.0])],
            model="tiny",
            usage=EncodingUsage(prompt_tokens=1, total_tokens=1),
        )

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        if any(message.images for message in request.messages or ()) and not self.sees:
            raise RequestError("sees no images", param="messages")
        ids = (
            prompt_ids(request.model_dump()["messages"])
            if request.messages is not None
            else [ord(c) for c in request.prompt or ""]
        )
        return TokenizeResponse(tokens=ids, count=len(ids), max_model_len=self.context)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        return DetokenizeResponse(prompt="".join(map(chr, request.tokens)))

    def abilities(self) -> Abilities:
        return Abilities(SHA, 128, tools=True, embeds=self.embeds, vision=self.sees, video=self.watches)

    def state(self) -> ExecutorState:
        return ExecutorState(ready=True, detail="fake")

    async def close(self) -> None:
        self.closed = True

    def _start(self, before: Any) -> int:
        """The length of the leading part of the text with which the request ends."""
        return next((size for size in range(len(self.text), 0, -1) if str(before).endswith(self.text[:size])), 0)

    async def _characters(
        self, request: ChatCompletionRequest | CompletionRequest, call: Call, start: int
    ) -> AsyncGenerator[tuple[int, str], None]:
        self.requests.append(request)
        if call.observe_prompt_logprobs is not None:
            self.prompt_reports += 1
            call.observe_prompt_logprobs(self.prompt_logprobs)
        try:
            for index, character in list(enumerate(self.text))[start:]:
                if self.hangs_at == index:
                    await hang(quickly=self.quickly)
                if self.error is not None and self.error_at == index:
                    raise self.error
                if call.observe_token is not None:
                    call.observe_token(ord(character))
                yield index, character
        except (asyncio.CancelledError, GeneratorExit):
            self.closed_early += 1
            raise


def token_logprob(text: str, logprob: float, top: int) -> TokenLogprob:
    best = [TopLogprob(token=text, logprob=logprob)] if top else []
    return TokenLogprob(token=text, logprob=logprob, top_logprobs=best)


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """The output of the chat template on both sides."""
    return [ord(character) for message in messages for character in f"<{message['content']}>"]


class FakeFar(FakeOpenAI):
    """A nearfar server: ``answer`` returns the reply to a request for tokens. ``received`` has all requests."""

    def __init__(
        self, answer: Callable[[Received], Reply] = lambda _: Reply(chunks=text_chunks("far ", "says", usage=FAR_USAGE))
    ) -> None:
        super().__init__(self._reply)
        self.answer = answer
        self.about: Reply = Reply(value={"api_version": 1, "models": [ABOUT]})

    @property
    def generated(self) -> list[dict[str, Any]]:
        """The bodies of the requests for tokens."""
        return [
            received.body or {}
            for received in self.received
            if received.path in ("/v1/chat/completions", "/v1/completions")
        ]

    def _reply(self, received: Received) -> Reply:
        if received.path == "/v1/nearfar/about":
            return self.about
        if received.path == "/tokenize":
            ids = prompt_ids((received.body or {})["messages"])
            return Reply(value={"tokens": ids, "count": len(ids), "max_model_len": 128})
        return self.answer(received)


def completion(*texts: str) -> list[Any]:
    """The chunks of a completion of token ids."""
    parts = [{"index": 0, "text": text, "finish_reason": None} for text in texts] + [
        {"index": 0, "text": "", "finish_reason": "stop"}
    ]
    whole = [
        {"id": "c", "object": "text_completion", "created": 5, "model": "big", "choices": [part]} for part in parts
    ]
    return [*whole, {**whole[0], "choices": [], "usage": FAR_USAGE}]


def policy(mode: str = "prefer-near", **more: Any) -> dict[str, Any]:
    return {"version": 1, "mode": mode, **more}


@asynccontextmanager
async def hybrid(
    near: FakeNear | None, far: FakeFar | None, rules: dict[str, Any], **options: Any
) -> AsyncIterator[Hybrid]:
    """``options`` are those of Far."""
    async with running(*([far] if far is not None else [])):
        place = Far(far.url, **options) if far is not None else None
        async with await Hybrid.create(near=near, far=place, policy=rules) as opened:
            yield opened


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """With a limit, so that a hanging test fails."""

    async def limited() -> Result:
        async with asyncio.timeout(WAIT_SECONDS):
            return await work

    return asyncio.run(limited())


def ask(near: FakeNear | None, far: FakeFar | None, rules: dict[str, Any], **parameters: Any) -> ChatCompletion:
    """One complete answer."""

    async def work() -> ChatCompletion:
        async with hybrid(near, far, rules) as opened:
            answer: ChatCompletion = await opened.chat.completions.create(**{"messages": QUESTION, **parameters})
            return answer

    return run(work())


def outcome(answer: ChatCompletion) -> tuple[str | None, str, str, int | None]:
    """An answer's text, side, reason and switched_at."""
    assert answer.route is not None
    return answer.choices[0].message.content, answer.route.side, answer.route.reason, answer.route.switched_at
