"""Requests that the engine refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from engine_requests import LIMITS, PROMPT, engine_on, run
from hash_model import VOCAB
from hash_runner import MODEL, HashRunner

from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.engine.check_request import check_request
from nearfar.server_fallback.engine.request import TokenRequest


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"prompt_ids": []}, "prompt_ids"),
        ({"prompt_ids": [VOCAB]}, "prompt_ids"),
        ({"prompt_ids": [1, -1]}, "prompt_ids"),
        ({"prompt_ids": [1.5]}, "prompt_ids"),
        ({"prompt_ids": [[1], [1, 2]]}, "prompt_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"last_token_ids": frozenset({-1})}, "stop_token_ids"),
        ({"min_tokens": 7, "max_tokens": 6}, "min_tokens"),
        ({"min_tokens": 1, "drafts": [1]}, "drafts"),
        ({"stop_token_ids": frozenset({VOCAB})}, "stop_token_ids"),
        ({"adapter": "french"}, "adapter"),
        ({"priority": float("nan")}, "priority"),
        ({"sampling": Sampling(temperature=-1)}, "temperature"),
        ({"sampling": Sampling(temperature="warm")}, "temperature"),  # type: ignore[arg-type]
        ({"sampling": Sampling(top_k=-1)}, "top_k"),
        ({"sampling": Sampling(top_p=0)}, "top_p"),
        ({"sampling": Sampling(min_p=1.01)}, "min_p"),
        ({"sampling": Sampling(repetition_penalty=0)}, "repetition_penalty"),
        ({"sampling": Sampling(frequency_penalty=float("inf"))}, "frequency_penalty"),
        ({"sampling": Sampling(presence_penalty=float("nan"))}, "presence_penalty"),
        ({"sampling": Sampling(seed=-1)}, "seed"),
        ({"sampling": Sampling(seed=1 << 32)}, "seed"),
        ({"sampling": Sampling(logit_bias={VOCAB: 1})}, "logit_bias"),
        ({"sampling": Sampling(logit_bias={1: float("nan")})}, "logit_bias"),
        ({"when_full": 33}, "when_full"),
    ],
)
def test_an_invalid_request_is_refused_and_the_parameter_is_named(request_: dict[str, Any], param: str) -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            with pytest.raises(RequestError) as caught:
                await anext(engine.generate(TokenRequest(**{"prompt_ids": PROMPT, **request_})))
            assert caught.value.details["param"] == param

    run(work())


def test_a_request_that_names_the_whole_vocabulary_is_checked_without_a_call_for_each_token() -> None:
    """The check runs on the event loop, once for each answer."""
    size = 100_000
    bias = dict.fromkeys(range(size), 1.0)
    request = TokenRequest([1], sampling=Sampling(logit_bias=bias), stop_token_ids=frozenset(range(size)))
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    # A loop over the tokens would call something for each of them.
    sys.setprofile(count)
    try:
        check_request(request, replace(MODEL, vocab_size=size))
    finally:
        sys.setprofile(None)
    assert calls < 1000
    wrongs: list[dict[Any, float]] = [{**bias, size: 1.0}, {**bias, 3: float("nan")}, {1: 1.0, 1.5: 1.0}, {True: 1.0}]
    for wrong in wrongs:
        with pytest.raises(RequestError) as raised:
            check_request(replace(request, sampling=Sampling(logit_bias=wrong)), replace(MODEL, vocab_size=size))
        assert raised.value.details["param"] == "logit_bias"
