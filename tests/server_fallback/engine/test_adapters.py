"""LoRA adapters by request: each answer is that of its own adapter, alone and beside others, and slots are allocated
and freed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from tiny_adapters import adapted_logits, make_adapter
from waiting import WAIT_SECONDS

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.formats.peft import read_adapter
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.adapters import Adapters
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.targets.cpu.runner import CpuRunner

CompileTiny = Callable[..., Path]
# Two full pages, so that later requests could reuse them from the cache.
PROMPT = [(7 * i + 3) % 509 for i in range(33)]
STATES = dict[str, Mapping[str, FloatArray]]


@pytest.fixture(scope="module")
def bundle(compile_base: CompileTiny) -> Bundle:
    return open_bundle(compile_base("qwen3", "f32", target="cpu", lora_rank=4))


@pytest.fixture(scope="module")
def expected_and_states(
    bundle: Bundle, tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str | None, int], STATES]:
    """The token that transformers generates after the prompt, and the contents of the adapter's slot, by adapter."""
    folder, checkpoint = tmp_path_factory.mktemp("adapters"), tiny_checkpoints["qwen3"]
    states: STATES = {}
    expected: dict[str | None, int] = {None: int(np.argmax(adapted_logits(checkpoint, {}, PROMPT)[-1]))}
    for seed, name in enumerate(("red", "green", "blue")):
        deltas = make_adapter(folder / name, checkpoint, ("q_proj", "v_proj", "down_proj"), rank=4, alpha=8, seed=seed)
        states[name] = read_adapter(folder / name, bundle.manifest)
        expected[name] = int(np.argmax(adapted_logits(checkpoint, deltas, PROMPT)[-1]))
    assert len(set(expected.values())) == 4
    return expected, states


@asynccontextmanager
async def engine_with(bundle: Bundle, states: STATES, *names: str) -> AsyncIterator[TokenEngine]:
    runner = CpuRunner(bundle, limits=Limits(tokens=64, sequences=4, rows=4, pages=40, adapters=2))
    engine = TokenEngine(runner, TokenModel.of(bundle.manifest))
    for name in names:
        await engine.load_adapter(name, states[name])
    yield engine
    await engine.close()


async def first_token(engine: TokenEngine, adapter: str | None) -> int:
    async for item in engine.generate(TokenRequest(PROMPT, max_tokens=1, adapter=adapter)):
        assert isinstance(item, GeneratedToken)
        return item.token_id
    raise AssertionError


def test_answers_of_one_batch_are_those_of_their_adapters(
    bundle: Bundle, expected_and_states: tuple[dict[str | None, int], STATES]
) -> None:
    expected, states = expected_and_states

    async def main() -> None:
        async with engine_with(bundle, states, "red", "green") as engine:
            names = ["red", None, "green", "red", None, "green"]
            assert await asyncio.gather(*(first_token(engine, name) for name in names)) == [
                expected[name] for name in names
            ]
            # Now with cached pages. The cache has one tree for each adapter.
            for name in names:
                assert await first_token(engine, name) == expected[name]
            assert engine.stats().prefix_hits >= 6 * 32

    asyncio.run(main())


def test_a_name_that_is_loaded_again_answers_with_the_new_adapter(
    bundle: Bundle, expected_and_states: tuple[dict[str | None, int], STATES]
) -> None:
    expected, states = expected_and_states

    async def main() -> None:
        async with engine_with(bundle, states, "red", "green") as engine:
            with pytest.raises(RequestError, match="all 2 slots for adapters are in use"):
                await engine.load_adapter("blue", states["blue"])
            with pytest.raises(RequestError, match="an adapter 'red' is loaded already"):
                await engine.load_adapter("red", states["blue"])
            assert await first_token(engine, "red") == expected["red"]
            await engine.unload_adapter("red")
            with pytest.raises(RequestError, match="adapter 'red' is not loaded"):
                await first_token(engine, "red")
            await engine.load_adapter("red", states["blue"])
            assert await first_token(engine, "red") == expected["blue"]
            assert await first_token(engine, "green") == expected["green"]
            with pytest.raises(RequestError, match="adapter 'white' is not loaded"):
                await engine.unload_adapter("white")

    asyncio.run(main())


def test_an_adapter_goes_when_the_last_answer_with_it_has_ended(
    bundle: Bundle, expected_and_states: tuple[dict[str | None, int], STATES]
) -> None:
    _, states = expected_and_states

    async def main() -> None:
        async with engine_with(bundle, states, "red") as engine:
            answer = engine.generate(TokenRequest(PROMPT, max_tokens=150, adapter="red"))
            await anext(answer)
            unloading = asyncio.create_task(engine.unload_adapter("red"))
            # Let the task call the engine before the request below.
            await asyncio.sleep(0)
            with pytest.raises(RequestError, match="adapter 'red' is not loaded"):
                await first_token(engine, "red")
            assert not unloading.done()
            *_, end = [item async for item in answer]
            assert isinstance(end, AnswerEnd)
            assert end.finish_reason in ("stop", "length")
            await asyncio.wait_for(unloading, WAIT_SECONDS)

    asyncio.run(main())


def test_keys_are_never_reused_and_without_slots_there_are_no_adapters() -> None:
    adapters = Adapters(1)
    first = adapters.allocate("red")
    adapters.free(first)
    second = adapters.allocate("red")
    assert (first.slot, first.key) == (second.slot, "red 1")
    assert second.key == "red 2"
    with pytest.raises(RequestError, match="served without slots for adapters"):
        Adapters(0).allocate("red")


def test_an_adapter_that_cannot_be_written_leaves_its_name_and_its_slot_free() -> None:
    adapters = Adapters(1)
    states = {"a": np.ones(1, np.float32)}

    def fail(*_: object) -> None:
        raise DeviceError("the device is lost")

    for name in ("red", "red", "green"):
        failed: Future[None] = Future()
        adapters.load(name, states, fail, failed)
        assert isinstance(failed.exception(), DeviceError)
    assert adapters.names == []
    loaded: Future[None] = Future()
    adapters.load("red", states, lambda *_: None, loaded)
    assert loaded.result() is None
    assert adapters.use("red").slot == 0
