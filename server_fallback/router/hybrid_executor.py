"""The executor over a pair of sides: each request is answered near or far, as the policy decides, and every answer has
its route.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Abilities, Call, ExecutorState
from ..schema.chat import ChatCompletionRequest
from ..schema.common import GenerationRequest
from ..schema.completions import AnswerRequest, CompletionRequest
from ..schema.decide import DecideRequest
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.route import Side
from ..schema.routed import (
    RoutedChatRequest,
    RoutedCompletionRequest,
    RoutedDecideRequest,
    RoutedDecideResponse,
    RoutedEmbeddingRequest,
    unlabelled_chat,
    unlabelled_completion,
    unlabelled_decisions,
    unlabelled_embedding,
)
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..text.output import Output
from .answer.running_answer import RunningAnswer
from .decision.situation import FarState, Media, Message, NearState, Situation, Stake
from .decisions import chat_of, decide
from .sides.answer_piece import Form
from .sides.continued import limits
from .sides.masker import MaskedChat
from .sides.near import NearSide
from .sides.sides import Sides
from .sides.texts import texts_of, with_file_texts, with_texts_of
from .whole_answer import on_a_side


class HybridExecutor:
    """An `Executor` that gives one answer per request. It owns the sides and closes them."""

    def __init__(self, sides: Sides, name: str) -> None:
        self.sides, self._name = sides, name

    @property
    def context(self) -> int:
        """The longer context of the two sides; 0 if it is not known."""
        sides = self.sides
        near = sides.near.executor.context if sides.near is not None else 0
        far = (sides.far.model.context or 0) if sides.far is not None and sides.far.model is not None else 0
        return max(near, far)

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        one_answer(request)
        read = self._completion(request, call) if isinstance(request, CompletionRequest) else self._chat(request, call)
        async with aclosing((await read).chunks()) as chunks:
            async for chunk in chunks:
                output.chunk(chunk)
                await output.room()

    async def _chat(self, request: ChatCompletionRequest, call: Call) -> RunningAnswer:
        request, files = await asyncio.to_thread(with_file_texts, request)
        messages, texts, media = await asyncio.to_thread(texts_of, request)
        situation = situation_of(request, messages, texts, (*media, *files))
        situation = replace(
            situation,
            max_tokens=min(limits(request).values(), default=None),
            tools=bool(request.tools) and request.tool_choice != "none",
        )
        plain = unlabelled_chat(request)
        return RunningAnswer(self.sides, plain, situation, Form(self._name, plain), call)

    async def _completion(self, request: CompletionRequest, call: Call) -> RunningAnswer:
        if request.echo or request.has_gap or request.best_of not in (None, 1):
            raise RequestError(
                "echo, best_of and suffix are not supported when two sides may answer; remove them", param="echo"
            )
        text = await self._text(request.prompt)
        _, texts, media = await asyncio.to_thread(texts_of, request.model_copy(update={"prompt": text}))
        prompt = Message("user", text)
        situation = replace(situation_of(request, (prompt,), texts, media), max_tokens=request.max_tokens)
        plain = unlabelled_completion(request)
        return RunningAnswer(self.sides, plain, situation, Form(self._name, plain), call)

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:
        """As the function `embed`."""
        # Each input is a prompt of its own, so they do not meet.
        written = request.model_copy(update={"input": await self._texts(request.input)})
        _, texts, media = await asyncio.to_thread(texts_of, written)
        situation = situation_of(request, (), texts, media)
        answer = await embed(self.sides, unlabelled_embedding(request), situation, call)
        return answer.model_copy(update={"model": self._name})

    async def decide(self, request: DecideRequest, call: Call) -> RoutedDecideResponse:
        """As the function `decide`."""
        chat = chat_of(request)
        messages, texts, media = await asyncio.to_thread(texts_of, chat)
        if any(each.kind not in ("picture", "video") for each in media):
            raise RequestError(
                "the messages have recordings or files, and two sides decide about texts and pictures only; send their "
                "texts, or ask one side",
                param="messages",
            )
        # Far reads the names, too.
        situation = situation_of(request, messages, (*texts, *request.questions), media)
        answer = await decide(self.sides, unlabelled_decisions(request), chat, situation, call)
        return answer.model_copy(update={"model": self._name})

    async def leaving(self, request: RoutedChatRequest, call: Call) -> MaskedChat | None:
        """A chat as the policy lets it leave this machine, for others than far; None if it must stay."""
        messages, texts, media = await asyncio.to_thread(texts_of, request)
        situation = situation_of(request, messages, texts, media)
        plain, masker = unlabelled_chat(request), self.sides.masker
        if masker is None:
            return None if await self.sides.is_private(situation) else MaskedChat(plain)

        async def situated(masked: ChatCompletionRequest) -> Situation:
            return await asyncio.to_thread(with_texts_of, situation, masked)

        masked = await masker.mask(plain, situation, situated, call)
        return masked if isinstance(masked, MaskedChat) else None

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Near's tokens."""
        if self.sides.near is None:
            raise RequestError(f"{self._name}: has no near side to read or write tokens", param="model")
        return await self.sides.near.executor.tokenize(request)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        if self.sides.near is None:
            raise RequestError(f"{self._name}: has no near side to read or write tokens", param="model")
        return await self.sides.near.executor.detokenize(request)

    def abilities(self) -> Abilities:
        """The features that both sides have. A pair reports no tokenizer, so no other server shares an answer with it
        by token ids.
        """
        sides = self.sides
        return Abilities(
            None,
            None,
            tools=sides.calls_tools,
            embeds=False,
            vision=sides.reads_images,
            video=sides.reads_videos,
            hears=sides.hears,
        )

    def state(self) -> ExecutorState:
        sides = self.sides
        details = [f"far {sides.far.far.base_url}"] if sides.far is not None else []
        far_running = sides.far.running if sides.far is not None else 0
        details += [f"{side} circuit open" for side, circuit in sides.circuits.items() if circuit.state == "open"]
        guessed = sides.speculation
        if guessed is not None and guessed.rounds > 0:
            details.append(f"near guessed {guessed.accepted} of far's {guessed.tokens} tokens")
        if sides.missing_vectors > 0:
            details.append(f"requests decided without a vector: {sides.missing_vectors}")
        if sides.near is None:
            return ExecutorState(ready=sides.circuits["far"].admits, detail=", ".join(details), running=far_running)
        near = sides.near.executor.state()
        engine = near.engine
        if engine.batches is None and sides.embedder is not None and sides.embedder.state is not None:
            engine = replace(engine, batches=sides.embedder.state().engine.batches)
        detail = ", ".join([f"near {near.detail}", *details])
        return replace(near, detail=detail, running=near.running + far_running, engine=engine)

    async def close(self) -> None:
        await self.sides.close()

    async def _texts(self, inputs: str | list[int] | list[str] | list[list[int]]) -> list[str]:
        if isinstance(inputs, str):
            return [inputs]
        ids = [part for part in inputs if isinstance(part, int)]
        if len(ids) == len(inputs):
            return [await self._text(ids)]
        return [
            part if isinstance(part, str) else await self._text(part) for part in inputs if not isinstance(part, int)
        ]

    async def _text(self, prompt: str | list[int] | list[str] | list[list[int]]) -> str:
        """The text of a prompt. Token ids are near's, and their text decides whether they are private."""
        if isinstance(prompt, str):
            return prompt
        ids = [part for part in prompt if isinstance(part, int)]
        if len(ids) != len(prompt):
            raise RequestError(
                "only one prompt per request is supported when two sides may answer; send one request for each",
                param="prompt",
            )
        if self.sides.near is None:
            raise RequestError(
                f"{self._name}: has no near side, so token ids have no meaning; send a text", param="prompt"
            )
        return await self.sides.near.text_of(ids)


def situation_of(
    request: BaseModel, messages: tuple[Message, ...], texts: tuple[str, ...], media: tuple[Media, ...]
) -> Situation:
    """The part of the situation that is known from the request; both sides are filled in later."""
    kinds = RoutedChatRequest | RoutedCompletionRequest | RoutedDecideRequest | RoutedEmbeddingRequest
    routed = request if isinstance(request, kinds) else None
    return Situation(
        messages=messages,
        near=NearState(available=False),
        far=FarState(online=False),
        labels=tuple(routed.labels or ()) if routed is not None else (),
        texts=texts,
        media=media,
        pin=routed.pin if routed is not None else None,
        language=routed.language if routed is not None else None,
        stake=stake_of(request),
    )


def stake_of(request: BaseModel) -> Stake | None:
    given = request.stake if isinstance(request, RoutedChatRequest) else None
    return None if given is None else Stake(weight=given.weight, doubt=given.doubt)


def one_answer(request: GenerationRequest) -> None:
    """Several answers could come from different sides, but a response has only one route."""
    if request.n not in (None, 1):
        raise RequestError(
            f"n is {request.n}; when two sides may answer, a request gets one answer; send n requests", param="n"
        )
    for name in ("prompt_logprobs", "return_token_ids"):
        # Receipts have the tokens of each side by themselves.
        if getattr(request, name) not in (None, False) and not (request.receipt and name == "return_token_ids"):
            raise RequestError(
                f"{name} is not supported when two sides may answer, whose tokens may differ; remove it", param=name
            )


async def embed(sides: Sides, request: EmbeddingRequest, situation: Situation, call: Call) -> EmbeddingResponse:
    """Embeddings over two sides, as `on_a_side`. Vectors of two models cannot be compared, so far only embeds if a near
    side that embeds has the same model.

    ``request`` has no labels or pin any more; ``situation`` has what is known from the request alone. Raises also
    RequestError with the code "different_models" if the vectors would not fit those of near.
    """

    async def ask(side: Side) -> EmbeddingResponse:
        near, far = sides.near, sides.far
        if side == "near":
            assert near is not None
            return await near.executor.embed(request, call)
        assert far is not None
        return await far.embed(request, call)

    async def check(side: Side) -> None:
        if side == "far" and sides.near is not None and sides.near.embeds and sides.policy.mode != "far-only":
            await require_one_model(sides, sides.near, call)

    situation = replace(situation, near=sides.near_state(None, embeds=True), far=await sides.far_state())
    return (await on_a_side(sides, situation, ask, embeds=True, check=check)).answer


async def require_one_model(sides: Sides, near: NearSide, call: Call) -> None:
    """Raises RequestError unless the sides' models have one name and, as far as it is known, one tokenizer."""
    assert sides.far is not None
    model, ours = await sides.far.reach(call), near.abilities.tokenizer_sha256 if near.abilities else None
    fits = None in (ours, model.tokenizer_sha256) or ours == model.tokenizer_sha256
    if model.id == near.name and fits:
        return
    which = "with different tokenizers" if model.id == near.name else f"and the far side {model.id!r}"
    raise RequestError(
        f"this device has the embedding model {near.name!r} {which}, so their vectors cannot be compared; use the same "
        "model under the same name, or a policy with the mode near-only or far-only",
        code="different_models",
    )
