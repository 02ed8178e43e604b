"""Images in prompts: features are computed once, placed where their tokens are, and never those of another image."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from engine_requests import run
from hash_model import VOCAB
from hash_runner import MODEL, PAGE, HashRunner
from hash_tower import IMAGE_TOKEN, HashTower, features_of, image_at, picture, with_images
from hypothesis import given, settings
from hypothesis import strategies as st
from seeing_engine import CAT, DOG, LIMITS, SEEING, answer, answered, expected

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.draft_heads import DraftAssistant, DraftHeads
from nearfar.server_fallback.engine.draft_model import DraftModel
from nearfar.server_fallback.engine.images import PromptImage, placeholder_key, prompt_keys
from nearfar.server_fallback.engine.ngram_drafter import NgramDrafter
from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.engine.speculation import Drafter, Speculation
from nearfar.server_fallback.engine.token_engine import TokenEngine

KEYS = json.loads((Path(__file__).parents[2] / "conformance/image_keys.json").read_text())


@pytest.mark.parametrize("kind", ["heads", "assistant", "text", "draft", "blind heads"])
def test_what_reads_images_guesses_the_answers_to_them(kind: str) -> None:
    """Heads are always right, an assistant unless it begins at a row that was not sampled. Prompts are read in chunks
    that end inside images.
    """
    requests = [
        with_images([3, 1, picture(seed, 7), 5, picture(seed + 1, 3), picture(seed + 2, 4)], max_tokens=12)
        for seed in range(10, 14)
    ]
    # The text before repeats each pair of tokens that its last token may begin.
    pairs = [token for other in range(1, 15) for token in (2, other)]
    requests.append(with_images([*pairs, picture(20, 5), 2], max_tokens=12))
    texts = [TokenRequest(tokens, 12, ignore_eos=True) for tokens in ([3, 1, 2, 5], [*pairs, 2])]

    async def work() -> None:
        own = "heads" in kind or kind == "assistant"
        limits = replace(LIMITS, rows=16, pages=60, draft_pages=60 if own else 0)
        runner = HashRunner(limits, has_assistant=kind == "assistant")
        drafters: dict[str, Callable[[], Drafter]] = {
            "heads": lambda: DraftHeads(runner, SEEING),
            "assistant": lambda: DraftAssistant(runner, SEEING),
            "text": NgramDrafter,
            "draft": lambda: DraftModel(HashRunner(LIMITS), MODEL),
            "blind heads": lambda: DraftHeads(runner, SEEING, reads_images=False),
        }
        speculation = Speculation("ngram" if kind == "text" else "heads" if own else "draft", 3)
        drafter = None if kind == "text" else drafters[kind]()
        config = EngineConfig(speculation=speculation)
        engine = TokenEngine(runner, SEEING, config, tower=HashTower(), draft=drafter)  # type: ignore[arg-type]
        # The second time, prompts are in the cache of the model, but not in that of the heads.
        for _ in range(2):
            found = await asyncio.gather(*(answer(engine, request) for request in requests))
            assert [tokens for tokens, _ in found] == [expected(request)[0] for request in requests]
        stats = engine.stats()
        assert (stats.drafted_tokens > 0) == drafters[kind]().reads_images == (kind not in ("draft", "blind heads"))
        least = {"text": 0.0, "assistant": 0.8}.get(kind, 1.0)
        assert stats.accepted_tokens >= least * stats.drafted_tokens
        await asyncio.gather(*(answer(engine, request) for request in texts))
        assert engine.stats().drafted_tokens > stats.drafted_tokens
        await engine.close()

    run(work())


def test_no_step_ends_inside_an_image_that_is_read_as_a_whole() -> None:
    requests = [
        with_images([3, 1, picture(seed, 6), 5, picture(seed + 1, 6), 2], max_tokens=5) for seed in range(10, 16, 2)
    ]

    async def placed(engine: TokenEngine, runner: HashRunner) -> list[list[int]]:
        """The rows of features of each batch that has some."""
        found = await asyncio.gather(*(answer(engine, request) for request in requests))
        assert [tokens for tokens, _ in found] == [expected(request)[0] for request in requests]
        rows = [batch.feature_rows.tolist() for batch in runner.batches if batch.feature_rows is not None]
        return [each for each in rows if each]

    async def work() -> None:
        runner = HashRunner(LIMITS)
        engine = TokenEngine(runner, replace(SEEING, whole_images=True), tower=HashTower())
        # Each of the six images in a step of 8 tokens, even while others decode.
        assert [(len(rows), rows[-1] - rows[0]) for rows in await placed(engine, runner)] == [(6, 5)] * 6
        with pytest.raises(RequestError, match="an image takes 9 tokens, and a step of the engine computes at most 8"):
            await answer(engine, with_images([3, picture(20, 9), 1], max_tokens=2))
        with pytest.raises(RequestError, match="no token of text between image 0 and image 1"):
            await answer(engine, with_images([3, picture(21, 3), picture(22, 3), 1], max_tokens=2))
        with pytest.raises(RequestError, match="prompt_logprobs cannot be combined with images"):
            await answer(engine, replace(requests[0], prompt_logprobs=1))
        await engine.close()
        # Other models read parts of images, so that one may have more tokens than a step.
        runner = HashRunner(LIMITS)
        engine = TokenEngine(runner, SEEING, tower=HashTower())
        assert sum(map(len, await placed(engine, runner))) == 36
        long = with_images([3, picture(20, 9), 1], max_tokens=2)
        assert (await answer(engine, long))[0] == expected(long)[0]
        await engine.close()

    run(work())


@settings(max_examples=25)
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.one_of(st.integers(0, 12), st.just("image")), min_size=1, max_size=6), st.integers(1, 8)),
        min_size=1,
        max_size=9,
    ),
    pages=st.sampled_from([14, 17, 40]),
)
def test_images_are_whole_after_preemptions_and_prompts_that_begin_alike(
    prompts: list[tuple[list[int | str], int]], pages: int
) -> None:
    """Their first pages may be cached, and forks of a prompt share them."""
    same = picture(3, 5)
    requests = []
    for parts, most in prompts:
        written: list[Any] = []
        for each in parts:
            written += [1, same, 2] if each == "image" else [each]
        requests.append(with_images(written, max_tokens=most))

    async def work() -> None:
        runner = HashRunner(replace(LIMITS, pages=pages))
        engine = TokenEngine(runner, replace(SEEING, whole_images=True), tower=HashTower())
        found = await asyncio.gather(*(answer(engine, request) for request in requests * 2))
        assert [tokens for tokens, _ in found] == [expected(request)[0] for request in requests * 2]
        for batch in runner.batches:
            if batch.feature_rows is None or batch.features is None:
                continue
            for row, index in zip(batch.feature_rows.tolist(), batch.features[:, 1].tolist(), strict=True):
                # The next token of the same image is the next row of the same sequence.
                assert index == 4 or (row + 1 in batch.feature_rows and row + 1 not in batch.seq_starts)
        await engine.close()

    run(work())


@pytest.mark.parametrize("case", KEYS["prompts"])
def test_keys_of_prompts_are_those_of_every_runtime(case: dict[str, Any]) -> None:
    images = [PromptImage(**image) for image in case["images"]]
    assert prompt_keys(case["tokens"], images) == case["keys"]
    assert all(-(2**53) < key < 2**31 for key in case["keys"])


def test_the_keys_of_placeholders_are_no_token_ids_and_differ_between_images_and_places() -> None:
    keys = [sha256(name).hexdigest() for name in (b"cat", b"dog")]
    numbers = [placeholder_key(key, index) for key in keys for index in range(64)]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < 0


def test_images_that_agree_in_one_window_of_their_keys_differ_in_every_page_of_placeholders() -> None:
    first, second = "ab" * 32, "ab" * 6 + "cd" * 26
    images = [[PromptImage(1, 9, key)] for key in (first, second)]
    found = [prompt_keys(range(10), own) for own in images]
    assert found[0][:2] == found[1][:2] == [0, placeholder_key(first, 0)]
    pages = [[tuple(keys[start : start + 5]) for start in (0, 5)] for keys in found]
    assert all(a != b for a, b in zip(*pages, strict=True))


def test_the_same_image_asked_twice_is_encoded_once_and_only_the_new_tokens_are_computed() -> None:
    tower = HashTower()
    first = with_images([3, 1, CAT, 5, 2], max_tokens=4)
    again = with_images([3, 1, CAT, 7, 7, 2], max_tokens=4)

    async def work() -> None:
        runner = HashRunner(LIMITS)
        engine = TokenEngine(runner, SEEING, tower=tower)
        assert (await answer(engine, first))[0] == expected(first)[0]
        tokens, end = await answer(engine, again)
        assert tokens == expected(again)[0]
        # Two full pages hold the two tokens and the six of the image.
        assert end.cached_tokens == 2 * PAGE
        assert tower.encoded == [CAT.tobytes()]
        stats = engine.stats()
        assert (stats.image_queries, stats.image_hits) == (2, 1)
        assert stats.image_cache_bytes == features_of(CAT).nbytes
        assert end.prompt_tokens == len(again.prompt_ids)
        await engine.close()

    run(work())


def test_the_features_that_were_not_used_for_longest_are_dropped() -> None:
    tower = HashTower()
    cat, dog, bird = (with_images([3, image, 5], max_tokens=2) for image in (CAT, DOG, picture(5, 6)))

    async def work() -> None:
        config = EngineConfig(image_cache_bytes=2 * features_of(CAT).nbytes)
        engine = TokenEngine(HashRunner(LIMITS), SEEING, config, tower=tower)
        for request in (cat, dog, cat, bird, cat, dog):
            await answer(engine, request)
        assert [image[:1] for image in tower.encoded] == [
            each.images[0].pixels.tobytes()[:1] for each in (cat, dog, bird, dog) if each.images[0].pixels is not None
        ]
        assert engine.stats().image_cache_bytes == config.image_cache_bytes
        await engine.close()

    run(work())


def test_two_images_at_one_place_share_no_page() -> None:
    requests = [with_images([3, 1, image, 5, 2], max_tokens=4) for image in (CAT, DOG)]

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), SEEING, tower=HashTower())
        for request in requests:
            tokens, end = await answer(engine, request)
            assert (tokens, end.cached_tokens) == (expected(request)[0], 0)
        # Nor does a text whose tokens are the placeholders: `check_request` refuses it, and its keys are its ids.
        with pytest.raises(RequestError, match="the prompt has 6 image tokens"):
            await answer(engine, TokenRequest(requests[0].prompt_ids, max_tokens=4))
        await engine.close()

    run(work())


def test_answers_to_one_prompt_share_its_image() -> None:
    tower = HashTower()
    request = with_images([3, 1, CAT, 5, 2], max_tokens=4)
    assert answered([request] * 4, tower) == [expected(request)] * 4
    assert tower.calls == 1


def test_an_image_that_is_larger_than_a_step_is_computed_in_chunks() -> None:
    request = with_images([9, picture(7, 21), 4, picture(8, 5), 2], max_tokens=5)
    assert answered([request], HashTower(at_once=2), limits=replace(LIMITS, tokens=4)) == [expected(request)]


def test_a_preempted_answer_is_computed_again_with_its_features_and_without_the_tower() -> None:
    """Nothing retains the features but the answer itself."""
    tower = HashTower()
    requests = [with_images([3, picture(seed, 20), 5], max_tokens=30, ignore_eos=True) for seed in (1, 2, 3)]

    async def work() -> None:
        limits, config = replace(LIMITS, pages=20), EngineConfig(image_cache_bytes=0)
        engine = TokenEngine(HashRunner(limits), SEEING, config, tower=tower)
        found = await asyncio.gather(*(answer(engine, request) for request in requests))
        assert engine.stats().preemptions > 0
        for (tokens, _), request in zip(found, requests, strict=True):
            assert tokens == expected(request, ends=False)[0]
        assert tower.calls == 3
        await engine.close()

    run(work())


PARTS = st.lists(
    st.one_of(st.integers(1, VOCAB - 2), st.sampled_from([CAT, DOG, picture(3, 1), picture(4, 9)])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40)
@given(
    prompts=st.lists(st.tuples(PARTS, st.integers(1, 8), st.integers(0, 2)), min_size=1, max_size=9),
    at_once=st.integers(1, 3),
    cache_bytes=st.sampled_from([0, 100, 1 << 20]),
    states=st.sampled_from([None, 4, 6]),
    threaded=st.booleans(),
)
def test_requests_with_and_without_images_are_answered_as_each_alone(
    prompts: list[tuple[list[object], int, int]], at_once: int, cache_bytes: int, states: int | None, threaded: bool
) -> None:
    """Few pages, so that sequences are preempted and computed again; with and without room for features."""
    requests = [
        with_images(parts, max_tokens=max_tokens, priority=priority)  # type: ignore[arg-type]
        for parts, max_tokens, priority in prompts
    ]
    limits = Limits(tokens=8, sequences=4, rows=4, pages=17, states=states)
    config = EngineConfig(image_cache_bytes=cache_bytes)
    tower = HashTower(at_once=at_once)
    found = answered(requests, tower, limits=limits, config=config, threaded=threaded)
    assert found == [expected(request) for request in requests]
    if cache_bytes == 1 << 20:
        assert len(tower.encoded) == len(set(tower.encoded))


def test_the_second_question_about_a_picture_continues_from_the_state_at_its_last_page_border() -> None:
    def about(seed: int, *question: int) -> TokenRequest:
        return with_images([3, picture(seed, 2 * PAGE + 2), *question], max_tokens=4)

    more = [*range(1, PAGE + 1)]
    requests = [about(1, 5, *more), about(1, 7, *more[1:]), about(2, 5, *more), about(1, 5, *more, 9)]

    async def work() -> None:
        runner = HashRunner(replace(LIMITS, states=16))
        engine = TokenEngine(runner, SEEING, tower=HashTower())
        cached = []
        for request in requests:
            tokens, end = await answer(engine, request)
            assert tokens == expected(request)[0]
            cached.append(end.cached_tokens)
        # The last one follows the first, whose whole prompt was kept.
        assert cached == [0, 2 * PAGE, 0, 4 * PAGE]
        await engine.close()

    run(work())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": []}, "the prompt has 6 image tokens (15), and its images take 0"),
        ({"prompt_ids": [3, 1, *[IMAGE_TOKEN] * 5, 4, 5]}, "not all at their places"),
        ({"images": [image_at(4, CAT)]}, "image 0 takes the tokens 4 to 10; images must be in order"),
        ({"images": [replace(image_at(2, CAT), key="cat")]}, "the key of image 0 is not a SHA-256"),
        ({"images": [replace(image_at(2, CAT), pixels=None)]}, "needs either pixels, or 6 features of 2 numbers"),
        ({"images": [image_at(2, CAT), image_at(2, CAT)]}, "images must be in order"),
        ({"when_full": 2}, "the prompt has images, which cannot be dropped in part"),
    ],
)
def test_images_that_do_not_fit_the_prompt_are_refused(change: dict[str, object], message: str) -> None:
    request = replace(with_images([3, 1, CAT, 5]), **change)  # type: ignore[arg-type]

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), SEEING, tower=HashTower())
        with pytest.raises(RequestError) as refused:
            await answer(engine, request)
        assert message in refused.value.message
        await engine.close()

    run(work())


def test_a_model_without_a_tower_refuses_images() -> None:
    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), MODEL)
        with pytest.raises(RequestError, match="reads texts only") as refused:
            await answer(engine, with_images([3, CAT]))
        assert refused.value.details["param"] == "images"
        await engine.close()

    run(work())
