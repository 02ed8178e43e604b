"""Turns the parameters of the API into requests to the engine, for chats and for completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearfar.compiler.errors import RequestError
from nearfar.compiler.text.tokenizer import Tokenizer

from ..engine.request import Sampling, TokenRequest
from ..schema.common import GenerationRequest

_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of all answers to one request that are not in the request itself.

    ``deadline`` is a time of `time.monotonic`.
    """

    max_tokens: int | None = None
    logprobs: int | None = None
    # Whether all tokens of the prompt get a log-probability, and with how many alternatives.
    prompt_logprobs: int | None = None
    priority: int = 0
    deadline: float | None = None
    adapter: str | None = None
    client: str = ""


def token_requests(prompt_ids: Sequence[int], request: GenerationRequest, terms: Terms) -> list[TokenRequest]:
    """One request for each of the ``n`` answers to a prompt. The seed increases by 1 from one answer to the next."""
    return [
        TokenRequest(
            prompt_ids,
            max_tokens=terms.max_tokens,
            sampling=_sampling(request, None if request.seed is None else (request.seed + index) & _WORD),
            logprobs=terms.logprobs,
            last_token_ids=frozenset(request.stop_token_ids or ()),
            min_tokens=request.min_tokens or 0,
            ignore_eos=bool(request.ignore_eos),
            priority=terms.priority,
            deadline=terms.deadline,
            adapter=terms.adapter,
            client=terms.client,
            prompt_logprobs=0 if terms.prompt_logprobs is None else len(prompt_ids),
            prompt_alternatives=terms.prompt_logprobs or 0,
        )
        for index in range(1 if request.n is None else request.n)
    ]


def _sampling(request: GenerationRequest, seed: int | None) -> Sampling:
    """Missing parameters have OpenAI's defaults, so the temperature is 1."""
    return Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=max(0, request.top_k or 0),
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p or 0.0,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        logit_bias=request.logit_bias or {},
        seed=seed,
    )


def stops_of(request: GenerationRequest) -> list[str]:
    return [request.stop] if isinstance(request.stop, str) else request.stop or []


def check_min_tokens(request: GenerationRequest, max_tokens: int | None) -> None:
    """Raises RequestError if ``min_tokens`` is more than ``max_tokens``."""
    if max_tokens is not None and (request.min_tokens or 0) > max_tokens:
        raise RequestError(
            f"min_tokens is {request.min_tokens}, more than max_tokens, {max_tokens}; lower min_tokens",
            param="min_tokens",
        )


def check_token_ids(request: GenerationRequest, vocab_size: int) -> None:
    """Raises RequestError for an id of ``stop_token_ids`` or ``logit_bias`` that is not in the vocabulary."""
    for token_id in request.stop_token_ids or ():
        if token_id >= vocab_size:
            message = f"stop_token_ids has token id {token_id}; ids of this model are 0 to {vocab_size - 1}"
            raise RequestError(message, param="stop_token_ids")
    for token_id in request.logit_bias or ():
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"logit_bias has token id {token_id}; ids of this model are 0 to {vocab_size - 1}", param="logit_bias"
            )


def context_overflow(param: str, tokens: str, context: int) -> RequestError:
    """The error has OpenAI's wording, which clients look for."""
    return RequestError(
        f"This model's maximum context length is {context} tokens. However, {param} has {tokens} tokens; shorten it",
        param=param,
        code="context_length_exceeded",
    )


def check_length(tokenizer: Tokenizer, text: str, context: int, param: str) -> None:
    """Refuse a text that cannot fit, before it is encoded. Raises RequestError."""
    least = tokenizer.least_tokens(text, context)
    if least > context:
        raise context_overflow(param, f"at least {least}", context)


def check_prompt(prompt_ids: Sequence[int], vocab_size: int, context: int, param: str) -> None:
    """Raises RequestError for an empty prompt, an id outside the vocabulary, or more tokens than the context."""
    if not prompt_ids:
        raise RequestError(f"{param} is empty; give at least one token", param=param)
    if len(prompt_ids) > context:
        raise context_overflow(param, f"{len(prompt_ids)}", context)
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        index = next(index for index, token_id in enumerate(prompt_ids) if not 0 <= token_id < vocab_size)
        raise RequestError(
            f"{param} has token id {prompt_ids[index]} at {index}; ids of this model are 0 to {vocab_size - 1}",
            param=param,
        )
