"""Images in prompts: features are computed once, placed where their tokens are, and never those of another image."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from engine_requests import collect, run, settle
from hash_model import VOCAB, answer_of, next_token
from hash_runner import MODEL, PAGE, HashRunner
from hash_tower import FEATURE_SIZE, IMAGE_TOKEN, HashTower, Pixels, features_of, image_at, picture, with_images
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_traces import pools_of
from waiting import WAIT_SECONDS

from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.ir.sampling import DEFAULT_SAMPLING
from nearfar.compiler.runtime.batch import Batch, FloatArray
from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, QueueFull, RequestError
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.server_fallback.engine.answer import Answer
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.draft_heads import DraftAssistant, DraftHeads
from nearfar.server_fallback.engine.draft_model import DraftModel
from nearfar.server_fallback.engine.image_encoder import ImageEncoder
from nearfar.server_fallback.engine.images import PromptImage, placeholder_key, prompt_keys
from nearfar.server_fallback.engine.ngram_drafter import NgramDrafter
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.resolved_sampling import resolve_sampling
from nearfar.server_fallback.engine.speculation import Drafter, Speculation
from nearfar.server_fallback.engine.token_engine import TokenEngine

LIMITS = Limits(tokens=8, sequences=4, rows=4, pages=24)
SEEING = replace(MODEL, image_token_id=IMAGE_TOKEN, feature_size=FEATURE_SIZE)
CAT, DOG = picture(1, 6), picture(2, 6)
KEYS = json.loads((Path(__file__).parents[2] / "conformance/image_keys.json").read_text())


def expected(request: TokenRequest, *, ends: bool = True) -> tuple[list[int], str]:
    """The answer of the hash model alone. Without ``ends``, its end token is one like others."""
    tokens = list(request.prompt_ids)
    for image in request.images:
        assert image.pixels is not None
        tokens[image.offset : image.end] = features_of(image.pixels)[:, 0].astype(int).tolist()
    assert request.max_tokens is not None
    if ends:
        return answer_of(tokens, request.max_tokens, SEEING.context)
    while len(tokens) < len(request.prompt_ids) + request.max_tokens:
        tokens.append(next_token(tokens))
    return tokens[len(request.prompt_ids) :], "length"


async def answer(engine: TokenEngine, request: TokenRequest) -> tuple[list[int], AnswerEnd]:
    tokens: list[int] = []
    async for item in engine.generate(request):
        if isinstance(item, AnswerEnd):
            return tokens, item
        assert isinstance(item, GeneratedToken)
        tokens.append(item.token_id)
    raise AssertionError("the answer has no end")


def answered(
    requests: Sequence[TokenRequest],
    tower: HashTower,
    *,
    limits: Limits = LIMITS,
    config: EngineConfig | None = None,
    threaded: bool = False,
) -> list[tuple[list[int], str]]:
    """All at once, in two waves."""

    async def work() -> list[tuple[list[int], str]]:
        runner = HashRunner(limits, threaded=threaded)
        engine = TokenEngine(runner, SEEING, config, tower=tower)
        tasks = []
        for index, request in enumerate(requests):
            tasks.append(asyncio.ensure_future(answer(engine, request)))
            await asyncio.sleep(0.001 * (index % 4 == 3))
        found = [(tokens, str(end.finish_reason)) for tokens, end in await asyncio.gather(*tasks)]
        await settle(engine)
        assert all(pool.free + len(pool.idle) == pool.size for pool in pools_of(engine._loop.scheduler))
        assert not engine._inbox._image_bytes
        await engine.close()
        return found

    return run(work())


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


def test_a_deadline_passes_while_images_wait() -> None:
    tower, begins = waiting_tower()

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), SEEING, tower=tower)
        late = with_images([3, CAT, DOG], max_tokens=2, deadline=monotonic() + 0.01)
        waiting = asyncio.ensure_future(answer(engine, late))
        await asyncio.sleep(0.02)
        begins.set()
        with pytest.raises(DeadlineExceeded, match="after 0 tokens"):
            await waiting
        assert (await answer(engine, with_images([3, DOG], max_tokens=2)))[1].completion_tokens == 2
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


def test_decoding_goes_on_while_images_are_encoded() -> None:
    """Between two encoded images there is a step of the answer that runs."""
    events: list[str] = []

    class Tower(HashTower):
        def encode(self, images: Sequence[Pixels]) -> list[FloatArray]:
            events.append("image")
            return super().encode(images)

    class Runner(HashRunner):
        def submit(self, batch: Batch, plan: str = GENERATE) -> Future[Output]:
            events.append("step")
            return super().submit(batch, plan)

    async def work() -> None:
        runner, tower = Runner(LIMITS), Tower()
        engine = TokenEngine(runner, SEEING, tower=tower)
        # It ends when nobody reads it any more.
        text = with_images([13, 2, 3, 13, 10, 1, 5, 13, 1, 14], when_full=2, ignore_eos=True)
        seeing = with_images([*(picture(seed, 3) for seed in range(10, 18))], max_tokens=2)
        stream = engine.generate(text)
        await anext(stream)
        await answer(engine, seeing)
        await stream.aclose()
        await engine.close()

    run(work())
    images = [index for index, event in enumerate(events) if event == "image"]
    assert len(images) == 8
    assert all(after - before > 1 for before, after in pairwise(images))


def test_other_answers_have_as_much_time_between_images_as_these_took() -> None:
    """At most half of the time goes to images while others run, and all of it otherwise."""
    now = 100.0

    class Slow(HashTower):
        def encode(self, images: Sequence[Pixels]) -> list[FloatArray]:
            nonlocal now
            now += 1.5
            return super().encode(images)

    async def work() -> None:
        nonlocal now
        encoder = ImageEncoder(Slow(), 0, lambda: now)
        assert not encoder.is_due(others_run=False)
        waiting = Answer(0, with_images([CAT, DOG]), resolve_sampling(DEFAULT_SAMPLING), lambda _: None)
        assert not encoder.begin(waiting)
        assert encoder.is_due(others_run=True)
        images = encoder.next()
        assert encoder.add(images, encoder.encode(images)) == []
        for time_left in (1.5, 0.5, 0.0):
            now = 103.0 - time_left
            assert encoder.is_due(others_run=True) == (time_left == 0)
            assert encoder.is_due(others_run=False)

    asyncio.run(work())


def test_the_time_in_the_queue_ends_with_the_first_image() -> None:
    class Slow(HashTower):
        def encode(self, images: Sequence[Pixels]) -> list[FloatArray]:
            sleep(0.1)
            return super().encode(images)

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), SEEING, tower=Slow())
        _, end = await answer(engine, with_images([3, CAT, DOG], max_tokens=2))
        assert end.time_to_first_token_seconds >= end.queue_seconds + 0.2
        await engine.close()

    run(work())


def test_a_tower_that_fails_ends_the_answers_that_wait_for_the_image() -> None:
    all_arrived = Event()

    def fail(call: int) -> Exception | None:
        if call == 0:
            assert all_arrived.wait(WAIT_SECONDS)
        return RuntimeError("out of memory") if call == 1 else None

    first, cat, dog = (with_images([3, 1, image, 5], max_tokens=3) for image in (picture(9, 2), CAT, DOG))

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), SEEING, tower=HashTower(fail=fail))
        tasks = [asyncio.ensure_future(answer(engine, request)) for request in (first, cat, cat, dog)]
        await asyncio.sleep(0)
        all_arrived.set()
        one, *failed, other = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, DeviceError) and "out of memory" in str(each) for each in failed)
        for found, request in ((one, first), (other, dog)):
            assert not isinstance(found, BaseException)
            assert found[0] == expected(request)[0]
        assert engine.stats().recoveries == 1
        assert (await answer(engine, cat))[0] == expected(cat)[0]
        await engine.close()

    run(work())


def test_features_that_are_not_numbers_fail_their_answer() -> None:
    class Broken(HashTower):
        def encode(self, images: Sequence[Pixels]) -> list[FloatArray]:
            return [np.full((image.size // 3, FEATURE_SIZE), np.nan, np.float32) for image in images]

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), SEEING, tower=Broken())
        with pytest.raises(DeviceError, match="not numbers"):
            await answer(engine, with_images([3, CAT], max_tokens=3))
        await engine.close()

    run(work())


def test_an_abandoned_answer_is_not_encoded_further() -> None:
    tower = HashTower()

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS, threaded=True), SEEING, tower=tower)
        waiting = asyncio.ensure_future(answer(engine, with_images([3, *map(picture, range(20, 50), [2] * 30)])))
        await asyncio.sleep(0)
        waiting.cancel()
        await settle(engine)
        tokens, _ = await collect(engine, [13, 2, 3])
        assert len(tokens) > 0
        assert not engine._loop._images.waiting
        assert not engine._inbox._image_bytes
        await engine.close()

    run(work())


def test_features_that_a_request_brings_need_no_tower() -> None:
    request = with_images([3, CAT, 5], max_tokens=4)
    [image] = request.images
    given = replace(request, images=[replace(image, pixels=None, features=features_of(CAT))])

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), SEEING)
        assert (await answer(engine, given))[0] == expected(request)[0]
        await engine.close()

    run(work())


@pytest.mark.parametrize("image_cache_bytes", [0, 1 << 20])
def test_the_answers_of_one_request_encode_its_image_once(image_cache_bytes: int) -> None:
    tower = HashTower()

    async def work() -> None:
        config = EngineConfig(image_cache_bytes=image_cache_bytes)
        engine = TokenEngine(HashRunner(LIMITS, threaded=True), SEEING, config, tower=tower)
        request = replace(with_images([3, CAT, 5], max_tokens=12), arrival=engine.arrive())
        tasks = []
        for _ in range(6):
            tasks.append(asyncio.ensure_future(answer(engine, request)))
            # Later ones come when the first has its features.
            await until_true(lambda: tower.calls > 0)
        assert [tokens for tokens, _ in await asyncio.gather(*tasks)] == [expected(request)[0]] * 6
        await engine.close()

    run(work())
    assert tower.encoded == [CAT.tobytes()]


async def until_true(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def waiting_tower() -> tuple[HashTower, Event]:
    """A tower that computes nothing before the event."""
    begins = Event()

    def fail(_: int) -> None:
        assert begins.wait(WAIT_SECONDS)

    return HashTower(fail=fail), begins


def test_images_beyond_the_bound_of_unfinished_requests_are_refused() -> None:
    tower, begins = waiting_tower()

    async def work() -> None:
        config = EngineConfig(max_image_bytes=features_of(CAT).nbytes)
        engine = TokenEngine(HashRunner(LIMITS), SEEING, config, tower=tower)
        request = with_images([3, DOG], max_tokens=2)
        first = asyncio.ensure_future(answer(engine, with_images([3, CAT], max_tokens=2)))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="take 48 bytes, and those of unfinished ones 48 of at most 48; try again"):
            await answer(engine, request)
        begins.set()
        await first
        await answer(engine, request)
        await engine.close()

    run(work())


def test_the_images_of_one_client_take_at_most_half_of_the_bound() -> None:
    tower, begins = waiting_tower()

    async def work() -> None:
        config = EngineConfig(max_image_bytes=4 * features_of(CAT).nbytes)
        engine = TokenEngine(HashRunner(LIMITS), SEEING, config, tower=tower)
        bird = picture(41, 6)

        def begin(image: Pixels, client: str) -> asyncio.Future[tuple[list[int], AnswerEnd]]:
            return asyncio.ensure_future(answer(engine, with_images([3, image], max_tokens=2, client=client)))

        tasks = [begin(CAT, "key one"), begin(DOG, "key one"), begin(CAT, "key other")]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="those of unfinished ones 96 of at most 96"):
            await begin(bird, "key one")
        # Answers with the same image share it.
        tasks += [begin(DOG, "key other"), begin(CAT, "key one")]
        await asyncio.sleep(0)
        begins.set()
        await asyncio.gather(*tasks)
        assert not engine._inbox._image_bytes
        assert not engine._inbox._images
        await begin(bird, "key one")
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
