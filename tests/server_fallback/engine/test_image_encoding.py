"""When images are encoded beside the answers that run, and whose images are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from threading import Event
from time import monotonic, thread_time
from types import SimpleNamespace

import numpy as np
import pytest
from engine_requests import collect, run, settle
from hash_runner import HashRunner
from hash_tower import FEATURE_SIZE, HashTower, Pixels, features_of, picture, with_images
from seeing_engine import CAT, DOG, LIMITS, SEEING, answer, expected
from waiting import WAIT_SECONDS

from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.ir.sampling import DEFAULT_SAMPLING
from nearfar.compiler.runtime.batch import Batch, FloatArray
from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, QueueFull
from nearfar.compiler.runtime.runner import Output
from nearfar.server_fallback.engine import answer as answers
from nearfar.server_fallback.engine.answer import Answer
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.image_encoder import ImageEncoder
from nearfar.server_fallback.engine.request import AnswerEnd
from nearfar.server_fallback.engine.resolved_sampling import resolve_sampling
from nearfar.server_fallback.engine.token_engine import TokenEngine


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


def test_the_time_in_the_queue_ends_with_the_first_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tower moves the clock of answers."""
    now = 100.0
    monkeypatch.setattr(answers, "time", SimpleNamespace(monotonic=lambda: now, thread_time=thread_time))

    class Slow(HashTower):
        def encode(self, images: Sequence[Pixels]) -> list[FloatArray]:
            nonlocal now
            now += 8.0
            return super().encode(images)

    async def work() -> None:
        engine = TokenEngine(HashRunner(LIMITS), SEEING, tower=Slow())
        _, end = await answer(engine, with_images([3, CAT, DOG], max_tokens=2))
        assert (end.queue_seconds, end.time_to_first_token_seconds, end.total_seconds) == (0.0, 16.0, 16.0)
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
