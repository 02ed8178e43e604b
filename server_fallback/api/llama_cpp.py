"""/completion, /infill, /apply-template and /props, as in llama.cpp's server; editors ask /infill to fill gaps."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import HasSlots, TellsAbilities
from ..schema.common import Usage
from ..schema.completions import CompletionChunk, CompletionChunkChoice, CompletionRequest
from ..schema.fold import cut_off
from ..schema.llama_cpp import (
    DEFAULT_MIN_P,
    DEFAULT_TEMPERATURE,
    DEFAULT_TOP_K,
    DEFAULT_TOP_P,
    InfillAnswer,
    InfillPart,
    InfillRequest,
    InfillTimings,
    LlamaCompletionRequest,
    LlamaRequest,
    Modalities,
    Props,
    PropsSettings,
    TemplateAnswer,
    TemplateRequest,
)
from ..schema.tokenize import DetokenizeRequest, TokenizeRequest
from ..text.output import Encode
from ..text.requests import with_name
from .exchange import exchange_of
from .generation import Kind
from .json_body import printable
from .only_model import only_model
from .route import EVERYWHERE, WITH_BODY, keyed_router, post
from .service import Service
from .sse import EventForm, data_event
from .validation import check_calls

# Parameters of completions -> llama.cpp's.
NAMES = {
    "max_tokens": "n_predict",
    "middle": "prompt",
    "prompt": "input_prefix",
    "repetition_penalty": "repeat_penalty",
    "suffix": "input_suffix",
}
OWN_NAMES = {
    "guided_grammar": "grammar",
    "guided_json": "json_schema",
    "max_tokens": "n_predict",
    "repetition_penalty": "repeat_penalty",
    "return_token_ids": "return_tokens",
}
# Clients read every line with data as a part of the answer.
EVENTS = EventForm(done=b": done\n\n")


def _infilling(body: InfillRequest) -> CompletionRequest:
    gap = {"suffix": body.input_suffix, "middle": body.prompt, "input_extra": body.input_extra or None}
    return _completion(body, prompt=body.input_prefix, **gap)


def _continued(body: LlamaCompletionRequest) -> CompletionRequest:
    form = {"guided_grammar": body.grammar or None, "guided_json": body.json_schema}
    ends = {"ignore_eos": body.ignore_eos or None, "return_token_ids": body.return_tokens or None}
    return _completion(body, prompt=body.prompt, **form, **ends)


def _completion(body: LlamaRequest, **own: Any) -> CompletionRequest:
    values: dict[str, Any] = {
        **own,
        "model": body.model or "",
        "stream": body.stream,
        "id_slot": body.id_slot,
        "max_tokens": None if body.n_predict < 0 else body.n_predict,
        "seed": None if body.seed < 0 else body.seed,
        "stop": body.stop or None,
        "repetition_penalty": body.repeat_penalty,
        **{
            name: getattr(body, name)
            for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")
        },
    }
    return CompletionRequest.model_construct(**{name: value for name, value in values.items() if value is not None})


class Infilled:
    """Adds up one answer; a `Fold` of completions. Times count from its creation, and to the first text."""

    def __init__(self, body: LlamaRequest) -> None:
        self._body = body
        self._ids: list[int] | None = [] if isinstance(body, LlamaCompletionRequest) and body.return_tokens else None
        self._began = self._ended = time.monotonic()
        self._first: float | None = None
        self._texts: list[str] = []
        self._model, self._end = "", CompletionChunkChoice(index=0, text="")
        self._usage: Usage | None = None

    def add(self, chunk: CompletionChunk) -> None:
        self._ended = time.monotonic()
        self._model = chunk.model
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            if choice.text:
                self._first = self._first or self._ended
                self._texts.append(choice.text)
            if self._ids is not None:
                self._ids += choice.token_ids or ()
            if choice.finish_reason is not None:
                self._end = choice

    @property
    def lists_tokens(self) -> bool:
        return self._ids is not None

    @property
    def is_complete(self) -> bool:
        return self._usage is not None and self._end.finish_reason is not None

    def answer(self) -> InfillAnswer:
        usage, end, text = self._usage, self._end, "".join(self._texts)
        if usage is None or end.finish_reason is None:
            raise cut_off()
        cached = self._cached(usage)
        # A token that ended the answer is not part of it.
        ids = None if self._ids is None else self._ids[: usage.completion_tokens]
        return InfillAnswer(
            content=text,
            tokens=ids,
            id_slot=self._body.id_slot if self._body.id_slot != -1 else None,
            model=self._model,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            tokens_cached=cached,
            has_new_line="\n" in text,
            truncated=False,
            stop_type="word" if end.stop_reason else "limit" if end.finish_reason == "length" else "eos",
            stopping_word=end.stop_reason or "",
            timings=self._timings(usage),
            response_fields=self._body.response_fields,
        )

    @staticmethod
    def _cached(usage: Usage) -> int:
        details = usage.prompt_tokens_details
        return 0 if details is None else details.cached_tokens

    def _timings(self, usage: Usage) -> InfillTimings:
        computed = usage.prompt_tokens - self._cached(usage)
        first = self._first or self._ended
        prompt_ms, predicted_ms = 1000 * (first - self._began), 1000 * (self._ended - first)
        return InfillTimings(
            cache_n=self._cached(usage),
            prompt_n=computed,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=prompt_ms / max(1, computed),
            prompt_per_second=1000 * computed / max(prompt_ms, 0.001),
            predicted_n=usage.completion_tokens,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=predicted_ms / max(1, usage.completion_tokens),
            predicted_per_second=1000 * usage.completion_tokens / max(predicted_ms, 0.001),
        )


def _encode(body: LlamaRequest) -> Encode[CompletionChunk]:
    infilled = Infilled(body)

    def encode(chunk: CompletionChunk) -> bytes | None:
        infilled.add(chunk)
        parts = [
            InfillPart(content=choice.text, tokens=choice.token_ids if infilled.lists_tokens else None)
            for choice in chunk.choices
            if choice.text
        ]
        written = [part.model_dump_json().encode() for part in parts]
        if infilled.is_complete:
            written.append(_written(infilled.answer().model_copy(update={"content": "", "tokens": None})))
        return b"".join(map(data_event, written)) or None

    return encode


def _written(answer: InfillAnswer) -> bytes:
    value = answer.model_dump(mode="json")
    if answer.response_fields:
        flat = {f"timings/{name}": number for name, number in value["timings"].items()} | value
        value = {name: flat[name] for name in answer.response_fields if name in flat}
    return json.dumps(value, ensure_ascii=False).encode()


def _renamed(body: LlamaRequest, error: RequestError) -> RequestError:
    param, names = error.details.get("param"), NAMES if isinstance(body, InfillRequest) else OWN_NAMES
    if not isinstance(param, str) or param not in names:
        return error
    return with_name(error, param, names[param])


CONTINUE: Kind[LlamaCompletionRequest, CompletionChunk, InfillAnswer] = Kind(
    "/completion",
    LlamaCompletionRequest,
    LlamaCompletionRequest,
    InfillAnswer,
    _continued,
    _encode,
    Infilled,
    _written,
    EVENTS,
    alike=False,
    renamed=_renamed,
    names_model=False,
)
INFILL: Kind[InfillRequest, CompletionChunk, InfillAnswer] = Kind(
    "/infill",
    InfillRequest,
    InfillRequest,
    InfillAnswer,
    _infilling,
    _encode,
    Infilled,
    _written,
    EVENTS,
    alike=False,
    renamed=_renamed,
    names_model=False,
)


def llama_cpp_router(service: Service) -> APIRouter:
    router = keyed_router()

    @post(router, "/apply-template", TemplateRequest, TemplateAnswer)
    async def apply_template(body: TemplateRequest, request: Request) -> Response:
        """The text of the tokens that a chat of these messages begins with."""
        check_calls(body.messages)
        exchange, name = exchange_of(request), body.model or await only_model(service)
        exchange.log["model"] = printable(name)
        executor = await service.executor(name, exchange)
        asked = TokenizeRequest.model_construct(**{**dict(body), "model": name})

        async def rendered() -> str:
            tokens = (await executor.tokenize(asked)).tokens
            return (await executor.detokenize(DetokenizeRequest(model=name, tokens=tokens))).prompt

        text = await service.drain.run(rendered(), request.receive, exchange.deadline)
        return Response(TemplateAnswer(prompt=text).model_dump_json(), media_type="application/json")

    @router.get("/props", responses=EVERYWHERE | {400: WITH_BODY[400], 404: WITH_BODY[404]})
    async def props(request: Request, model: str | None = None, autoload: bool = True) -> Props:
        """Of the only model, or of ``model``. Without ``autoload``, one that is not loaded is a 404."""
        name = model or await only_model(service)
        executor = await (service.executor(name, exchange_of(request)) if autoload else service.models.executor(name))
        told = executor.abilities() if isinstance(executor, TellsAbilities) else None
        slots = executor.slots if isinstance(executor, HasSlots) else None
        answers = service.models.answers_at_once(name) or service.config.max_concurrent_requests
        params = {
            "temperature": DEFAULT_TEMPERATURE, "top_k": DEFAULT_TOP_K, "top_p": DEFAULT_TOP_P, "min_p": DEFAULT_MIN_P,
        }  # fmt: skip
        return Props(
            default_generation_settings=PropsSettings(n_ctx=executor.context, params=params),
            total_slots=answers if slots is None else len(slots),
            model_alias=name,
            model_path=name,
            chat_template="" if told is None else told.chat_template or "",
            modalities=Modalities(vision=told is not None and told.vision, audio=told is not None and told.hears),
            build_info=f"nearfar {version('nearfar')}",
        )

    return router
