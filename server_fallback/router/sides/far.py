"""The far side: a server with the same routes. Every failure is one of our errors.

Nothing is sent before there is a request: no health checks run beside the requests, so a private answer leaves no trace
at all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from nearfar.compiler.runtime.errors import NearfarError, RequestError

from ...executors.dialect import Dialect, generation_body, health_path, other_body
from ...executors.executor import Call
from ...executors.expected_tokens import expected_tokens
from ...executors.refusal import printable
from ...executors.relay import Relay
from ...executors.sglang import routing_headers
from ...executors.upstream import Upstream, make_upstream
from ...executors.upstream_answers import answer_kind, checked
from ...executors.upstream_bounds import bounds_of
from ...schema.about import API_VERSION, QUEUE_HEADER, About
from ...schema.completions import AnswerRequest
from ...schema.decide import DecideRequest, DecideResponse
from ...schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ...schema.tokenize import TokenizeRequest, TokenizeResponse
from ...text.output import Output, streamed
from .answer_piece import AnswerPiece, piece_of

# A queue changes faster than an app sends requests, so an older report says nothing about now.
REPORT_SECONDS = 30.0
# Longer than any queue in milliseconds, and within the precision of a number.
MAX_DIGITS = 12
# The identifiers of a trace (W3C Trace Context), which have no room for a text.
TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Far:
    """The address of the far side.

    ``base_url`` with or without /v1; ``model`` None for the server's only model. ``dialect``: what the server accepts
    besides OpenAI's parameters; "nearfar" is `nearfar serve`. ``vision``: its model reads images, ``video``:
    videos, and ``sound``: recordings in messages, which only `nearfar serve` reports itself. ``ca``: see
    `make_upstream`.
    """

    base_url: str
    api_key: str | None = None
    model: str | None = None
    dialect: Dialect = "nearfar"
    vision: bool = False
    video: bool = False
    sound: bool = False
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class FarModel:
    """The server's report about the model; None if there is no report.

    ``round_trip_seconds`` is the time of that request; ``verify``: the server checks drafts over the wire; ``vision``:
    the model reads images, ``video``: videos, and ``sound``: recordings. ``name`` is the one in the manifest of its
    bundle, None if it reports none.
    """

    id: str
    context: int | None
    tokenizer_sha256: str | None
    tools: bool
    round_trip_seconds: float
    verify: bool = False
    vision: bool = False
    video: bool = False
    sound: bool = False
    name: str | None = None


class FarSide:
    """``model`` is None until the server has answered once."""

    def __init__(self, far: Far, *, hides_ids: bool = False, strict: bool = False) -> None:
        """``hides_ids``: the server gets none of the clients' request ids and trace states, in which nothing private is
        searched. ``strict``: nor their traces and priorities, which nobody is shown. Raises RequestError for an invalid
        URL.
        """
        self.far, self._hides_ids, self._strict = far, hides_ids, strict
        self.model: FarModel | None = None
        self._upstream: Upstream = make_upstream(
            far.base_url, far.api_key, far.ca, any_request_id=far.dialect != "openai", health=health_path(far.dialect)
        )
        self._queue = FarQueue()
        self._upstream.observe_headers = lambda headers: self._queue.update(headers, monotonic())
        self._opening = asyncio.Lock()

    @property
    def reads_images(self) -> bool:
        return self.far.vision or (self.model is not None and self.model.vision)

    @property
    def reads_videos(self) -> bool:
        return self.far.video or (self.model is not None and self.model.video)

    @property
    def hears(self) -> bool:
        return self.far.sound or (self.model is not None and self.model.sound)

    @property
    def running(self) -> int:
        """The number of requests that are running."""
        return self._upstream.outstanding

    @property
    def queue_seconds(self) -> float:
        """The time that a request waits for the server's device, by the server's last report."""
        return self._queue.seconds(monotonic())

    async def reach(self, call: Call | None = None) -> FarModel:
        """The server's report about the model; it is requested until it has succeeded once.

        Raises RequestError with the code "api_version" for a server without our extensions or with another version of
        them, "wrong_key", or "unknown_model"; and Unavailable if the server does not answer now.
        """
        async with self._opening:
            if self.model is None:
                call = self._sent(call or Call("about"))
                requested_at = monotonic()
                path = "/v1/nearfar/about" if self.far.dialect == "nearfar" else "/v1/models"
                try:
                    response = await self._upstream.request("GET", path, None, call)
                except NearfarError as error:
                    raise self._explained(error) from error
                cards = self._about(response) if self.far.dialect == "nearfar" else listed_models(response)
                self.model = self._chosen(cards, monotonic() - requested_at)
            return self.model

    async def answer(self, request: AnswerRequest, call: Call) -> AsyncGenerator[AnswerPiece, None]:
        """Raises the errors of `Upstream.answer`, and those of `reach` if the server was not reached before."""
        model, dialect, call = await self.reach(call), self.far.dialect, self._sent(call)
        body = generation_body(request, model.id, dialect, priority=call.priority if dialect == "nearfar" else None)
        if dialect == "sglang":
            call = replace(call, headers=routing_headers(request, call.headers, named=not self._hides_ids))
        await call.expect(*expected_tokens(request, model.context))
        if call.observe_request is not None:
            call.observe_request(body)
        path, kind = answer_kind(request)

        async def send(output: Output[Any]) -> None:
            relay = Relay(kind, model.id, bounds_of(request, dialect), output, self._upstream.event_object)
            await self._upstream.answer(path, body, call, relay)

        async with aclosing(streamed(send)) as chunks:
            async for chunk in chunks:
                yield piece_of(chunk)

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:
        model = await self.reach(call)
        body = other_body(request, model.id, self.far.dialect)
        answer = await self._upstream.request("POST", "/v1/embeddings", body, self._sent(call))
        return checked(EmbeddingResponse, answer, model.id)

    async def decide(self, request: DecideRequest, call: Call) -> DecideResponse:
        """Only servers of the dialect "nearfar" have this route."""
        model = await self.reach(call)
        body = request.model_dump(mode="json", exclude_none=True) | {"model": model.id}
        return checked(
            DecideResponse, await self._upstream.request("POST", "/v1/decide", body, self._sent(call)), model.id
        )

    async def tokenize(self, request: TokenizeRequest, call: Call) -> TokenizeResponse:
        """Only servers of the dialect "nearfar" have this route."""
        model = await self.reach(call)
        body = request.model_dump(mode="json", exclude_none=True) | {"model": model.id}
        return checked(
            TokenizeResponse, await self._upstream.request("POST", "/tokenize", body, self._sent(call)), model.id
        )

    async def close(self) -> None:
        await self._upstream.close()

    def _sent(self, call: Call) -> Call:
        """The call as the server gets it."""
        if not self._hides_ids:
            return call
        if self._strict:
            return replace(call, request_id=str(uuid4()), headers={}, priority=0)
        trace = {name: value for name, value in call.headers.items() if TRACE_PARENT.fullmatch(value)}
        return replace(call, request_id=str(uuid4()), headers=trace)

    def _about(self, response: Mapping[str, Any]) -> list[FarModel]:
        version = response.get("api_version")
        if version is None:
            raise self._other_kind("names no version of nearfar's API")
        if version != API_VERSION:
            raise RequestError(
                f"{self._upstream.url}: uses version {version!r} of nearfar's API, this client version {API_VERSION}; "
                "update the older of them",
                code="api_version",
            )
        models = checked(About, response, self._upstream.url).models
        return [
            FarModel(
                each.id,
                each.context,
                each.tokenizer_sha256,
                each.tools,
                0.0,
                verify=each.verify,
                vision=each.vision,
                video=each.video,
                sound=each.sound,
                name=each.model,
            )
            for each in models
            # The transcriber of a server is no side, unless it is named.
            if not each.transcribes or each.id == self.far.model
        ]

    def _chosen(self, cards: list[FarModel], seconds: float) -> FarModel:
        requested = self.far.model
        match = next(
            (card for card in cards if card.id == requested),
            cards[0] if requested is None and len(cards) == 1 else None,
        )
        if match is None:
            names = ", ".join(card.id for card in cards) or "no model"
            message = (
                f"serves {names}; choose one of them (model, --far-model)"
                if requested is None
                else f"does not serve {requested!r}, but {names}"
            )
            raise RequestError(f"{self._upstream.url}: {message}", code="unknown_model", param="model")
        return replace(match, round_trip_seconds=seconds)

    def _explained(self, error: NearfarError) -> NearfarError:
        status = error.details.get("status")
        if status in (401, 403):
            return RequestError(
                f"{self._upstream.url}: rejects the API key; use a valid key",
                code="wrong_key",
                status=status,
            )
        if status == 404:
            return self._other_kind("has no /v1/nearfar/about")
        return error

    def _other_kind(self, why: str) -> RequestError:
        return RequestError(
            f"{self._upstream.url}: {why}, so it is an older nearfar server or another kind; update it, or set its "
            "dialect: openai, vllm or sglang",
            code="api_version",
        )


class FarQueue:
    """The time that a request waits at the far server before its device begins, as the server's last answer reported
    it.

    ``now`` is in seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._seconds, self._reported_at = 0.0, float("-inf")

    def update(self, headers: Mapping[str, str], now: float) -> None:
        """Read the headers of an answer; if they report no queue, nothing changes."""
        reported = headers.get(QUEUE_HEADER, "")
        if reported.isascii() and reported.isdigit() and len(reported) <= MAX_DIGITS:
            self._seconds, self._reported_at = int(reported) / 1000, now

    def seconds(self, now: float) -> float:
        """0 without a report in the last 30 s."""
        return self._seconds if now - self._reported_at <= REPORT_SECONDS else 0.0


def listed_models(response: Mapping[str, Any]) -> list[FarModel]:
    """The models of OpenAI's list.

    Most kinds of servers report ``max_model_len``; none reports whether the model calls tools.
    """
    data = response.get("data")
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
