"""Prefixes that the device has evicted come back from the host's memory and from the disk, in this engine and after a
restart, and answers are those that are computed without them. The pages of the hash model reveal a wrong one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_requests import LIMITS, collect, ids, require_no_page_held, run, settle
from hash_model import answer_of
from hash_runner import MODEL, HashRunner
from waiting import until

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine import tier_traffic
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.stats import TierStats
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.kv_tiers import disk_tier
from nearfar.server_fallback.kv_tiers.options import KvTierOptions

# The pool holds one context.
SMALL = replace(LIMITS, pages=16)
PROMPTS = [[(first + 7 * i) % 15 + 1 for i in range(30)] for first in range(6)]


def disk(tmp_path: Path, size: int = 1 << 20, **more: Any) -> KvTierOptions:
    return KvTierOptions(disk_bytes=size, folder=tmp_path / "kv", **more)


@asynccontextmanager
async def engine_with(
    tiers: KvTierOptions, runner: HashRunner | None = None, limits: Limits = SMALL
) -> AsyncIterator[TokenEngine]:
    engine = TokenEngine(runner or HashRunner(limits, threaded=True), MODEL, EngineConfig(kv_tiers=tiers))
    try:
        yield engine
    finally:
        await engine.close()


async def stored(engine: TokenEngine) -> TierStats:
    """The figures once everything is stored."""
    await settle(engine)
    traffic = engine._loop._tiers
    await until(lambda: not (traffic._pending or traffic._evicted or traffic._held or traffic._reads))
    stats = engine.stats().tiers
    assert stats is not None
    return stats


async def answered(engine: TokenEngine, prompt: list[int], **request: Any) -> int:
    """How many tokens of the prompt were in the cache; the answer is that of the model."""
    found, end = await collect(engine, prompt, **request)
    assert [token.token_id for token in found] == answer_of(prompt, 6, 64)[0]
    return end.cached_tokens


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kv"))


@pytest.mark.parametrize("states", [0, 8])
@pytest.mark.parametrize("tier", ["host", "disk", "both", "encrypted"])
def test_an_evicted_prefix_comes_back_and_on_a_disk_after_a_restart(tier: str, states: int, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0f" * 32 + "\n")
    options = {
        "host": KvTierOptions(host_memory_bytes=1 << 20),
        "disk": disk(tmp_path),
        "both": disk(tmp_path, host_memory_bytes=1 << 20),
        "encrypted": disk(tmp_path, key_file=tmp_path / "key"),
    }[tier]
    limits = replace(SMALL, states=states)

    async def work() -> None:
        async with engine_with(options, limits=limits) as engine:
            for prompt in PROMPTS:
                assert await answered(engine, prompt) == 0
                await stored(engine)
            before = (await stored(engine)).restored
            assert before == 0
            # The device holds one or two of them.
            cached = [await answered(engine, [*prompt, 3]) for prompt in PROMPTS]
            # A state is kept at the last page border before the next token.
            assert cached == [28] * 6
            stats = await stored(engine)
            assert 4 * 28 <= stats.restored <= stats.queries
            hits = {"host": (True, False), "both": (True, False)}.get(tier, (False, True))
            assert (stats.host_hits > 0, stats.disk_hits > 0) == hits
            assert (stats.host_bytes > 0, stats.disk_bytes > 0) == (tier in ("host", "both"), tier != "host")
            assert (stats.damaged, stats.failures, stats.dropped) == (0, 0, 0)
            await settle(engine)
            require_no_page_held(engine)
        # A second process.
        async with engine_with(options, limits=limits) as engine:
            assert await answered(engine, PROMPTS[0]) == (0 if tier == "host" else 28)
            # A prefix that nobody knows, and one that leaves a known one in the middle.
            assert await answered(engine, [1, 1, 1, 1, 1, 1, 1, 1, 1]) == 0
            middle = await answered(engine, [*PROMPTS[1][:18], 2, 2])
            assert middle == (0 if tier == "host" else 16) or states > 0

    run(work())


def test_engines_share_a_disk_at_the_same_time_and_nothing_that_is_there_is_stored_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with engine_with(disk(tmp_path)) as first, engine_with(disk(tmp_path)) as second:
            await answered(first, PROMPTS[0])
            await stored(first)
            written = {path: path.stat().st_ino for path in files(tmp_path)}
            assert len(written) == 8
            assert await answered(second, PROMPTS[0]) == 28
            assert await answered(second, [*PROMPTS[0], 9]) == 28
            await stored(second)
            assert {path: path.stat().st_ino for path in files(tmp_path)}.items() >= written.items()
            # With another bundle, it is another prefix.
            other = TokenEngine(
                HashRunner(SMALL), replace(MODEL, bundle="other"), EngineConfig(kv_tiers=disk(tmp_path))
            )
            assert await answered(other, PROMPTS[0]) == 0
            await other.close()

    run(work())


def test_pages_that_are_evicted_before_their_turn_are_stored_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_traffic, "TURN_BYTES", 1)

    async def work() -> None:
        async with engine_with(disk(tmp_path)) as engine:
            # All at once: each evicts the pages of the one before.
            await asyncio.gather(*(answered(engine, prompt) for prompt in PROMPTS))
            stats = await stored(engine)
            assert stats.dropped == 0
        async with engine_with(disk(tmp_path)) as engine:
            assert [await answered(engine, prompt) for prompt in PROMPTS] == [28] * 6

    run(work())


def test_nothing_that_a_failed_device_held_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a step fails, all pages hold wrong tokens, and reads that followed it succeed."""
    monkeypatch.setattr(tier_traffic, "TURN_BYTES", 1)

    async def work() -> None:
        for failing in range(4, 18):

            def fail(number: int, failing: int = failing) -> Exception | None:
                return DeviceError("out of memory") if number == failing else None

            options = disk(tmp_path / str(failing))
            runner = HashRunner(replace(SMALL, pages=40), threaded=True, fail=fail)
            async with engine_with(options, runner) as engine:
                answers = (answered(engine, prompt) for prompt in PROMPTS[:4])
                failed = await asyncio.gather(*answers, return_exceptions=True)
                assert all(isinstance(each, int | DeviceError) for each in failed)
            async with engine_with(options) as engine:
                for prompt in PROMPTS[:4]:
                    await answered(engine, prompt)

    run(work())


@pytest.mark.parametrize("fault", ["flipped", "truncated", "empty", "other version", "another's"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_damaged_file_is_removed_and_its_tokens_are_computed(fault: str, encrypted: bool, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    options = disk(tmp_path, key_file=tmp_path / "key" if encrypted else None)

    async def work() -> None:
        async with engine_with(options) as engine:
            await answered(engine, PROMPTS[0])
            await stored(engine)
        found = files(tmp_path)
        contents = [path.read_bytes() for path in found]
        for path, content, other in zip(found, contents, contents[1:] + contents[:1], strict=True):
            path.write_bytes(
                {
                    "flipped": content[:-3] + bytes([content[-3] ^ 4]) + content[-2:],
                    "truncated": content[:-1],
                    "empty": b"",
                    "other version": content[:15] + b"\2" + content[16:],
                    "another's": other,
                }[fault]
            )
        async with engine_with(options) as engine:
            assert await answered(engine, PROMPTS[0]) == 0
            stats = await stored(engine)
            assert stats.damaged == len(found) - 1
            assert stats.restored == 0
            # What was computed instead is stored again. Nobody has read the page of the answer's end.
            if not encrypted:
                again = [path.read_bytes() for path in files(tmp_path)]
                assert sum(now != then for now, then in zip(again, contents, strict=True)) == 1
        async with engine_with(options) as engine:
            assert await answered(engine, PROMPTS[0]) == 28

    run(work())


def test_a_missing_page_ends_the_prefix_before_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with engine_with(disk(tmp_path)) as engine:
            await answered(engine, PROMPTS[0])
            await stored(engine)
            links = engine._loop._tiers._tiers.links(PROMPTS[0], "")
        (gone,) = tmp_path.rglob(f"{links[4].hex()}00.kv")
        gone.unlink()
        async with engine_with(disk(tmp_path)) as engine:
            assert await answered(engine, PROMPTS[0]) == 16

    run(work())


def test_a_full_disk_stops_writing_for_a_while_and_answers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = disk_tier.write_private

    def fail(path: Path, data: bytes) -> None:
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    async def work() -> None:
        async with engine_with(disk(tmp_path)) as engine:
            monkeypatch.setattr(disk_tier, "write_private", fail)
            await answered(engine, PROMPTS[0])
            stats = await stored(engine)
            assert stats.failures == 1
            assert stats.disk_bytes == 0
            assert [path for path in (tmp_path / "kv").rglob("*") if path.is_file()] == [tmp_path / "kv" / "usage"]
            monkeypatch.setattr(disk_tier, "write_private", write)
            await answered(engine, PROMPTS[1])
            assert (await stored(engine)).disk_bytes == 0
            # The pause is over.
            engine._loop._tiers._tiers._disk._paused_until = 0.0
            await answered(engine, [*PROMPTS[1], 5])
            assert (await stored(engine)).disk_bytes > 0
        async with engine_with(disk(tmp_path)) as engine:
            assert await answered(engine, PROMPTS[1]) == 28

    run(work())


def test_files_of_another_key_are_neither_read_nor_harmed(tmp_path: Path) -> None:
    keys = []
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(name.encode().ljust(32))
        keys.append(disk(tmp_path, key_file=tmp_path / name))

    async def work() -> None:
        async with engine_with(keys[0]) as engine:
            await answered(engine, PROMPTS[0])
            await stored(engine)
        before = {path: path.read_bytes() for path in files(tmp_path)}
        # Neither names nor contents reveal the tokens: the plain names are others, and pages are whole in plain files.
        assert not any(np.array(PROMPTS[0][:4]).tobytes() in data for data in before.values())
        for options in (keys[1], disk(tmp_path)):
            async with engine_with(options) as engine:
                assert await answered(engine, PROMPTS[0]) == 0
                assert (await stored(engine)).damaged == 0
        plain = set(files(tmp_path)) - set(before)
        assert any(np.array(PROMPTS[0][:4]).tobytes() in path.read_bytes() for path in plain)
        assert not {path.name for path in plain} & {path.name for path in before}
        async with engine_with(keys[0]) as engine:
            assert await answered(engine, PROMPTS[0]) == 28

    run(work())


def test_a_reset_clears_the_tiers(tmp_path: Path) -> None:
    async def work() -> None:
        options = disk(tmp_path, host_memory_bytes=1 << 20)
        async with engine_with(options) as engine:
            await answered(engine, PROMPTS[0])
            await stored(engine)
            assert len(files(tmp_path)) == 8
            await engine.reset_prefix_cache()
            assert files(tmp_path) == []
            stats = await stored(engine)
            assert (stats.host_bytes, stats.disk_bytes) == (0, 0)
            assert await answered(engine, PROMPTS[0]) == 0
            await stored(engine)
            assert len(files(tmp_path)) == 8

    run(work())


def test_adapters_have_prefixes_of_their_own_by_their_contents(tmp_path: Path) -> None:
    limits = replace(SMALL, adapters=2)
    red, blue = ({"token_counts": np.full(16, value, np.float32)} for value in (1, 2))

    async def work() -> None:
        async with engine_with(disk(tmp_path), limits=limits) as engine:
            await engine.load_adapter("red", red)
            await answered(engine, PROMPTS[0], adapter="red")
            await stored(engine)
        async with engine_with(disk(tmp_path), limits=limits) as engine:
            await engine.load_adapter("red", blue)
            await engine.load_adapter("crimson", red)
            assert await answered(engine, PROMPTS[0]) == 0
            assert await answered(engine, PROMPTS[0], adapter="red") == 0
            assert await answered(engine, PROMPTS[0], adapter="crimson") == 28

    run(work())


def test_a_request_that_ends_while_its_prompt_is_fetched_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with engine_with(disk(tmp_path)) as engine:
            await answered(engine, PROMPTS[0])
            await stored(engine)
        async with engine_with(disk(tmp_path)) as engine:
            tasks = [asyncio.ensure_future(ids(engine, prompt)) for prompt in PROMPTS * 3]
            await asyncio.sleep(0)
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert tasks[0].result() == answer_of(PROMPTS[0], 6, 64)[0]
            await stored(engine)
            assert not engine._loop.prefixes.fetching
            require_no_page_held(engine)

    run(work())


def test_a_runner_that_keeps_its_pages_to_itself_refuses_tiers() -> None:
    class Framework(HashRunner):
        def read_pages(self, units: object) -> Any:  # noqa: ARG002
            raise RequestError("runners of the target onnx neither read nor write pages of keys and values")

    with pytest.raises(RequestError, match="--kv-host-memory, --kv-disk: runners of the target onnx neither read"):
        TokenEngine(Framework(SMALL), MODEL, EngineConfig(kv_tiers=KvTierOptions(host_memory_bytes=1)))


def test_windows_come_back_with_the_same_tokens(windowed_bundle: Path, tmp_path: Path) -> None:
    """A model with two page groups, of which one needs the last pages only. In a second process, a prefix comes back
    from the disk at a place where the first one has ended, and at one in its middle.
    """
    bundle = open_bundle(windowed_bundle)
    limits = Limits(tokens=64, sequences=2, rows=2, pages=20, window_pages=20)
    prompt = [(7 * i * i + 3 * i + 5) % 97 + 1 for i in range(83)]
    asked = [[*prompt, 4], [*prompt[:70], 5, 6]]

    async def answers(tiers: KvTierOptions, *prompts: list[int]) -> list[tuple[list[int], int]]:
        runner = ReferenceRunner(bundle, limits=limits, activation="float32")
        engine = TokenEngine(runner, TokenModel.of(bundle.manifest), EngineConfig(kv_tiers=tiers))
        found = []
        for each in prompts:
            tokens, end = await collect(engine, each, ignore_eos=True)
            found.append(([token.token_id for token in tokens], end.cached_tokens))
        if tiers.any:
            await stored(engine)
        await engine.close()
        return found

    async def work() -> None:
        expected = [(await answers(KvTierOptions(), each))[0] for each in asked]
        assert [cached for _, cached in expected] == [0, 0]
        (first,) = await answers(disk(tmp_path), prompt)
        assert first[1] == 0
        found = [(await answers(disk(tmp_path), each))[0] for each in asked]
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        assert [cached for _, cached in found] == [80, 64]

    run(work())


def test_a_prompt_whose_answer_is_empty_is_stored(tmp_path: Path) -> None:
    prompt = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14, 13, 2, 3, 13, 10, 1, 5, 13, 1, 14, 5]
    assert answer_of(prompt, 6, 64) == ([], "stop")

    async def work() -> None:
        for cached in (0, 20):
            async with engine_with(disk(tmp_path)) as engine:
                assert await answered(engine, prompt) == cached

    run(work())
