"""/generate, /generate_stream, / and /info, as in Hugging Face's Text Generation Inference: completions, one token at
a time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from nearfar.compiler.runtime.errors import DeviceError, RequestError

from ..schema.common import PromptLogprobs, Usage
from ..schema.completions import CompletionChunk, CompletionRequest
from ..schema.fold import cut_off
from ..schema.tgi import (
    DEFAULT_NEW_TOKENS,
    TgiAnswer,
    TgiAnswers,
    TgiDetails,
    TgiError,
    TgiEvent,
    TgiGrammar,
    TgiInfo,
    TgiParameters,
    TgiPrefillToken,
    TgiRequest,
    TgiStreamDetails,
    TgiToken,
)
from ..text.output import Encode, Fold
from ..text.requests import with_name
from .document import in_json
from .errors import ApiError
from .exchange import exchange_of
from .generation import Kind
from .only_model import only_model
from .route import EVERYWHERE, WITH_BODY, keyed_router
from .service import Service
from .sse import EventForm, data_event

AnswerT = TypeVar("AnswerT", TgiAnswer, TgiAnswers)
# Parameters of completions -> TGI's.
NAMES = {
    "max_tokens": "parameters.max_new_tokens",
    "model": "parameters.adapter_id",
    "prompt": "inputs",
    "response_format": "parameters.grammar",
    "return_token_ids": "parameters.details",
    "watermark": "parameters.watermark",
}
ERROR_TYPES = {400: "validation", 429: "overloaded", 503: "overloaded"}


def tgi_error(error: ApiError) -> bytes:
    kind = ERROR_TYPES.get(error.status, "generation" if error.status >= 500 else "validation")
    return TgiError(error=error.body().error.message, error_type=kind).model_dump_json().encode()


ERRORS = {status: {**response, **in_json(TgiError)} for status, response in WITH_BODY.items()}
INFO_ERRORS = {status: ERRORS[status] for status in (400, 404, *EVERYWHERE)}
# Clients read every line with data as a token.
EVENTS = EventForm(done=b": done\n\n")


def _completion(body: TgiRequest, *, streams: bool | None = None) -> CompletionRequest:
    given, stream = body.parameters, bool(body.stream) if streams is None else streams
    wants_tokens = stream or bool(given.details)
    values: dict[str, Any] = {
        "model": given.adapter_id or body.model or "",
        "prompt": body.inputs,
        "stream": stream,
        "max_tokens": DEFAULT_NEW_TOKENS if given.max_new_tokens is None else given.max_new_tokens,
        "temperature": (given.temperature or 1.0) if _draws(given) else 0.0,
        "stop": given.stop or None,
        "logprobs": 0 if wants_tokens else None,
        "return_token_ids": wants_tokens or None,
        "prompt_logprobs": 0 if given.details and given.decoder_input_details else None,
        **_grammar(given.grammar),
        **{
            name: value
            for name in ("top_k", "top_p", "seed", "repetition_penalty", "frequency_penalty", "watermark")
            if (value := getattr(given, name)) is not None
        },
    }
    return CompletionRequest.model_construct(**{name: value for name, value in values.items() if value is not None})


def _draws(given: TgiParameters) -> bool:
    """As there, whatever changes the probabilities asks for a draw."""
    changed = given.temperature not in (None, 1.0) or given.top_p not in (None, 1.0) or given.top_k is not None
    return bool(given.do_sample) or changed


def _grammar(given: TgiGrammar | None) -> dict[str, Any]:
    if given is None:
        return {}
    if given.type == "regex":
        if not isinstance(given.value, str):
            raise RequestError("parameters.grammar.value must be a regular expression", param="parameters.grammar")
        return {"guided_regex": given.value}
    schema: Any = given.value
    if given.type == "json_schema" and isinstance(schema, dict):
        schema = schema.get("schema", schema)
    return {"guided_json": schema}


class TgiTokens:
    """The tokens of one answer, from its chunks: the id and the text of a token may come in different chunks."""

    def __init__(self, body: TgiRequest) -> None:
        self._body = body
        self._ids: deque[int] = deque()
        self.finish_reason: str | None = None
        self._texts = [body.inputs] if body.parameters.return_full_text else []
        self._prompt_ids: list[int] = []
        self._prompt: PromptLogprobs = []
        self.usage: Usage | None = None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, chunk: CompletionChunk) -> Iterator[TgiToken]:
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            self._texts.append(choice.text)
            self._ids += choice.token_ids or ()
            self._prompt_ids += choice.prompt_token_ids or ()
            self._prompt += choice.prompt_logprobs or ()
            if (listed := choice.logprobs) is not None:
                for text, logprob in zip(listed.tokens, listed.token_logprobs, strict=True):
                    if not self._ids:
                        raise DeviceError("the server behind this model lists no token ids; leave details out")
                    yield TgiToken(id=self._ids.popleft(), text=text, logprob=logprob or 0.0)
            if choice.finish_reason is not None:
                stopped = choice.finish_reason == "stop"
                ends = "stop_sequence" if choice.stop_reason is not None else "eos_token"
                self.finish_reason = ends if stopped else choice.finish_reason

    @property
    def end_id(self) -> int:
        """The token that ended the answer; 0 if none did."""
        return self._ids[0] if self._ids else 0

    @property
    def prefill(self) -> list[TgiPrefillToken]:
        """The prompt's tokens, if they were requested. The first, which has no log-probability, has the text before the
        others.
        """
        pairs = zip(self._prompt_ids, self._prompt, strict=False)
        rows = [None if row is None else row.get(token_id) for token_id, row in pairs]
        texts = ["" if row is None else row.decoded_token or "" for row in rows]
        if texts and self._body.inputs.endswith(rest := "".join(texts)):
            texts[0] = self._body.inputs.removesuffix(rest)
        return [
            TgiPrefillToken(id=token_id, text=text, logprob=None if row is None else row.logprob)
            for token_id, text, row in zip(self._prompt_ids, texts, rows, strict=False)
        ]


class TgiFold:
    """A `Fold` of completions."""

    def __init__(self, body: TgiRequest) -> None:
        self._body, self._read = body, TgiTokens(body)
        self._tokens: list[TgiToken] = []

    def add(self, chunk: CompletionChunk) -> None:
        self._tokens += self._read.add(chunk)

    def answer(self) -> TgiAnswer:
        read, given = self._read, self._body.parameters
        if read.finish_reason is None or read.usage is None:
            raise cut_off()
        if not given.details:
            return TgiAnswer(generated_text=read.text)
        details = TgiDetails(
            finish_reason=read.finish_reason,
            generated_tokens=read.usage.completion_tokens,
            seed=given.seed,
            prefill=read.prefill,
            tokens=self._tokens,
        )
        return TgiAnswer(generated_text=read.text, details=details)


class TgiListFold(TgiFold):
    def answer(self) -> TgiAnswers:  # type: ignore[override]
        return TgiAnswers([super().answer()])


def _encode(body: TgiRequest) -> Encode[CompletionChunk]:
    read, index = TgiTokens(body), 0
    # The last token waits for the end of the answer, which is part of its event.
    waiting: list[TgiEvent] = []

    def encode(chunk: CompletionChunk) -> bytes | None:
        nonlocal index
        for token in read.add(chunk):
            index += 1
            waiting.append(TgiEvent(index=index, token=token))
        if read.usage is not None and read.finish_reason is not None:
            waiting[-1:] = [_last(body, read, waiting[-1] if waiting else None)]
            ready = list(waiting)
        else:
            ready = waiting[:-1]
        del waiting[: len(ready)]
        return b"".join(data_event(event.model_dump_json().encode()) for event in ready) or None

    return encode


def _last(body: TgiRequest, read: TgiTokens, event: TgiEvent | None) -> TgiEvent:
    assert read.usage is not None
    assert read.finish_reason is not None
    details = TgiStreamDetails(
        finish_reason=read.finish_reason,
        generated_tokens=read.usage.completion_tokens,
        seed=body.parameters.seed,
        input_length=read.usage.prompt_tokens,
    )
    # An answer without a token has only its end.
    event = event or TgiEvent(index=1, token=TgiToken(id=read.end_id, text="", logprob=0.0, special=True))
    return event.model_copy(update={"generated_text": read.text, "details": details})


def _renamed(_: TgiRequest, error: RequestError) -> RequestError:
    param = error.details.get("param")
    if not isinstance(param, str):
        return error
    name = NAMES.get(param, f"parameters.{param}" if param in TgiParameters.model_fields else param)
    return with_name(error, param, name)


def _written(answer: TgiAnswer | TgiAnswers) -> bytes:
    return json.dumps(answer.model_dump(mode="json"), ensure_ascii=False).encode()


def _kind(
    path: str, answer: type[AnswerT], fold: Callable[[TgiRequest], Fold[CompletionChunk, AnswerT]], streams: bool | None
) -> Kind[TgiRequest, CompletionChunk, AnswerT]:
    return Kind(
        path,
        TgiRequest,
        TgiRequest,
        answer,
        partial(_completion, streams=streams),
        _encode,
        fold,
        _written,
        EVENTS,
        tgi_error,
        alike=False,
        renamed=_renamed,
        responses=ERRORS,
        names_model=False,
    )


TGI: tuple[Kind[Any, Any, Any], ...] = (
    _kind("/generate", TgiAnswer, TgiFold, False),
    _kind("/generate_stream", TgiAnswer, TgiFold, True),
    # huggingface_hub posts to the address of the server itself.
    _kind("/", TgiAnswers, TgiListFold, None),
)


def info_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.get("/info", responses=INFO_ERRORS)
    async def info(request: Request, model: str | None = None) -> TgiInfo:
        name = model or await only_model(service)
        executor, config = await service.executor(name, exchange_of(request)), service.config
        return TgiInfo(
            model_id=name,
            max_concurrent_requests=service.models.answers_at_once(name) or config.max_concurrent_requests,
            max_stop_sequences=config.max_stops,
            max_input_tokens=executor.context,
            max_total_tokens=executor.context,
            version=version("nearfar"),
        )

    return router
