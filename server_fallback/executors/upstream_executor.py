"""UpstreamExecutor sends requests to other servers, the replicas of one model; UpstreamOpener opens one.

A request without an answer is sent to another replica, with at most three attempts in total. After the first chunk a
failure is reported to the client, so that nothing is paid for or sent twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, QueueFull, RequestError, Unavailable

from ..schema.chat import ChatCompletionRequest
from ..schema.completions import AnswerRequest
from ..schema.decide import DecideRequest, DecideResponse
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.encoding import EncodingRequest
from ..schema.receipt import AnswerPart
from ..schema.rerank import RerankRequest, RerankResponse
from ..schema.score import ClassifyRequest, ClassifyResponse, ScoreRequest, ScoreResponse
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..text.attachments import has_media, recordings
from ..text.output import Changed, Output
from .dialect import Dialect, generation_body, health_path, other_body
from .executor import Call, Executor, ExecutorState, Opening
from .expected_tokens import expected_text_tokens, expected_tokens
from .prefill_placement import PrefillPlacement
from .prefill_workers import PrefillWorkers
from .relay import Relay
from .replicas import Replica, Replicas, prefixes_of
from .sglang import SERVER_INFO, priorities_of, reranked, routing_headers
from .upstream import Upstream, make_upstream
from .upstream_answers import CHAT, COMPLETIONS, answer_kind, checked
from .upstream_bounds import bounds_of

ATTEMPTS = 3
# The wait before the second attempt is between half of this and all of it; before the third, it is twice as long.
RETRY_SECONDS = 0.1
EMBEDDINGS = "/v1/embeddings"
RERANK, SCORE, CLASSIFY = "/v1/rerank", "/v1/score", "/v1/classify"
DECIDE = "/v1/decide"
GENERATES = (CHAT, COMPLETIONS)
OtherRequest = EncodingRequest | DecideRequest | TokenizeRequest | DetokenizeRequest


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
    """``model`` is the upstream's name for the model, None for the only one that it serves; ``name`` is our name.
    ``priorities``: 1 if the upstream serves the highest priority first, -1 for the lowest (vLLM with
    --scheduling-policy priority), 0 if it accepts none: without that option, vLLM rejects requests that have one.
    ``routes`` are the paths that it answers, None if that is not known. ``prefill_urls`` are the prefill workers of the
    upstreams, for prompts of about ``prefill_tokens`` that an upstream has not seen. ``ca``: see `make_upstream`.
    """

    urls: tuple[str, ...]
    name: str
    model: str | None = None
    dialect: Dialect = "openai"
    api_key: str | None = None
    context: int | None = None
    priorities: int = 0
    check_seconds: float = 5.0
    routes: frozenset[str] | None = None
    prefill_urls: tuple[str, ...] = ()
    prefill_api_key: str | None = field(default=None, repr=False)
    prefill_tokens: int = 256
    ca: Path | None = None

    @property
    def any_request_id(self) -> bool:
        return self.dialect != "openai"


class UpstreamOpener:
    """Implements `Opener`. A model has its servers' name for it unless the load request names another one;
    ``options.name`` is not used.
    """

    def __init__(self, options: UpstreamOptions) -> None:
        self._options = options

    async def prepare(self, model: str, name: str | None) -> Opening:
        options = replace(self._options, model=model, name=name or model)

        async def open_it() -> Executor:
            return await open_upstream(options)

        return Opening(options.name, None, open_it)


async def open_upstream(options: UpstreamOptions) -> UpstreamExecutor:
    """Find the upstreams' model. Raises RequestError for a bad URL or model name, Unavailable if no upstream
    answers.
    """
    if not options.urls:
        raise RequestError("an upstream model needs the URL of a server: --upstream http://host:port")
    upstreams = [upstream_of(url, options) for url in options.urls]
    try:
        model, context = await discover(upstreams, options)
        options = replace(options, priorities=await accepted_priorities(upstreams, options))
    except BaseException:
        for upstream in upstreams:
            await upstream.close()
        raise
    return UpstreamExecutor(Replicas(upstreams), options, model, options.context or context)


def upstream_of(url: str, options: UpstreamOptions) -> Upstream:
    return make_upstream(
        url, options.api_key, options.ca, any_request_id=options.any_request_id, health=health_path(options.dialect)
    )


async def only_model(options: UpstreamOptions) -> str:
    """Return the name of the servers' only model. Raises RequestError if they have several, Unavailable if no server
    answers.
    """
    upstreams = [upstream_of(url, options) for url in options.urls]
    try:
        model, _ = await discover(upstreams, options)
    finally:
        for upstream in upstreams:
            await upstream.close()
    return model


async def discover(upstreams: Sequence[Upstream], options: UpstreamOptions) -> tuple[str, int]:
    """The servers' name for the model, and its context (0 if it is not reported), from the first server that
    answers.
    """
    reason = Unavailable("no upstream was queried")
    for upstream in upstreams:
        try:
            listed = (await upstream.request("GET", "/v1/models", None, Call("discover"))).get("data")
            listed = listed if isinstance(listed, list) else []
        except Unavailable as error:
            reason = error
            continue
        cards = {str(card["id"]): card for card in listed if isinstance(card, dict) and "id" in card}
        model = options.model or (next(iter(cards)) if len(cards) == 1 else None)
        if model is None:
            raise RequestError(
                f"{upstream.url}: serves {', '.join(cards) or 'no model'}; name one of them",
                param="model",
            )
        if cards and model not in cards:
            raise RequestError(f"{upstream.url}: does not serve {model!r}, but {', '.join(cards)}", param="model")
        context = cards.get(model, {}).get("max_model_len")
        return model, context if isinstance(context, int) else 0
    raise reason


async def accepted_priorities(upstreams: Sequence[Upstream], options: UpstreamOptions) -> int:
    """How the servers order requests; see `UpstreamOptions`. SGLang's report it, if all of them answer."""
    if options.dialect == "nearfar":
        return 1
    if options.dialect != "sglang":
        return options.priorities
    asked = [upstream.request("GET", SERVER_INFO, None, Call("server_info")) for upstream in upstreams]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    # A router may have no such route.
    orders = {0 if isinstance(each, BaseException) else priorities_of(each) for each in answers}
    return orders.pop() if len(orders) == 1 else 0


class UpstreamExecutor:
    """Needs a running event loop, on which it checks its servers periodically."""

    def __init__(self, replicas: Replicas, options: UpstreamOptions, model: str, context: int) -> None:
        self._replicas, self._options, self._model, self._context = replicas, options, model, context
        self._checks = asyncio.create_task(self._check(options.check_seconds))
        self._placement: PrefillPlacement | None = None
        if options.prefill_urls:
            workers = PrefillWorkers(options.prefill_urls, options.prefill_api_key, options.ca, options.check_seconds)
            self._placement = PrefillPlacement(workers, options.prefill_tokens)

    @property
    def context(self) -> int:
        """0 if the upstream does not report it."""
        return self._context

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        """The answer of the first replica that answers."""
        path, kind = answer_kind(request)
        self._require_route(path)
        body = generation_body(
            request, self._model, self._options.dialect, priority=call.priority * self._options.priorities
        )
        if self._options.dialect == "sglang":
            call = replace(call, headers=routing_headers(request, call.headers))
        output = stating(output, body) if request.receipt else output
        bounds, prefixes, tried = bounds_of(request, self._options.dialect), prefixes_of(request), list[Upstream]()
        among = await self._that_hear(request, call)
        await call.expect(*expected_tokens(request, self._context))
        while True:
            seen = {replica.upstream: replica.matched(prefixes) for replica in self._replicas.all}
            upstream = self._replicas.choose(prefixes, tried, among=among)
            tried.append(upstream)
            relay = Relay(kind, self._options.name, bounds, output, upstream.event_object)
            try:
                if self._placement is None or has_media(request):
                    return await upstream.answer(path, body, call, relay)
                with self._placement.of(prefixes, seen[upstream], call, relay) as placed:
                    return await upstream.answer(path, body, placed, relay)
            except Unavailable as error:
                if relay.began:
                    raise
                await self._before_retry(error, tried)

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:
        answer = checked(EmbeddingResponse, await self._post(EMBEDDINGS, request, call), self._options.name)
        return answer.model_copy(update={"model": self._options.name})

    async def rerank(self, request: RerankRequest, call: Call) -> RerankResponse:
        value = await self._value(RERANK, request, call)
        if self._options.dialect == "sglang":
            value = reranked(value, request, self._options.name)
        answer = {"id": call.request_id, **as_object(value, self._options.name), "model": self._options.name}
        usage = answer.setdefault("usage", {})
        usage.setdefault("prompt_tokens", usage.get("total_tokens", 0))
        # Only Cohere has it.
        answer.setdefault("meta", {"api_version": {"version": "2"}, "tokens": {"input_tokens": usage["prompt_tokens"]}})
        return checked(RerankResponse, answer, self._options.name)

    async def score(self, request: ScoreRequest, call: Call) -> ScoreResponse:
        answer = checked(ScoreResponse, await self._post(SCORE, request, call), self._options.name)
        return answer.model_copy(update={"model": self._options.name})

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse:
        path = "/classify" if self._options.dialect == "vllm" else CLASSIFY
        answer = checked(ClassifyResponse, await self._post(path, request, call), self._options.name)
        if request.labels is not None and any(one.label not in request.labels for one in answer.data):
            raise RequestError(
                f"{self._options.name}: the server behind this model ignores labels and answered with its own; use a "
                "model that nearfar serves",
                param="labels",
            )
        return answer.model_copy(update={"model": self._options.name})

    async def decide(self, request: DecideRequest, call: Call) -> DecideResponse:
        if self._options.dialect != "nearfar":
            raise RequestError(
                f"{self._options.name}: the server behind this model has no /v1/decide; use one that nearfar serves",
                param="model",
            )
        answer = checked(DecideResponse, await self._post(DECIDE, request, call), self._options.name)
        return answer.model_copy(update={"model": self._options.name})

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        self._require_tokenize()
        return checked(TokenizeResponse, await self._post("/tokenize", request, Call("tokenize")), self._options.name)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        self._require_tokenize()
        answer = await self._post("/detokenize", request, Call("detokenize"))
        if self._options.dialect == "sglang":
            answer = {"prompt": answer.get("text")}
        return checked(DetokenizeResponse, answer, self._options.name)

    def state(self) -> ExecutorState:
        upstreams = [replica.upstream for replica in self._replicas.all]
        well = sum(upstream.circuit.state == "closed" for upstream in upstreams)
        running = sum(upstream.outstanding for upstream in upstreams)
        prefill = None if self._placement is None else self._placement.state()
        detail = f"{well} of {len(upstreams)} servers answer"
        return ExecutorState(ready=well > 0, detail=detail, running=running, prefill=prefill)

    async def close(self) -> None:
        self._checks.cancel()
        if self._placement is not None:
            await self._placement.workers.close()
        for replica in self._replicas.all:
            await replica.upstream.close()

    async def _post(self, path: str, request: OtherRequest, call: Call) -> dict[str, Any]:
        return as_object(await self._value(path, request, call), self._options.name)

    async def _value(self, path: str, request: OtherRequest, call: Call) -> Any:
        """The JSON value of the first replica that answers."""
        self._require_route(path)
        if not isinstance(request, TokenizeRequest | DetokenizeRequest):
            await call.expect(expected_text_tokens(request, self._context))
        body = other_body(request, self._model, self._options.dialect)
        tried = list[Upstream]()
        while True:
            upstream = self._replicas.choose((), tried)
            tried.append(upstream)
            try:
                return await upstream.value("POST", path, body, call)
            except Unavailable as error:
                await self._before_retry(error, tried)

    async def _that_hear(self, request: AnswerRequest, call: Call) -> Sequence[Replica] | None:
        """The servers that read a request's recordings, None for all of them: only `nearfar serve` reports whether it
        does. Raises RequestError if none does, and Unavailable if none is known to and some do not answer.
        """
        if (
            self._options.dialect != "nearfar"
            or not isinstance(request, ChatCompletionRequest)
            or not recordings(request.messages)
        ):
            return None
        unknown = [each for each in self._replicas.all if each.hears is None and each.upstream.circuit.admits]
        failures = [each for each in await asyncio.gather(*(self._ask_hears(each, call) for each in unknown)) if each]
        hearing = [each for each in self._replicas.all if each.hears]
        if hearing:
            return hearing
        if failures:
            raise failures[0]
        # A server that is out of use now may read sound.
        if any(each.hears is None for each in self._replicas.all):
            raise self._replicas.unavailable()
        names = ", ".join(each.upstream.url for each in self._replicas.all)
        raise RequestError(
            f"the messages have a recording, and no server of this model reads sound ({names}); start one of them, or "
            "this server, with --transcriber MODEL, such as a Whisper",
            param="messages",
        )

    async def _ask_hears(self, replica: Replica, call: Call) -> Unavailable | None:
        """Find out whether a server reads recordings. Returns why it could not be asked."""
        try:
            about = await replica.upstream.request("GET", "/v1/nearfar/about", None, replace(call, request_id="about"))
        except Unavailable as error:
            return error
        except RequestError:
            # An older server.
            replica.hears = False
            return None
        listed = about.get("models")
        models = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        replica.hears = any(each.get("id") == self._model and each.get("sound") is True for each in models)
        return None

    async def _before_retry(self, error: Unavailable, tried: Sequence[Upstream]) -> None:
        """Wait a little, or raise the error if another attempt cannot help."""
        others = any(
            replica.upstream not in tried and replica.upstream.circuit.admits for replica in self._replicas.all
        )
        # A full queue is still full a moment later, and no retry fits a deadline that has passed.
        if (
            len(tried) == ATTEMPTS
            or isinstance(error, DeadlineExceeded)
            or (isinstance(error, QueueFull) and not others)
        ):
            raise error
        # A random wait, so that requests that failed together are not all retried at once.
        await asyncio.sleep(RETRY_SECONDS * 2 ** (len(tried) - 1) * random.uniform(0.5, 1.0))

    async def _check(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            due = [replica.upstream for replica in self._replicas.all if replica.upstream.circuit.admits]
            await asyncio.gather(*(upstream.check() for upstream in due))

    def _require_route(self, path: str) -> None:
        """Raises RequestError if the model behind the servers is not one for this route."""
        routes = self._options.routes
        if routes is None or path in routes:
            return
        name = self._options.name
        if path == EMBEDDINGS:
            raise RequestError(
                f"{name}: this model generates text and makes no embeddings; use an embedding model", param="model"
            )
        if path in GENERATES and EMBEDDINGS in routes:
            raise RequestError(
                f"{name}: this model makes embeddings and generates no text; use a model that generates text, or "
                "request embeddings",
                param="model",
            )
        raise RequestError(f"{name}: the server behind this model has no route {path}", param="model")

    def _require_tokenize(self) -> None:
        if self._options.dialect == "openai":
            raise RequestError(
                f"{self._options.name}: the server behind this model does not support /tokenize and /detokenize",
                param="model",
            )


def as_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DeviceError(f"{name}: the upstream's answer is not a JSON object")
    return value


def stating(output: Output[Any], body: dict[str, Any]) -> Output[Any]:
    """``output``, whose answer gets a statement of what the upstream received with the upstream's receipt."""
    part = AnswerPart(side="far", start=0, receipt=0, request=body)

    def with_part(chunk: Any) -> Any:
        # A pair of sides behind the upstream states its own parts.
        if chunk.receipts is None or chunk.parts is not None:
            return chunk
        return chunk.model_copy(update={"parts": [part]})

    return Changed(output, with_part)
