"""Pages of a prompt that pass from an engine to another one while it computes them: the second one answers with the
same tokens, and neither holds a page afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from decoder_families import make_family
from engine_requests import LIMITS, Gate, collect, engine_on, ids, require_no_page_held, run, settle
from hash_model import answer_of
from hash_runner import HashRunner, LayeredHashRunner
from light_bundle import few_kernels, one_compilation
from made_once import kept_folder, made_once
from tiny_models import VOCAB_SIZE
from waiting import until

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine import page_blocks
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.page_blocks import BlockWrite, PageBlock, joined
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.targets.cpu.runner import CpuRunner

# The hash model's pages have four tokens.
LONG = [13, 2, 3, 13, 10, 1, 5, 13, 1, 14, 4, 4, 9, 2, 7, 13, 8, 8, 1, 2, 9, 11, 3, 6, 13, 2, 5, 5, 1, 13]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_blocks, "BLOCK_TOKENS", 16)


def prefix_of(prompt: Sequence[int], page_size: int = 4) -> int:
    return (len(prompt) - 1) // page_size * page_size


async def export(
    engine: TokenEngine, prompt: list[int], start: int = 0, page_size: int = 4
) -> tuple[list[PageBlock], AnswerEnd]:
    end = prefix_of(prompt, page_size)
    request = TokenRequest(prompt[: end + 1], export=range(start, end))
    items = [item async for item in engine.export(request)]
    assert isinstance(items[-1], AnswerEnd)
    blocks, parts = list[PageBlock](), list[PageBlock]()
    for item in items[:-1]:
        assert isinstance(item, PageBlock)
        assert item.part == len(parts)
        parts.append(item)
        if item.is_last:
            blocks.append(joined(parts))
            parts.clear()
    return blocks, items[-1]


async def write(engine: TokenEngine, prompt: list[int], blocks: list[PageBlock], page_size: int = 4) -> list[bool]:
    prefix = prompt[: prefix_of(prompt, page_size)]
    return [await engine.write_block(BlockWrite(prefix, block)) for block in blocks]


@pytest.mark.parametrize("states", [0, 8])
def test_a_prompt_continues_in_another_engine_from_pages_that_it_did_not_compute(
    states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_blocks, "BLOCK_TOKENS", 8)
    limits, end = replace(LIMITS, states=states), prefix_of(LONG)

    async def work() -> None:
        async with engine_on(HashRunner(limits, threaded=True)) as first, engine_on(HashRunner(limits)) as second:
            blocks, completion = await export(first, LONG)
            assert [(block.start, block.end) for block in blocks] == [(0, 8), (8, 16), (16, 24), (24, 28)]
            assert (completion.completion_tokens, completion.cached_tokens) == (0, 0)
            assert first.stats().exported_tokens == end
            await settle(first)
            require_no_page_held(first)
            assert await write(second, LONG, blocks) == [True] * 4
            require_no_page_held(second)
            assert await second.cached_tokens(LONG) == end
            answer, completion = await collect(second, LONG)
            assert [token.token_id for token in answer] == answer_of(LONG, 6, 64)[0]
            assert completion.cached_tokens == end
            assert second.stats().computed_tokens == len(LONG) - end + len(answer) - 1
            # The first engine has the pages in its cache, and computes nothing to send them again.
            before = first.stats().computed_tokens
            again, completion = await export(first, LONG)
            assert again == blocks
            assert completion.cached_tokens == end
            assert first.stats().computed_tokens == before
            # The rest of a prompt whose beginning is there.
            rest, _ = await export(first, LONG, start=16)
            assert rest == blocks[2:]

    run(work())


def test_the_layers_of_a_block_are_delivered_before_its_step_is_done() -> None:
    async def work() -> None:
        gate = Gate()
        async with (
            engine_on(LayeredHashRunner(LIMITS, threaded=True, hold=gate)) as first,
            engine_on(LayeredHashRunner(LIMITS)) as second,
            engine_on(HashRunner(LIMITS)) as other,
        ):
            async with aclosing(first.export(TokenRequest(LONG[:29], export=range(0, 28)))) as parts:
                items = [await anext(parts)]
                assert first.stats().exported_tokens == 0
                gate.open()
                items += [item async for item in parts]
            blocks = [item for item in items if isinstance(item, PageBlock)]
            # In order, although the next step's first part was there before this one's last.
            assert [(block.part, block.parts) for block in blocks] == [(0, 2), (1, 2)] * (len(blocks) // 2)
            assert len({block.end for block in blocks}) > 1
            whole = [joined(blocks[index : index + 2]) for index in range(0, len(blocks), 2)]
            await settle(first)
            require_no_page_held(first)
            assert all(await write(second, LONG, whole))
            assert await ids(second, LONG) == answer_of(LONG, 6, 64)[0]
            with pytest.raises(RequestError, match="the hash reads whole pages"):
                await write(other, LONG, whole)
            require_no_page_held(other)

    run(work())


@pytest.mark.parametrize("runner", [HashRunner, LayeredHashRunner])
def test_a_block_is_delivered_while_the_rest_is_computed_and_a_slow_reader_stops_it(runner: type[HashRunner]) -> None:
    async def work() -> None:
        async with engine_on(runner(replace(LIMITS, pages=64), threaded=True), context=256) as engine:
            prompt = [1 + index % 15 for index in range(201)]
            request = TokenRequest(prompt, export=range(0, 200))
            async with aclosing(engine.export(request)) as blocks:
                first = await anext(blocks)
                assert isinstance(first, PageBlock)
                if not first.is_last:
                    assert isinstance(await anext(blocks), PageBlock)
                # Two steps of eight tokens may be open beyond what the reader took.
                loop = engine._loop
                await until(lambda: all(sequence.is_held for sequence in loop.scheduler.running))
                assert engine.stats().computed_tokens < 100
                # Another request is answered meanwhile.
                assert await ids(engine, LONG) == answer_of(LONG, 6, 256)[0]
                found = [first.end] + [item.end async for item in blocks if isinstance(item, PageBlock)]
                assert found[-1] == 200
            await settle(engine)
            require_no_page_held(engine)

    run(work())


def test_an_export_that_nobody_reads_any_more_gives_up_its_pages() -> None:
    async def work() -> None:
        gate = Gate()
        async with engine_on(HashRunner(LIMITS, threaded=True, hold=gate)) as engine:
            blocks = engine.export(TokenRequest(LONG[:29], export=range(0, 28)))
            first = asyncio.ensure_future(anext(blocks))
            await until(lambda: engine.stats().running == 1)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await blocks.aclose()
            gate.open()
            await settle(engine)
            require_no_page_held(engine)

    run(work())


def test_what_a_failed_step_computed_is_never_delivered() -> None:
    """The second step fails; the third follows on pages with unknown contents."""

    async def work() -> None:
        def fail(batch: int) -> Exception | None:
            return DeviceError("the device is lost") if batch == 1 else None

        for is_alone in (True, False):
            async with engine_on(HashRunner(LIMITS, threaded=True, fail=fail)) as first:
                others = [] if is_alone else [asyncio.ensure_future(ids(first, [10, 12, 15]))]
                with pytest.raises(DeviceError, match="lost"):
                    await export(first, LONG)
                await asyncio.gather(*others, return_exceptions=True)
                blocks, _ = await export(first, LONG)
                require_no_page_held(first)
                async with engine_on(HashRunner(LIMITS)) as second:
                    assert all(await write(second, LONG, blocks))
                    assert await ids(second, LONG) == answer_of(LONG, 6, 64)[0]

    run(work())


def test_preempted_exports_go_on_where_they_were() -> None:
    async def work() -> None:
        async with (
            engine_on(HashRunner(replace(LIMITS, pages=16), threaded=True)) as first,
            engine_on(HashRunner(replace(LIMITS, pages=16))) as second,
        ):
            exports = [export(first, [index, *LONG]) for index in range(1, 4)]
            answers = [ids(first, [index, 3, 5], max_tokens=40, ignore_eos=True, priority=1) for index in range(3)]
            found, _ = await asyncio.gather(asyncio.gather(*exports), asyncio.gather(*answers))
            assert first.stats().preemptions > 0
            require_no_page_held(first)
            for index, (blocks, _) in enumerate(found, 1):
                assert all(await write(second, [index, *LONG], blocks))
                assert await ids(second, [index, *LONG]) == answer_of([index, *LONG], 6, 64)[0]

    run(work())


def test_blocks_without_room_or_without_those_before_them_change_nothing() -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as first:
            blocks, _ = await export(first, LONG)
        gate = Gate()
        # The prompt has seven steps, and the answer ten tokens.
        runner = HashRunner(
            replace(LIMITS, pages=16), threaded=True, hold=lambda step: None if step < 7 else gate(step)
        )
        async with engine_on(runner) as second:
            assert await write(second, LONG, blocks[1:]) == [False] * (len(blocks) - 1)
            answers = second.generate(TokenRequest([9] * 50, 10, ignore_eos=True))
            await anext(answers)
            # It comes before the next steps, and 13 or more of the 16 pages are in use.
            written = asyncio.ensure_future(write(second, LONG, blocks[:1]))
            await asyncio.sleep(0)
            gate.open()
            assert await written == [False]
            await answers.aclose()
            await settle(second)
            assert all(await write(second, LONG, blocks))
            require_no_page_held(second)
            assert await ids(second, LONG) == answer_of(LONG, 6, 64)[0]

    run(work())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"export": range(0, 27)}, "multiples of the page size 4"),
        ({"export": range(0, 32)}, "at most 28 tokens"),
        ({"export": range(8, 8)}, "range from 8 to 8"),
        ({"prompt_logprobs": 3}, "cannot be combined"),
    ],
)
def test_an_export_that_no_engine_can_do_is_refused(change: dict[str, Any], message: str) -> None:
    async def work() -> None:
        async with engine_on(HashRunner(LIMITS)) as engine:
            with pytest.raises(RequestError, match=message):
                await anext(engine.export(replace(TokenRequest(LONG[:29], export=range(0, 28)), **change)))

    run(work())


# --- the cpu target ---


MODELS: dict[str, dict[str, Any]] = {
    # Windows of 11 tokens beside layers that see all; a state beside keys and values.
    "gemma3_text": {"kv": "q4"},
    "lfm2": {"kv": "q8"},
}


def compiled(family: str, checkpoints: Callable[[str, Path], object], options: dict[str, Any], tmp_path: Path) -> Path:
    def make(folder: Path) -> None:
        checkpoints(family, tmp_path / "checkpoint")
        with few_kernels(), one_compilation():
            chosen = CompileOptions(target="cpu", quantization="f32", context=256, self_test=False, **options)
            compile_model(str(tmp_path / "checkpoint"), folder, chosen)

    return made_once(kept_folder("apart") / family, make)


@pytest.mark.parametrize("family", MODELS)
def test_on_cpus_a_model_whose_prompt_another_engine_computed_gives_the_same_tokens(
    family: str, tmp_path: Path
) -> None:
    bundle = open_bundle(compiled(family, make_family, MODELS[family], tmp_path))
    model, limits = TokenModel.of(bundle.manifest), Limits(tokens=64, sequences=4, rows=4, pages=64, states=None)
    if bundle.manifest.keeps_states:
        limits = replace(limits, states=12)
    prompt = [(7 * i * i + 3 * i + 5) % VOCAB_SIZE for i in range(150)]
    sampled = Sampling(temperature=0.8, seed=3)

    async def answers(engine: TokenEngine) -> list[list[int]]:
        requests = [TokenRequest(prompt, 12, each, ignore_eos=True) for each in (Sampling(), sampled)]
        return [
            [item.token_id async for item in engine.generate(request) if isinstance(item, GeneratedToken)]
            for request in requests
        ]

    async def work() -> None:
        engines = [TokenEngine(CpuRunner(bundle, limits=limits), model) for _ in range(3)]
        alone, first, second = engines
        expected = await answers(alone)
        blocks, _ = await export(first, prompt, page_size=16)
        # A block for each chunk, in parts.
        assert [block.end for block in blocks] == [64, 128, 144]
        assert all(block.parts > 1 for block in blocks)
        with pytest.raises(RequestError, match="bytes"):
            await write(second, prompt, [replace(blocks[0], data=blocks[0].data[:-1])], page_size=16)
        require_no_page_held(second)
        assert all(await write(second, prompt, blocks, page_size=16))
        assert await second.cached_tokens(prompt) == 144
        require_no_page_held(second)
        assert await answers(second) == expected
        assert second.stats().computed_tokens <= 2 * (12 + 6)
        windows = [group.window for group in CpuRunner(bundle, limits=limits).groups]
        if any(windows):
            # What lies behind a window is not sent.
            sizes = [len(block.data) for block in blocks]
            assert sizes[0] < 4 * sizes[-1]
        for engine in engines:
            await engine.close()

    asyncio.run(work())
