"""An engine that marks answers: on the device, ahead of the host, beside drafts, masks and rows without a mark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.ir.sampling import Sampling, adjust_logits, choose_token, draw_at, token_counts
from nearfar.compiler.ir.watermark import Watermark, mark_logits
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.resolved_sampling import dense_bias, resolve_sampling
from nearfar.server_fallback.engine.speculation import Speculation
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.text.watermark_detection import detect

WATERMARK = Watermark.of(b"a secret", strength=6.0)
PROMPT = [3, 5, 7, 3, 5, 7]
COUNT = 24


@pytest.fixture(scope="module")
def marking(compile_numpy: Callable[..., Path]) -> Bundle:
    return open_bundle(compile_numpy("qwen3", "q4f16", watermark=True, self_test=False))


def runner_of(bundle: Bundle, rows: int = 8) -> ReferenceRunner:
    limits = Limits(tokens=64, sequences=4, rows=rows, pages=64)
    return ReferenceRunner(bundle, activation="float32", limits=limits)


def answers(bundle: Bundle, requests: list[TokenRequest], **config: Any) -> list[list[int]]:
    """The answers to requests that are sent at once."""

    async def work() -> list[list[int]]:
        settings = EngineConfig(**{"watermark": WATERMARK, **config})
        engine = TokenEngine(runner_of(bundle, 24), TokenModel.of(bundle.manifest), settings)

        async def one(request: TokenRequest) -> list[int]:
            return [item.token_id async for item in engine.generate(request) if isinstance(item, GeneratedToken)]

        try:
            return await asyncio.gather(*map(one, requests))
        finally:
            await engine.close()

    return asyncio.run(work())


def request(*, marks: bool = True, **sampling: Any) -> TokenRequest:
    return TokenRequest(PROMPT, COUNT, Sampling(**sampling), ignore_eos=True, watermark=marks)


def expected(bundle: Bundle, asked: TokenRequest) -> list[int]:
    """The answer by the definition: one token after the other, chosen on the host from the plain logits."""
    runner, sampling = runner_of(bundle), resolve_sampling(asked.sampling)
    size, tokens = bundle.manifest.spec.vocab_size, list(asked.prompt_ids)
    bias = dense_bias(size, asked.sampling.logit_bias)
    for index in range(COUNT):
        logits = runner.forward(make_batch([Chunk(tokens, 0, range(8), [len(tokens) - 1])], 16)).logits[0]
        settings = sampling.row._replace(draw=draw_at(sampling.seed, index))
        counts = token_counts(size, asked.prompt_ids, tokens[len(PROMPT) :])
        logits = adjust_logits(logits, settings, sampling.flags, counts, bias, np.zeros(0, np.int32))
        if asked.watermark:
            logits = mark_logits(logits, WATERMARK.row(), tokens[-1])
        tokens.append(choose_token(logits, settings))
    runner.close()
    return tokens[len(PROMPT) :]


def test_answers_of_a_batch_are_those_of_the_definition(marking: Bundle) -> None:
    asked = [
        request(temperature=1.0, seed=1),
        request(),
        request(temperature=1.0, seed=1, marks=False),
        request(temperature=0.8, seed=2, repetition_penalty=1.3, logit_bias={9: 5.0}),
    ]
    found = answers(marking, asked)
    assert found == [expected(marking, each) for each in asked]
    # The greedy answer repeats itself, so few of its pairs count.
    assert [detect(WATERMARK, [7, *found[index]]).p_value < 1e-4 for index in (0, 2, 3)] == [True, False, True]


def test_a_server_may_mark_all_answers(marking: Bundle) -> None:
    plain = request(temperature=1.0, seed=1, marks=False)
    marked = request(temperature=1.0, seed=1)
    assert answers(marking, [plain], marks_all=True) == answers(marking, [marked])


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}])
def test_drafts_are_checked_against_marked_tokens(marking: Bundle, sampling: dict[str, Any]) -> None:
    asked = request(**sampling)
    (plain,) = answers(marking, [asked])
    (drafted,) = answers(marking, [asked], speculation=Speculation("ngram", 3))
    assert drafted == plain
    # A client's drafts: those that are marked are right.
    (checked,) = answers(
        marking, [TokenRequest(PROMPT, COUNT, asked.sampling, ignore_eos=True, watermark=True, drafts=plain[:5])]
    )
    assert checked == plain[:6]


class OnlySome:
    """A constraint that allows only some tokens."""

    finished = complete = False

    def __init__(self, allowed: list[int], vocab_size: int) -> None:
        words = np.zeros(-(-vocab_size // 32), np.uint32)
        for token_id in allowed:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        self._mask = words.view(np.int32)

    def mask(self) -> Any:
        return self._mask

    def accept(self, token_id: int) -> None:
        pass


def test_a_constraint_and_forbidden_tokens_come_before_the_mark(marking: Bundle) -> None:
    allowed = list(range(10, 60))
    constraint = OnlySome(allowed, marking.manifest.spec.vocab_size)
    asked = TokenRequest(PROMPT, COUNT, Sampling(temperature=1.0, seed=3), constraint=constraint, watermark=True)
    frequent = 12
    forbidden = request(temperature=1.0, seed=3, logit_bias={frequent: -100.0})
    found, without = answers(marking, [asked, forbidden])
    assert set(found) <= set(allowed)
    assert detect(WATERMARK, [7, *found]).p_value < 1e-4
    assert frequent not in without


def test_what_cannot_be_marked_is_refused(marking: Bundle, tiny_bundle: Path) -> None:
    with pytest.raises(RequestError, match="watermark: this model marks no answers") as refused:
        answers(marking, [request()], watermark=None)
    assert refused.value.details["param"] == "watermark"
    plain = open_bundle(tiny_bundle)
    with pytest.raises(RequestError, match="has no state 'watermark' by slot"):
        answers(plain, [request()])
    # Without the option, neither a step nor a kernel is there.
    assert "mark_logits" not in {step.op for step in plain.manifest.plan("generate").steps}
