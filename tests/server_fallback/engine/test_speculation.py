"""Speculative decoding: answers are the same as without it, whatever the drafts are; and the drafts themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hash_model import VOCAB
from hash_runner import MODEL, HashRunner
from scheduler_traces import pools_of
from test_same_under_load import Answer, alone, answer, left_early, mixed_requests
from tiny_models import VOCAB_SIZE

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.draft_heads import DraftAssistant, DraftHeads
from nearfar.server_fallback.engine.draft_model import DraftModel
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.ngram_drafter import NgramDrafter
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.resolved_sampling import resolve_sampling
from nearfar.server_fallback.engine.sequence import Sequence as EngineSequence
from nearfar.server_fallback.engine.speculation import Guess, Speculation
from nearfar.server_fallback.engine.stats import EngineStats
from nearfar.server_fallback.engine.step_runner import StepRunner
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.text.answers import usage_of
from nearfar.server_fallback.text.choice import ChoiceEnd

LIMITS = Limits(tokens=24, sequences=4, rows=20, pages=24)


class WrongNowAndThen(HashRunner):
    """A small model that differs from the large one in every fifth token."""

    def _sample(self, tokens: list[int], slot: int, flags: int, settings: list[float]) -> int:
        token = super()._sample(tokens, slot, flags, settings)
        if len(tokens) % 5 == 0:
            token = (token + 1) % VOCAB
            self._sampled[slot] = token
        return token


def speculating(
    runner: StepRunner,
    model: TokenModel,
    requests: Sequence[TokenRequest],
    draft: DraftModel | None = None,
    noise: Sequence[TokenRequest] = (),
    tokens: int = 4,
    kind: Literal["ngram", "draft", "heads"] | None = None,
) -> tuple[list[Answer], EngineStats]:
    """The answers to all requests at once, and the engine's counters."""

    async def work() -> tuple[list[Answer], EngineStats]:
        speculation = Speculation(kind or ("ngram" if draft is None else "draft"), tokens)
        engine = TokenEngine(runner, model, EngineConfig(speculation=speculation), draft=draft)
        leaving = [left_early(engine, request, index % 4) for index, request in enumerate(noise)]
        answers = await asyncio.gather(*(answer(engine, request) for request in requests), *leaving)
        while engine.stats().running or engine.stats().waiting:
            await asyncio.sleep(0.001)
        scheduler = engine._loop.scheduler
        assert all(pool.free + len(pool.idle) == pool.size for pool in pools_of(scheduler))
        if draft is not None:
            assert all(pool.free == pool.size for pool in draft._kinds)
        stats = engine.stats()
        await engine.close()
        return [found for found in answers if found is not None], stats

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("kind", "draft_states"),
    [
        ("ngram", 0),
        ("draft", 0),
        ("draft", 6),
        ("wrong draft", 0),
        ("wrong draft", 6),
        # Pages of heads run out, too: then a sequence gets no drafts.
        ("heads", 0),
        ("wrong heads", 0),
        ("assistant", 0),
        ("wrong assistant", 0),
    ],
)
@pytest.mark.parametrize(
    ("states", "threaded"),
    [(0, False), (9, True), *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ((0, True), (9, False)))],
)
def test_mixed_requests_are_answered_as_without_speculation(
    kind: str, draft_states: int, states: int, threaded: bool
) -> None:
    """With and without slots for states of the model and of its draft. Pages run out, so sequences are preempted. No
    model with states has an assistant.
    """
    has_assistant, errs = "assistant" in kind, "wrong" in kind
    own = has_assistant or "heads" in kind
    states = 0 if has_assistant else states
    requests = mixed_requests(60, VOCAB, (1, 3, 4, 9, 17, 30), 16)
    large = replace(LIMITS, pages=16, states=states or None)
    expected = alone(HashRunner(large), MODEL, requests)
    # Fewer pages and slots than sequences could need, and prompts longer than a batch.
    small = Limits(tokens=10, sequences=3, rows=3, pages=24, states=draft_states or None)
    drafts = {
        "ngram": None,
        "draft": HashRunner(small, threaded=threaded),
        "wrong draft": WrongNowAndThen(small, threaded=threaded),
    }
    noise = mixed_requests(20, VOCAB, (2, 12), 16)
    model, draft_model = (replace(MODEL, is_recurrent=count > 0) for count in (states, draft_states))
    runner = HashRunner(
        replace(large, draft_pages=20 if own else 0), threaded=threaded, has_assistant=has_assistant, errs=errs
    )
    small_runner = drafts.get(kind)
    drafter = None if small_runner is None else DraftModel(small_runner, draft_model)
    if own:
        drafter = (DraftAssistant if has_assistant else DraftHeads)(runner, model)
    answers, stats = speculating(runner, model, requests, drafter, noise, kind="heads" if own else None)
    assert answers == expected
    assert stats.recoveries == 0
    assert stats.drafted_tokens > 0
    if errs:
        assert 0.3 < stats.accepted_tokens / stats.drafted_tokens < 0.9
    elif kind != "ngram":
        assert stats.accepted_tokens > 0.9 * stats.drafted_tokens > 0
    assert small_runner is None or small_runner.closed


def test_a_draft_that_is_always_right_saves_steps() -> None:
    # The hash model gives this prompt a long answer.
    request = TokenRequest(
        [13, 2, 3, 13, 10, 1, 5, 13, 1, 14], 21, Sampling(temperature=1, seed=3), stop_token_ids=frozenset()
    )
    runner, small = HashRunner(LIMITS), HashRunner(LIMITS)
    model = TokenModel(VOCAB, frozenset(), 64, 4)
    answers, stats = speculating(runner, model, [request], DraftModel(small, model))
    assert answers == alone(HashRunner(LIMITS), model, [request])
    # The first token comes from the prompt, then five a step.
    assert [len(batch.sample_rows) for batch in runner.batches] == [1, 5, 5, 5, 5]
    assert (stats.drafted_tokens, stats.accepted_tokens) == (16, 16)
    # The small model reads the prompt once, then the tokens that it did not draft itself.
    assert sum(len(batch.token_ids) for batch in small.batches) == 10 + 1 + 3 + 3 * (2 + 3)
    assert [int((batch.token_ids >= 0).sum()) for batch in small.batches if (batch.token_ids >= 0).any()] == [
        11,
        2,
        2,
        2,
    ]


def test_answers_with_other_ends_are_those_without_speculation_and_no_draft_is_checked_before_min_tokens() -> None:
    prompt, sampling = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14], Sampling(temperature=1, seed=3)
    requests = [
        TokenRequest(prompt, 21, sampling, min_tokens=8, last_token_ids=frozenset({1, 7, 9})),
        TokenRequest(prompt[2:], 21, sampling, last_token_ids=frozenset({3})),
        TokenRequest(prompt[4:], 21, Sampling(temperature=1, seed=5), ignore_eos=True),
        TokenRequest(prompt[1:], 21, Sampling(), min_tokens=21, stop_token_ids=frozenset({2, 4})),
    ]
    answers, stats = speculating(HashRunner(LIMITS), MODEL, requests, DraftModel(HashRunner(LIMITS), MODEL))
    assert answers == alone(HashRunner(LIMITS), MODEL, requests)
    assert stats.drafted_tokens > 0
    _, stats = speculating(HashRunner(LIMITS), MODEL, requests[3:], DraftModel(HashRunner(LIMITS), MODEL))
    assert stats.drafted_tokens == 0


def test_requests_with_penalties_biases_or_old_tokens_that_go_do_not_speculate() -> None:
    prompt = [1, 2, 3] * 6
    samplings = [Sampling(repetition_penalty=1.5), Sampling(logit_bias={3: 1.0})]
    requests = [TokenRequest(prompt, 8, sampling) for sampling in samplings] + [TokenRequest(prompt, 8, when_full=4)]
    answers, stats = speculating(HashRunner(LIMITS), MODEL, requests)
    assert answers == alone(HashRunner(LIMITS), MODEL, requests)
    assert stats.drafted_tokens == 0


def test_log_probabilities_are_those_of_the_tokens_that_were_checked() -> None:
    async def work() -> None:
        engine = TokenEngine(
            HashRunner(LIMITS),
            MODEL,
            EngineConfig(speculation=Speculation("draft")),
            draft=DraftModel(HashRunner(LIMITS), MODEL),
        )
        tokens = [
            item async for item in engine.generate(TokenRequest([13, 2, 3, 13, 10, 1, 5, 13, 1, 14], 8, logprobs=1))
        ]
        assert len(tokens) > 5
        stats, end = engine.stats(), tokens[-1]
        assert isinstance(end, AnswerEnd)
        assert (end.drafted_tokens, end.accepted_tokens) == (stats.drafted_tokens, stats.accepted_tokens)
        assert stats.accepted_tokens > 0
        request = TokenRequest([1])
        usage = usage_of([request], [ChoiceEnd("length", end.completion_tokens, end)], 1)
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.accepted_prediction_tokens == end.accepted_tokens
        rejected = usage.completion_tokens_details.rejected_prediction_tokens
        assert rejected == end.drafted_tokens - end.accepted_tokens
        # The prompt's pass gives a token, and so does each later pass, beside the drafts that were right.
        assert stats.steps == end.passes
        sampled = end.completion_tokens + (end.end_token is not None)
        assert sampled == end.passes + end.accepted_tokens
        assert usage.completion_tokens_details.tokens_per_pass == round(sampled / end.passes, 3) > 1
        # Of several answers, and without those whose passes are unknown.
        choices = [ChoiceEnd("length", end.completion_tokens, each) for each in (end, replace(end, passes=0), end)]
        assert (details := usage_of([request] * 3, choices, 3).completion_tokens_details) is not None
        assert details.tokens_per_pass == usage.completion_tokens_details.tokens_per_pass
        unchecked = replace(end, drafted_tokens=0, accepted_tokens=0)
        assert usage_of([request], [ChoiceEnd("length", 1, unchecked)], 1).completion_tokens_details is None
        for token in tokens:
            if isinstance(token, GeneratedToken):
                assert token.logprob == -token.token_id
        await engine.close()

    asyncio.run(work())


def test_ngrams_guess_the_tokens_that_followed_the_last_words_before() -> None:
    drafter = NgramDrafter()
    sequence = EngineSequence(0, [1, 2, 3, 4, 5, 9, 2, 3])
    guess = Guess(sequence, resolve_sampling(Sampling()), 3)
    drafter.draft([guess])
    assert sequence.drafts == [4, 5, 9]
    # Longer matches take precedence: 9 followed the last 2, 3, but 7 followed 9, 2, 3.
    sequence.tokens += [7, 2, 3, 9, 9, 2, 3]
    drafter.draft([guess])
    assert sequence.drafts == [7, 2, 3]
    sequence.tokens += [8]
    drafter.draft([guess])
    assert sequence.drafts == []
    single = EngineSequence(1, [5])
    drafter.draft([Guess(single, guess.sampling, 3)])
    assert single.drafts == []


def test_a_draft_model_that_fails_leaves_the_answers_as_they_are() -> None:
    requests = mixed_requests(8, VOCAB, (3, 9), 12)
    small = HashRunner(LIMITS, threaded=True, fail=lambda number: DeviceError("lost") if number % 5 == 4 else None)
    answers, stats = speculating(HashRunner(LIMITS), MODEL, requests, DraftModel(small, MODEL))
    assert answers == alone(HashRunner(LIMITS), MODEL, requests)
    assert stats.recoveries > 0
    # After failures in a row the drafter is left out.
    lost = HashRunner(LIMITS, threaded=True, fail=lambda _: DeviceError("lost"))
    answers, stats = speculating(HashRunner(LIMITS), MODEL, requests, DraftModel(lost, MODEL))
    assert answers == alone(HashRunner(LIMITS), MODEL, requests)
    assert stats.recoveries == 4


def test_requests_that_cannot_speculate_are_refused_at_the_start() -> None:
    ngram, draft = (EngineConfig(speculation=Speculation(kind)) for kind in ("ngram", "draft"))
    small = DraftModel(HashRunner(LIMITS), TokenModel(VOCAB + 1, frozenset(), 64, 4))
    with pytest.raises(RequestError, match="open it with 20"):
        TokenEngine(HashRunner(Limits(tokens=8, sequences=4, rows=4, pages=24)), MODEL, ngram)
    with pytest.raises(RequestError, match="give both or neither"):
        TokenEngine(HashRunner(LIMITS), MODEL, draft)
    with pytest.raises(RequestError, match="give both or neither"):
        TokenEngine(HashRunner(LIMITS), MODEL, ngram, draft=small)
    with pytest.raises(RequestError, match="same tokenizer"):
        TokenEngine(HashRunner(LIMITS), MODEL, draft, draft=small)
    with pytest.raises(RequestError, match="at least 1"):
        TokenEngine(HashRunner(LIMITS), MODEL, EngineConfig(speculation=Speculation("ngram", 0)))


def test_answers_of_a_model_are_those_of_plain_decoding(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    model = TokenModel.of(bundle.manifest)

    def runner() -> ReferenceRunner:
        return ReferenceRunner(bundle, limits=Limits(tokens=64, sequences=4, rows=16, pages=24), activation="float32")

    requests = mixed_requests(6, VOCAB_SIZE, (5, 16), 20)
    expected = alone(runner(), model, requests)
    answers, stats = speculating(runner(), model, requests, DraftModel(runner(), model), tokens=3)
    assert answers == expected
    # The same model guesses right, greedy and with the same random numbers.
    assert stats.accepted_tokens > 0.9 * stats.drafted_tokens > 0


@pytest.mark.parametrize("kind", ["ngram", "draft"])
def test_a_model_that_gathers_rows_speculates_with_known_tokens(kind: str, windowed_bundle: Path) -> None:
    """The draft model's runner refuses tokens that only the device knows. It has windows, so the draft model frees
    pages.
    """
    bundle = open_bundle(windowed_bundle)
    model = TokenModel.of(bundle.manifest)
    assert model.gathers

    def runner() -> ReferenceRunner:
        return ReferenceRunner(bundle, limits=Limits(tokens=64, sequences=4, rows=16, pages=24), activation="float32")

    requests = mixed_requests(6, VOCAB_SIZE, (5, 27), 20)
    draft = DraftModel(runner(), model) if kind == "draft" else None
    answers, stats = speculating(runner(), model, requests, draft, tokens=3)
    assert answers == alone(runner(), model, requests)
    assert stats.recoveries == 0
    if kind == "draft":
        assert stats.accepted_tokens > 0.9 * stats.drafted_tokens > 0
