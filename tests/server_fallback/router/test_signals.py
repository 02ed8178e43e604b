"""The signals of near's first tokens, computed by hand."""

from __future__ import annotations

import math

import pytest

from nearfar.server_fallback.router.answer.signals import near_signals
from nearfar.server_fallback.schema.common import TokenLogprob, TopLogprob

NONE = dict.fromkeys(("prompt_mean_logprob", "first_entropy", "first_mean_logprob"))


def token(probability: float, *others: float) -> TokenLogprob:
    tops = [TopLogprob(token="x", logprob=math.log(each)) for each in (probability, *others)]
    return TokenLogprob(token="x", logprob=math.log(probability), top_logprobs=tops)


def test_the_first_four_tokens_count() -> None:
    # Half of the second token's probability remains for tokens that are not listed.
    sure, torn = token(1.0), token(0.5)
    signals = near_signals([sure, torn, sure, torn, torn, torn])
    assert signals["first_mean_logprob"] == pytest.approx(-math.log(2) / 2)
    assert signals["first_entropy"] == pytest.approx(math.log(2) / 2)
    assert signals["prompt_mean_logprob"] is None


def test_the_prompt_s_mean_is_over_all_reported_tokens() -> None:
    signals = near_signals([token(1.0)], [-1.0, -2.0, -6.0])
    assert signals == {"prompt_mean_logprob": -3.0, "first_entropy": 0.0, "first_mean_logprob": 0.0}
    assert near_signals([], [-1.0]) == {**NONE, "prompt_mean_logprob": -1.0}


def test_an_empty_answer_has_no_signals() -> None:
    assert near_signals([]) == NONE


def test_impossible_tokens_have_signals() -> None:
    impossible = TokenLogprob(token="x", logprob=-math.inf, top_logprobs=[TopLogprob(token="x", logprob=-math.inf)])
    signals = near_signals([impossible])
    assert signals["first_entropy"] == 0.0
    assert (signals["first_mean_logprob"] or 0.0) < -1e299
