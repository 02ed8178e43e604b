"""Log-probabilities of a prompt's last tokens: those of the reference's logits, whatever is cached, runs beside them or
is preempted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hash_model import VOCAB
from hash_runner import MODEL, HashRunner
from test_same_under_load import Answer, alone, mixed_requests
from tiny_models import VOCAB_SIZE

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.runtime.batch import Chunk, FloatArray, make_batch
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, PromptLogprobs, TokenRequest
from nearfar.server_fallback.engine.speculation import Speculation
from nearfar.server_fallback.engine.token_engine import TokenEngine

ASKED = 32


def runner_of(bundle: Bundle, rows: int, **limits: Any) -> ReferenceRunner:
    return ReferenceRunner(
        bundle, limits=Limits(**{"tokens": 64, "sequences": 4, "rows": rows, **limits}), activation="float32"
    )


async def answer_of(
    engine: TokenEngine, prompt: Sequence[int], count: int = ASKED, **request: Any
) -> tuple[tuple[float, ...], Answer, int]:
    """The reported log-probabilities of the prompt, the answer, and the number of cached tokens."""
    reported: list[PromptLogprobs] = []
    tokens: list[int] = []
    async for item in engine.generate(TokenRequest(prompt, **{"max_tokens": 5, "prompt_logprobs": count, **request})):
        if isinstance(item, PromptLogprobs):
            assert not tokens
            reported.append(item)
        elif isinstance(item, GeneratedToken):
            tokens.append(item.token_id)
        else:
            (one,) = reported
            return one.values, (tokens, item.finish_reason), item.cached_tokens
    raise AssertionError("the answer has no end")


def exact(bundle: Bundle, prompt: Sequence[int]) -> FloatArray:
    """The log-softmax (S, V) of all rows at once."""
    runner = runner_of(bundle, len(prompt), tokens=len(prompt))
    pages = list(range(bundle.manifest.pages_for(len(prompt))))
    page_size = TokenModel.of(bundle.manifest).page_size
    logits = runner.forward(make_batch([Chunk(prompt, 0, pages, sample=range(len(prompt)))], page_size)).logits.astype(
        np.float64
    )
    logits -= logits.max(axis=1, keepdims=True)
    logprobs: FloatArray = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
    return logprobs


def expected_logprobs(bundle: Bundle, prompt: Sequence[int], count: int) -> list[float]:
    rows = exact(bundle, prompt)
    first = max(1, len(prompt) - count)
    return [float(rows[position - 1][prompt[position]]) for position in range(first, len(prompt))]


@pytest.fixture(scope="module")
def likely_prompt(tiny_bundle: Path, prompt_token_ids: list[int]) -> list[int]:
    """40 random tokens, then alternately likely and random ones."""
    bundle, prompt = open_bundle(tiny_bundle), prompt_token_ids[:40]
    for index in range(24):
        prompt = [
            *prompt,
            int(np.argsort(-exact(bundle, prompt)[-1])[index % 7]) if index % 2 else prompt_token_ids[40 + index],
        ]
    return prompt


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_values_are_the_references_and_the_answer_is_as_without(
    tiny_bundle: Path, likely_prompt: list[int], rows: int
) -> None:
    bundle = open_bundle(tiny_bundle)
    model, expected = TokenModel.of(bundle.manifest), expected_logprobs(bundle, likely_prompt, ASKED)
    (answer,) = alone(runner_of(bundle, rows), model, [TokenRequest(likely_prompt, 5)])

    async def work() -> None:
        engine = TokenEngine(runner_of(bundle, rows), model)
        others = [list(likely_prompt[:length]) for length in (1, 2, 9, 33)]
        (values, token_ids, _), *beside = await asyncio.gather(
            answer_of(engine, likely_prompt), *(answer_of(engine, other) for other in others)
        )
        assert values == pytest.approx(expected, abs=1e-4)
        assert token_ids == answer
        for other, (reported, _, _) in zip(others, beside, strict=True):
            assert reported == pytest.approx(expected_logprobs(bundle, other, ASKED), abs=1e-4)
        # All of the 64 tokens but the last are in the cache now. Those with log-probabilities are computed again.
        again, token_ids, cached = await answer_of(engine, likely_prompt)
        assert again == pytest.approx(expected, abs=1e-4)
        assert token_ids == answer
        assert 0 < cached <= len(likely_prompt) - 1 - ASKED
        await engine.close()

    asyncio.run(work())
    assert min(expected) < math.log(1 / VOCAB_SIZE) < max(expected)


def test_mixed_requests_are_answered_as_without_beside_each_other_and_as_pages_run_out() -> None:
    requests = mixed_requests(60, VOCAB, (1, 3, 4, 9, 17, 30), 16)
    limits = Limits(tokens=24, sequences=8, rows=10, pages=18)
    expected = alone(HashRunner(limits), MODEL, requests)

    async def work() -> None:
        for speculation in (None, Speculation("ngram")):
            engine = TokenEngine(HashRunner(limits, threaded=True), MODEL, EngineConfig(speculation=speculation))
            found = await asyncio.gather(
                *(
                    answer_of(engine, each.prompt_ids, index % 3 * 7, **wishes(each))
                    if index % 3
                    else plain(engine, each)
                    for index, each in enumerate(requests)
                )
            )
            for index, ((reported, token_ids, _), request) in enumerate(zip(found, requests, strict=True)):
                assert token_ids == expected[index]
                assert len(reported) == min(index % 3 * 7, len(request.prompt_ids) - 1)
            assert engine.stats().preemptions > 0
            assert engine.stats().generated_tokens == sum(len(tokens) for tokens, _ in expected)
            assert engine.stats().prefix_queries == sum(len(request.prompt_ids) for request in requests)
            await engine.close()

    def wishes(request: TokenRequest) -> dict[str, Any]:
        return {
            "max_tokens": request.max_tokens,
            "sampling": request.sampling,
            "priority": request.priority,
            "min_tokens": request.min_tokens,
        }

    async def plain(engine: TokenEngine, request: TokenRequest) -> tuple[tuple[float, ...], Answer, int]:
        tokens: list[int] = []
        async for item in engine.generate(request):
            assert not isinstance(item, PromptLogprobs)
            if isinstance(item, AnswerEnd):
                return (), (tokens, item.finish_reason), item.cached_tokens
            tokens.append(item.token_id)
        raise AssertionError("the answer has no end")

    asyncio.run(work())


def test_a_step_takes_no_more_rows_than_the_runner() -> None:
    async def work() -> None:
        runner = HashRunner(Limits(tokens=16, sequences=3, rows=4, pages=30))
        engine = TokenEngine(runner, MODEL)
        prompts = [[(7 * index + position) % (VOCAB - 1) + 1 for position in range(20)] for index in range(3)]
        await asyncio.gather(*(answer_of(engine, prompt) for prompt in prompts))
        assert max(len(batch.sample_rows) for batch in runner.batches) == 4
        # Rows for prompt log-probabilities store nothing in a slot.
        reported = [
            row for batch in runner.batches if batch.logprobs for row in batch.sample_slots.tolist() if row[0] == -1
        ]
        assert reported == [[-1, 0]] * 3 * 19
        await engine.close()

    asyncio.run(work())


def test_a_failed_step_and_logits_that_are_not_numbers_end_no_other_answer() -> None:
    async def work() -> None:
        prompt = list(range(1, 13))
        limits = Limits(tokens=8, sequences=2, rows=2, pages=16)
        runner = HashRunner(limits, fail=lambda number: DeviceError("lost") if number == 3 else None)
        engine = TokenEngine(runner, MODEL)
        found = await asyncio.gather(
            answer_of(engine, prompt), answer_of(engine, [13, *prompt]), return_exceptions=True
        )
        # A sequence that is not in the fourth step restarts when that step fails, and still reports all values.
        assert any(isinstance(each, DeviceError) for each in found)
        assert all(len(each[0]) in (11, 12) for each in found if isinstance(each, tuple))
        assert len((await answer_of(engine, prompt))[0]) == 11
        await engine.close()
        broken = TokenEngine(HashRunner(Limits(tokens=32, sequences=2, rows=2, pages=16), broken=9), MODEL)
        with pytest.raises(DeviceError, match="not numbers"):
            await answer_of(broken, prompt)
        assert len((await answer_of(broken, [1, 2, 3]))[0]) == 2
        await broken.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt_logprobs": -1}, "it must be an integer of at least 0"),
        ({"prompt_logprobs": 2, "when_full": 4}, "leave these out"),
        ({"prompt_logprobs": 2, "drafts": [1]}, "leave these out"),
    ],
)
def test_prompt_logprobs_that_cannot_be_computed_are_refused(request_: dict[str, Any], message: str) -> None:
    async def work() -> None:
        engine = TokenEngine(HashRunner(Limits(tokens=8, sequences=2, rows=4, pages=16)), MODEL)
        with pytest.raises(RequestError, match=message) as refused:
            await anext(engine.generate(TokenRequest([1, 2, 3], 3, **request_)))
        assert refused.value.details["param"] == "prompt_logprobs"
        await engine.close()

    asyncio.run(work())
