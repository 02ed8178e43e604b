"""An engine in a separate process gives the same answers as one in this process, and each side survives crashes of the
other.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import waiting
from engine_requests import OTHERS, PROMPT, EvenTokens, run
from hash_model import answer_of
from hash_recipe import EncoderRecipe, HashRecipe, SeeingRecipe
from hash_tower import picture, with_images
from waiting import WAIT_SECONDS, until

from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.runtime.errors import (
    BundleError,
    DeadlineExceeded,
    DeviceError,
    OutputError,
    QueueFull,
    RequestError,
    Unavailable,
)
from nearfar.server_fallback.engine import mask_task
from nearfar.server_fallback.engine.encode_job import EncodeRequest
from nearfar.server_fallback.engine.page_blocks import PageBlock
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.engine_process import engine_client, remote_engine
from nearfar.server_fallback.engine_process.messages import ForgetImages, Generate, Open
from nearfar.server_fallback.engine_process.remote_engine import MAIN, RemoteEngine
from nearfar.server_fallback.kv_tiers.options import KvTierOptions
from nearfar.server_fallback.processes import heartbeat
from nearfar.server_fallback.processes.child import is_supported
from nearfar.server_fallback.processes.frames import Call, frame

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs a system that can pass sockets to processes")
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process imports the recipe's module."""
    folders = [HERE, HERE.parent / "engine", os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))


@asynccontextmanager
async def remote(recipe: HashRecipe | SeeingRecipe | EncoderRecipe | None = None) -> AsyncIterator[RemoteEngine]:
    engine = await RemoteEngine.open(recipe or HashRecipe())
    pid = engine.pid
    assert pid is not None
    try:
        yield engine
    finally:
        await engine.close()
        assert not is_running(pid)


def test_pages_of_a_process_are_the_same_and_are_taken_block_by_block() -> None:
    prompt = [1 + index % 15 for index in range(61)]
    request = TokenRequest(prompt, export=range(0, 60))

    async def exported(engine: RemoteEngine | TokenEngine) -> bytes:
        items = [item async for item in engine.export(request)]
        assert isinstance(items.pop(), AnswerEnd)
        assert {item.parts for item in items if isinstance(item, PageBlock)} == {2}
        return b"".join(item.data for item in items if isinstance(item, PageBlock) and item.is_last)

    async def work() -> None:
        recipe = HashRecipe(layered=True)
        here = recipe.open()
        async with remote(recipe) as engine:
            # Twice: the second time, all pages are there at once.
            assert [await exported(engine) for _ in range(2)] == [await exported(here)] * 2
        await here.close()

    run(work())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def everything(engine: RemoteEngine | TokenEngine, **request: Any) -> list[object]:
    """All items of an answer, without the times of its completion."""
    found = [item async for item in engine.generate(TokenRequest(PROMPT, 6, **request))]
    assert isinstance(found[-1], AnswerEnd)
    end = replace(found[-1], queue_seconds=0, time_to_first_token_seconds=0, total_seconds=0, cached_tokens=0)
    return [*found[:-1], end]


async def items(
    engine: RemoteEngine | TokenEngine, prompt: list[int] = PROMPT, **request: Any
) -> tuple[list[GeneratedToken], AnswerEnd]:
    found = [item async for item in engine.generate(TokenRequest(prompt, **{"max_tokens": 6, **request}))]
    assert isinstance(found[-1], AnswerEnd)
    return [item for item in found if isinstance(item, GeneratedToken)], found[-1]


@dataclass(eq=False)
class SlowMask(EvenTokens):
    def mask(self) -> npt.NDArray[np.int32] | None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            sum(range(100))
        return EvenTokens.mask(self)


def test_answers_errors_and_figures_are_those_of_an_engine_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: dict[str, Any] = {
        "sampling": Sampling(temperature=0.8, seed=3, repetition_penalty=1.2, logit_bias={4: 1.0}),
        "logprobs": 2,
        "stop_token_ids": frozenset([9]),
    }

    async def work() -> None:
        here = HashRecipe().open()
        async with remote() as engine:
            assert (engine.context, engine.max_drafts, engine.device) == (here.context, here.max_drafts, here.device)
            for request in ({}, sampled, {"min_tokens": 3}, {"prompt_logprobs": 3}):
                assert await everything(engine, **request) == await everything(here, **request)
            constrained = await everything(engine, constraint=EvenTokens())
            assert constrained == await everything(here, constraint=EvenTokens())
            together = await asyncio.gather(*(items(engine, prompt, max_tokens=12) for prompt in (PROMPT, *OTHERS) * 3))
            for prompt, (tokens, _) in zip((PROMPT, *OTHERS) * 3, together, strict=True):
                assert [token.token_id for token in tokens] == answer_of(prompt, 12, 64)[0]
            pages = await engine.read_prefix(PROMPT)
            assert pages.token_ids == PROMPT[:8]
            assert pages == await here.read_prefix(PROMPT)
            assert engine.prefix_key == here.prefix_key
            await engine.reset_prefix_cache()
            assert (await engine.read_prefix(PROMPT)).token_ids == []
            assert await engine.write_prefix(pages) == 8
            assert await engine.read_prefix(PROMPT) == pages
            with pytest.raises(RequestError, match="do not fit this model"):
                await engine.write_prefix(replace(pages, dead_pages=[1]))
            with pytest.raises(RequestError, match="context length") as refused:
                await items(engine, [1] * 100)
            assert refused.value.details
            # The budget is kept by this process, which computes the masks.
            monkeypatch.setattr(mask_task, "BUDGET_SECONDS", 0.15)
            with pytest.raises(RequestError, match="too slow") as slow:
                await items(engine, constraint=SlowMask(), max_tokens=50)
            assert slow.value.code == "request_error"
            await until(lambda: engine.stats().generated_tokens > 100 and engine.stats().running == 0)
        await here.close()

    run(work())


def test_a_closed_generator_a_deadline_and_a_full_queue_reach_the_process(tmp_path: Path) -> None:
    held = tmp_path / "held"

    async def work() -> None:
        async with remote(HashRecipe(step_seconds=0.02, held=held, max_waiting=1)) as engine:
            answers = engine.generate(TokenRequest(PROMPT, 50, ignore_eos=True))
            await anext(answers)
            await answers.aclose()
            with pytest.raises(DeadlineExceeded):
                await items(engine, max_tokens=50, deadline=time.monotonic() + 0.1, ignore_eos=True)
            held.touch()
            at_once = [asyncio.ensure_future(items(engine)) for _ in range(8)]
            await until(lambda: sum(answer.done() for answer in at_once) == 3)
            held.unlink()
            outcomes = await asyncio.gather(*at_once, return_exceptions=True)
            assert sum(isinstance(outcome, QueueFull) for outcome in outcomes) == 3
            await until(lambda: (engine.stats().running, engine.stats().waiting) == (0, 0))

    run(work())


def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    """The events that engines log, with their fields."""
    events = list[tuple[str, dict[str, object]]]()
    monkeypatch.setattr(remote_engine, "log_event", lambda event, _, **fields: events.append((event, fields)))
    return events


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """The file that holds a `HashRecipe`; it exists."""
    file = tmp_path / "held"
    file.touch()
    return file


def test_a_crash_fails_running_answers_and_the_engine_restarts(monkeypatch: pytest.MonkeyPatch, held: Path) -> None:
    monkeypatch.setattr(remote_engine, "FIRST_RESTART_SECONDS", 0.2)
    events = logged(monkeypatch)

    async def work() -> None:
        async with remote(HashRecipe(held=held, free_steps=4)) as engine:
            running = asyncio.ensure_future(items(engine))
            await until(lambda: engine.stats().generated_tokens > 0)
            crashed = engine.pid
            assert crashed is not None
            os.kill(crashed, signal.SIGKILL)
            held.unlink()
            with pytest.raises(DeviceError, match="failed and is started again"):
                await running
            with pytest.raises(Unavailable, match="being started again"):
                await items(engine)
            assert engine.stats().failure is not None
            await until(lambda: engine.stats().failure is None)
            tokens, _ = await items(engine)
            assert [token.token_id for token in tokens] == answer_of(PROMPT, 6, 64)[0]
            assert engine.pid != crashed
            assert events == [("engine_ended", {"model": "hash", "engine": crashed, "status": -signal.SIGKILL})]

    run(work())


# engine/test_kv_tiers.py has the prefixes on a disk, and the tests around this one crashes.
@pytest.mark.exhaustive
def test_prefixes_on_the_disk_outlive_a_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remote_engine, "FIRST_RESTART_SECONDS", 0.01)
    logs = list[str]()
    monkeypatch.setattr(engine_client, "log_event", lambda event, *_, **fields: logs.append(event if fields else ""))
    prompt = [*PROMPT, *PROMPT, 1]
    (tmp_path / "file").touch()

    async def work() -> None:
        recipe = HashRecipe(kv_tiers=KvTierOptions(disk_bytes=1 << 20, folder=tmp_path / "kv"))
        async with remote(recipe) as engine:
            before, end = await items(engine, prompt)
            assert end.cached_tokens == 0
            await until(lambda: len(list(tmp_path.rglob("*.kv"))) >= 5)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.stats().restarts == 1)
            after, end = await items(engine, prompt)
            assert after == before
            assert end.cached_tokens == 20
            await until(lambda: getattr(engine.stats().tiers, "restored", 0) == 20)
            # What the process logs is in the server's log.
            for path in tmp_path.rglob("*.kv"):
                path.write_bytes(b"")
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.stats().restarts == 2)
            after, end = await items(engine, prompt)
            assert (after, end.cached_tokens) == (before, 0)
            await until(lambda: "kv_file_damaged" in logs)
        with pytest.raises(OutputError, match=r"--kv-folder .*file: cannot be written: .*; name a folder that can"):
            await RemoteEngine.open(HashRecipe(kv_tiers=replace(recipe.kv_tiers, folder=tmp_path / "file")))

    run(work())


def test_a_process_that_is_silent_is_not_ready_and_is_then_started_again(
    monkeypatch: pytest.MonkeyPatch, held: Path
) -> None:
    monkeypatch.setattr(remote_engine, "FIRST_RESTART_SECONDS", 0.1)
    events = logged(monkeypatch)

    async def work() -> None:
        engine = await RemoteEngine.open(HashRecipe(held=held, free_steps=4), hang_seconds=4.0)
        running = asyncio.ensure_future(items(engine))
        await until(lambda: engine.stats().generated_tokens > 0)
        stopped = engine.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        held.unlink()
        await until(lambda: engine.stats().failure is not None)
        assert "silent for" in str(engine.stats().failure)
        assert (engine.stats().silent_seconds or 0) > 0
        with pytest.raises(DeviceError, match="did not respond for 4 s and is started again"):
            await running
        await until(lambda: engine.stats().restarts == 1 and engine.stats().failure is None)
        tokens, _ = await items(engine)
        assert [token.token_id for token in tokens] == answer_of(PROMPT, 6, 64)[0]
        assert engine.pid != stopped
        which = {"model": "hash", "engine": stopped}
        assert events == [
            ("engine_hung", {**which, "seconds": 4.0}),
            ("engine_ended", {**which, "status": -signal.SIGKILL}),
        ]
        await engine.close()
        assert not is_running(stopped)

    run(work())


def test_a_device_that_hangs_is_noticed_although_its_process_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "STEP_FACTOR", 0.01)

    async def work() -> None:
        engine = await RemoteEngine.open(HashRecipe(step_seconds=10_000.0), hang_seconds=WAIT_SECONDS)
        with pytest.raises(DeviceError, match="did not respond"):
            await items(engine)
        await engine.close()

    run(work())


def test_an_idle_process_and_one_with_a_suspended_server_are_not_silent() -> None:
    async def work() -> list[str]:
        hung: list[str] = []
        watch = heartbeat.Watch(0.4, lambda: hung.append("hung"))
        heart = heartbeat.Heart(0.02, lambda: watch.beat(0.0))
        await asyncio.sleep(0.1)
        # This process does not run: nothing beats, and nothing counts.
        time.sleep(0.6)
        await asyncio.sleep(0.1)
        heart.stop()
        assert hung == []
        assert watch.is_ready
        await until(lambda: hung == ["hung"])
        assert not watch.is_ready
        return hung

    assert asyncio.run(work()) == ["hung"]


def test_an_engine_that_gives_up_its_device_gets_another_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(remote_engine, "FIRST_RESTART_SECONDS", 0.1)
    broken = tmp_path / "broken"
    broken.touch()

    async def work() -> None:
        async with remote(HashRecipe(broken=broken)) as engine:
            first = engine.pid
            while engine.pid == first:
                with pytest.raises((DeviceError, Unavailable)):
                    await items(engine)
                await asyncio.sleep(0.02)
            broken.unlink()
            while engine.stats().failure is not None:
                await asyncio.sleep(0.02)
            tokens, _ = await items(engine)
            assert [token.token_id for token in tokens] == answer_of(PROMPT, 6, 64)[0]

    run(work())


def test_an_engine_that_crashes_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "FIRST_RESTART_SECONDS", 0.01)
    monkeypatch.setattr(remote_engine, "MAX_CRASHES", 1)

    async def work() -> None:
        engine = await RemoteEngine.open(HashRecipe())
        for _ in range(2):
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            while engine.stats().failure is None:
                await asyncio.sleep(0.01)
            while "again; try" in str(engine.stats().failure):
                await asyncio.sleep(0.02)
        with pytest.raises(Unavailable, match="has failed 2 times and is not started again"):
            await items(engine)
        await engine.close()

    run(work())


def test_close_lets_answers_finish_and_fails_those_that_take_longer() -> None:
    async def work() -> None:
        # The second answer would take ten seconds.
        for drain_seconds, step_seconds, outcome in ((WAIT_SECONDS, 0.01, AnswerEnd), (0.0, 0.2, Unavailable)):
            engine = await RemoteEngine.open(HashRecipe(step_seconds=step_seconds))
            answer = asyncio.ensure_future(items(engine, max_tokens=50, ignore_eos=True))
            await until(lambda engine=engine: engine.stats().steps > 0)  # type: ignore[misc]
            await engine.close(drain_seconds, Unavailable("moved; try the other server"))
            [result] = await asyncio.gather(answer, return_exceptions=True)
            assert isinstance(result[1] if isinstance(result, tuple) else result, outcome)
            with pytest.raises(Unavailable, match="moved"):
                await items(engine)

    run(work())


def test_a_closed_engine_is_freed_without_a_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its recipe, which may be large. A collection of the server's garbage delays all of its answers."""

    async def work() -> None:
        engine = await RemoteEngine.open(HashRecipe())
        held = weakref.ref(engine)
        gc.disable()
        try:
            await everything(engine, constraint=EvenTokens())
            await engine.close()
            del engine
            await until(lambda: held() is None)
        finally:
            gc.enable()

    monkeypatch.setattr(waiting, "WAIT_SECONDS", 10.0)
    run(work())


def test_the_error_of_opening_is_raised_and_leaves_no_process() -> None:
    with pytest.raises(BundleError, match="is corrupt") as raised:
        run(RemoteEngine.open(HashRecipe(fails=True)))
    assert raised.value.details == {"file": "manifest.json"}


def test_the_process_ends_when_its_server_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", MAIN, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    with ours:
        ours.sendall(frame(Call(0, Open(HashRecipe(), 0.02))))
        assert ours.recv(1)
        # The engine's process ignores a signal to the complete process group: the server ends it.
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    assert process.wait(WAIT_SECONDS) == 0


def test_an_encoder_in_a_process_encodes_refuses_and_reports_its_batches() -> None:
    async def work() -> None:
        async with remote(EncoderRecipe()) as engine:
            rows = await asyncio.gather(*(engine.encode(EncodeRequest([[1, 2], [3] * 20])) for _ in range(3)))
            assert [each.tolist() for each in rows] == [[[3, 2, 2], [60, 20, 3]]] * 3
            with pytest.raises(RequestError, match="context length"):
                await engine.encode(EncodeRequest([[1] * 100]))
            with pytest.raises(DeadlineExceeded):
                await engine.encode(EncodeRequest([[1]], deadline=time.monotonic() - 1))
            await until(lambda: engine.stats().batches is not None and engine.stats().computed_tokens == 66)
            assert engine.max_drafts == 0

    run(work())


def test_an_image_is_sent_and_encoded_once_for_all_answers_of_a_request(held: Path) -> None:
    cat = picture(1, 6)

    async def work() -> None:
        async with remote(SeeingRecipe(held)) as engine:
            sent: list[object] = []
            send = engine._send

            def record(message: object) -> None:
                sent.append(message)
                send(message)

            engine._send = record  # type: ignore[method-assign]
            request = replace(with_images([3, cat, 5, cat], max_tokens=8, ignore_eos=True), arrival=engine.arrive())
            for images in (1, 2):

                async def tokens(request: TokenRequest = request) -> list[object]:
                    return [item async for item in engine.generate(request) if isinstance(item, GeneratedToken)]

                # Features are retained for answers that have begun: none may end before the last one begins.
                held.touch()
                running = [asyncio.ensure_future(tokens()) for _ in range(4)]
                await until(lambda: engine.stats().running + engine.stats().waiting == 4)
                held.unlink()
                answers = await asyncio.gather(*running)
                assert answers == [answers[0]] * 4
                assert len(answers[0]) == 8
                requests = [message.request for message in sent if isinstance(message, Generate)]
                pixels = [[image.pixels is not None for image in each.images] for each in requests]
                # Both places of one message have the same array, which a pickle holds once.
                assert pixels == [[True, True], *[[False, False]] * 3] * images
                assert sum(isinstance(message, ForgetImages) for message in sent) == images
                # Otherwise the next answers would be taken for begun by the statistics of these.
                await until(lambda: engine.stats().running + engine.stats().waiting == 0)
            await until(lambda: engine.stats().image_queries == 8)
            assert engine.stats().image_hits == 6
            # A crash loses the images.
            pid = engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda: engine.pid not in (None, pid) and engine.stats().failure is None)
            assert await tokens() == answers[0]

    run(work())
