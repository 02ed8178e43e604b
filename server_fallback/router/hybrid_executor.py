"""The executor over a pair of sides: each request is answered near or far, as the policy says, and every answer tells its route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from pydantic import BaseModel

from nearfar.compiler.errors import RequestError

from ..executors.executor import Abilities, Call, ExecutorState
from ..schema.chat import ChatCompletionChunk, ChatCompletionRequest
from ..schema.common import GenerationRequest
from ..schema.completions import CompletionChunk, CompletionRequest
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.routed import (
    RoutedChatRequest,
    RoutedCompletionRequest,
    RoutedEmbeddingRequest,
    unlabelled_chat,
    unlabelled_completion,
    unlabelled_embedding,
)
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from .answer.answering import Answering
from .answer.forms import ChatForm, CompletionForm
from .decision.situation import FarState, Message, NearState, Situation
from .sides.continued import limits
from .sides.sides import Sides, lacking
from .sides.texts import messages_of, other_texts


class HybridExecutor:
    """An `Executor`, of one answer a request. The sides are the executor's from now on, which closes them in the end."""

    def __init__(self, sides: Sides, name: str) -> None:
        self.sides, self._name = sides, name

    @property
    def context(self) -> int:
        """Of the side that takes more; 0 where it is not known."""
        sides = self.sides
        near = sides.near.executor.context if sides.near is not None else 0
        far = (sides.far.known.context or 0) if sides.far is not None and sides.far.known is not None else 0
        return max(near, far)

    async def chat(self, request: ChatCompletionRequest, call: Call) -> AsyncGenerator[ChatCompletionChunk, None]:
        one_answer(request)
        asked = asked_by(request, messages_of(request), await asyncio.to_thread(other_texts, request))
        asked = replace(
            asked,
            max_tokens=min(limits(request).values(), default=None),
            tools=bool(request.tools) and request.tool_choice != "none",
            vision=any(message.images for message in request.messages),
        )
        plain = unlabelled_chat(request)
        answering = Answering(self.sides, plain, asked, ChatForm(self._name, plain), call)
        async with aclosing(answering.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def complete(self, request: CompletionRequest, call: Call) -> AsyncGenerator[CompletionChunk, None]:
        one_answer(request)
        if request.echo or request.suffix or request.best_of not in (None, 1):
            raise RequestError(
                "echo, best_of and suffix are not supported where two sides may answer; leave them out", param="echo"
            )
        prompt = Message("user", await self._text(request.prompt))
        asked = replace(asked_by(request, (prompt,), other_texts(request)), max_tokens=request.max_tokens)
        plain = unlabelled_completion(request)
        answering = Answering(self.sides, plain, asked, CompletionForm(self._name, plain), call)
        async with aclosing(answering.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:
        """By near where it embeds: vectors of two models do not compare. Else by far, where the texts may leave."""
        sides, plain = self.sides, unlabelled_embedding(request)
        messages = tuple(Message("user", text) for text in await self._texts(request.input))
        asked = asked_by(request, messages, (request.user,) if request.user is not None else ())
        if sides.near is not None and sides.near.embeds and asked.pin != "far":
            answer = await sides.near.executor.embed(plain, call)
            return answer.model_copy(update={"model": self._name})
        private = await sides.is_private(asked)
        decision = await sides.decide(replace(asked, far=await sides.far_state()), private=private)
        if decision.side != "far" or sides.far is None:
            raise lacking(decision.reason)
        if not await sides.take():
            raise lacking("budget")
        answer = await sides.far.embed(plain, call)
        await sides.pay(answer.usage.prompt_tokens, 0)
        return answer.model_copy(update={"model": self._name})

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Near's tokens."""
        if self.sides.near is None:
            raise RequestError(f"{self._name}: has no near side, whose tokens could be told", param="model")
        return await self.sides.near.executor.tokenize(request)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        if self.sides.near is None:
            raise RequestError(f"{self._name}: has no near side, whose tokens could be told", param="model")
        return await self.sides.near.executor.detokenize(request)

    def abilities(self) -> Abilities:
        """What holds whichever side answers, so nobody shares an answer with a pair by token ids."""
        return Abilities(tokenizer_sha256=None, vocab_size=None, tools=self.sides.calls_tools, embeds=False)

    def state(self) -> ExecutorState:
        sides = self.sides
        told = [f"far {sides.far.far.base_url}"] if sides.far is not None else []
        there = sides.far.running if sides.far is not None else 0
        told += [f"{side} left alone" for side, circuit in sides.circuits.items() if circuit.state == "open"]
        guessed = sides.speculation
        if guessed is not None and guessed.rounds > 0:
            told.append(f"near guessed {guessed.accepted} of far's {guessed.tokens} tokens")
        if sides.near is None:
            return ExecutorState(ready=sides.circuits["far"].admits, detail=", ".join(told), running=there)
        near = sides.near.executor.state()
        return replace(near, detail=", ".join([f"near {near.detail}", *told]), running=near.running + there)

    async def close(self) -> None:
        await self.sides.close()

    async def _texts(self, given: str | list[int] | list[str] | list[list[int]]) -> list[str]:
        if isinstance(given, str):
            return [given]
        ids = [part for part in given if isinstance(part, int)]
        if len(ids) == len(given):
            return [await self._text(ids)]
        return [
            part if isinstance(part, str) else await self._text(part) for part in given if not isinstance(part, int)
        ]

    async def _text(self, prompt: str | list[int] | list[str] | list[list[int]]) -> str:
        """Token ids are near's; whether they are private is seen in their text."""
        if isinstance(prompt, str):
            return prompt
        ids = [part for part in prompt if isinstance(part, int)]
        if len(ids) != len(prompt):
            raise RequestError(
                "one prompt a request, where two sides may answer; ask for each by itself", param="prompt"
            )
        if self.sides.near is None:
            raise RequestError(
                f"{self._name}: has no near side, whose token ids these could be; give a text", param="prompt"
            )
        return await self.sides.near.text_of(ids)


def asked_by(request: BaseModel, messages: tuple[Message, ...], texts: tuple[str, ...]) -> Situation:
    """What the request tells of the situation; both sides are filled in later."""
    routed = (
        request if isinstance(request, RoutedChatRequest | RoutedCompletionRequest | RoutedEmbeddingRequest) else None
    )
    return Situation(
        messages=messages,
        near=NearState(available=False),
        far=FarState(online=False),
        labels=tuple(routed.labels or ()) if routed is not None else (),
        texts=texts,
        pin=routed.pin if routed is not None else None,
        language=routed.language if routed is not None else None,
    )


def one_answer(request: GenerationRequest) -> None:
    """Several answers could come from different sides, and an answer has one route."""
    if request.n not in (None, 1):
        raise RequestError(
            f"n is {request.n}; where two sides may answer, a request gets one answer: ask n times", param="n"
        )
