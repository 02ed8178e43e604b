"""The far side: a server of the same routes. Requests flow in, what it says flows out; every failure is one of our errors.

Nothing is sent before somebody asks: no checks run beside the requests, so that a private answer leaves no trace at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from nearfar.compiler.errors import NearfarError, RequestError

from ...executors.dialect import Dialect, generation_body
from ...executors.executor import Call
from ...executors.refusal import printable
from ...executors.upstream import Upstream, make_upstream
from ...executors.upstream_answers import checked, in_our_form
from ...executors.upstream_bounds import bounds_of
from ...schema.about import API_VERSION, About
from ...schema.chat import ChatCompletionChunk, ChatCompletionRequest
from ...schema.completions import CompletionChunk, CompletionRequest
from ...schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ...schema.tokenize import TokenizeRequest, TokenizeResponse
from ..decision.speed import FarQueue
from .said import Said, said_in_chat, said_in_completion


@dataclass(frozen=True, slots=True)
class Far:
    """Where the far side is. ``base_url`` with or without /v1; ``model`` None for the only one there. ``dialect``: what it takes beside
    OpenAI's parameters; "nearfar" is `nearfar serve`. ``vision``: its model sees images, which no server tells."""

    base_url: str
    api_key: str | None = None
    model: str | None = None
    dialect: Dialect = "nearfar"
    vision: bool = False


@dataclass(frozen=True, slots=True)
class FarModel:
    """What the server says of the model; None where it does not say it. ``round_trip_seconds`` is how long it took to say it; ``verify``:
    it checks drafts over the wire."""

    id: str
    context: int | None
    tokenizer_sha256: str | None
    tools: bool
    round_trip_seconds: float
    verify: bool = False


class FarSide:
    """``known`` is None until the server has answered once."""

    def __init__(self, far: Far) -> None:
        """Raises RequestError for a URL that is none."""
        self.far = far
        self.known: FarModel | None = None
        self._upstream: Upstream = make_upstream(far.base_url, far.api_key, any_request_id=far.dialect != "openai")
        self._queue = FarQueue()
        self._upstream.observe_headers = lambda headers: self._queue.update(headers, monotonic())
        self._opening = asyncio.Lock()

    @property
    def running(self) -> int:
        """Requests under way."""
        return self._upstream.outstanding

    @property
    def queue_seconds(self) -> float:
        """How long a request waits for the server's device, as far as it told lately."""
        return self._queue.seconds(monotonic())

    async def opened(self, call: Call | None = None) -> FarModel:
        """What the server says of the model, asked for once.

        Raises RequestError with the code "api_version" for a server of other extensions than ours or none, "wrong_key", and
        "unknown_model"; and Unavailable where it does not answer now.
        """
        async with self._opening:
            if self.known is None:
                call = call or Call("about")
                began = monotonic()
                path = "/v1/nearfar/about" if self.far.dialect == "nearfar" else "/v1/models"
                try:
                    told = await self._upstream.ask("GET", path, None, call)
                except NearfarError as error:
                    raise self._explained(error) from error
                cards = self._about(told) if self.far.dialect == "nearfar" else listed(told)
                self.known = self._chosen(cards, monotonic() - began)
            return self.known

    async def ask(self, request: ChatCompletionRequest | CompletionRequest, call: Call) -> AsyncGenerator[Said, None]:
        """Raises as `Upstream.stream`, and as `opened` where nothing was asked before."""
        known = await self.opened(call)
        body = generation_body(
            request, known.id, self.far.dialect, priority=call.priority if self.far.dialect == "nearfar" else None
        )
        chat = isinstance(request, ChatCompletionRequest)
        values = self._upstream.stream("/v1/chat/completions" if chat else "/v1/completions", body, call)
        async with (
            aclosing(values),
            aclosing(in_our_form(values, known.id, bounds_of(request, self.far.dialect))) as chunks,
        ):
            async for chunk in chunks:
                if chat:
                    yield said_in_chat(checked(ChatCompletionChunk, chunk, known.id))
                else:
                    yield said_in_completion(checked(CompletionChunk, chunk, known.id))

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:
        known = await self.opened(call)
        body = request.model_dump(mode="json", exclude_none=True) | {"model": known.id}
        return checked(EmbeddingResponse, await self._upstream.ask("POST", "/v1/embeddings", body, call), known.id)

    async def tokenize(self, request: TokenizeRequest, call: Call) -> TokenizeResponse:
        """A server of the dialect "nearfar" has it."""
        known = await self.opened(call)
        body = request.model_dump(mode="json", exclude_none=True) | {"model": known.id}
        return checked(TokenizeResponse, await self._upstream.ask("POST", "/tokenize", body, call), known.id)

    async def close(self) -> None:
        await self._upstream.close()

    def _about(self, told: Mapping[str, Any]) -> list[FarModel]:
        if told.get("api_version") != API_VERSION:
            raise RequestError(
                f"{self._upstream.url}: its extensions are of version {told.get('api_version')!r}, ours of {API_VERSION}; "
                "update the older of the two",
                code="api_version",
            )  # fmt: skip
        models = checked(About, told, self._upstream.url).models
        return [FarModel(each.id, each.context, each.tokenizer_sha256, each.tools, 0.0, each.verify) for each in models]

    def _chosen(self, cards: list[FarModel], seconds: float) -> FarModel:
        wanted = self.far.model
        found = next(
            (card for card in cards if card.id == wanted), cards[0] if wanted is None and len(cards) == 1 else None
        )
        if found is None:
            names = ", ".join(card.id for card in cards) or "no model"
            message = (
                f"serves {names}; say which one (model, --far-model)"
                if wanted is None
                else f"does not serve {wanted!r}, but {names}"
            )
            raise RequestError(f"{self._upstream.url}: {message}", code="unknown_model", param="model")
        return replace(found, round_trip_seconds=seconds)

    def _explained(self, error: NearfarError) -> NearfarError:
        status = error.details.get("status")
        if status in (401, 403):
            return RequestError(
                f"{self._upstream.url}: refuses the API key that it was sent; give the right one",
                code="wrong_key",
                status=status,
            )
        if status == 404:
            return RequestError(
                f"{self._upstream.url}: has no /v1/nearfar/about, so it is no nearfar server or an older one; update it, or say which "
                "dialect it speaks: openai or vllm",
                code="api_version",
            )  # fmt: skip
        return error


def listed(told: Mapping[str, Any]) -> list[FarModel]:
    """Of OpenAI's list of models; servers of most kinds tell ``max_model_len``, and none whether the model calls tools."""
    data = told.get("data")
    cards = [card for card in data if isinstance(card, dict) and "id" in card] if isinstance(data, list) else []
    return [
        FarModel(
            printable(str(card["id"])),
            context if isinstance(context := card.get("max_model_len"), int) else None,
            None,
            True,
            0.0,
        )
        for card in cards
    ]
