"""Models of the store that an admin sends to sleep, and what other changes of models mean for those on use."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest
from fake_opener import AdapterExecutor
from stored_on_use import MODEL_BYTES, Opener, run, used
from waiting import pass_seconds, until

from nearfar.compiler.runtime.errors import Unavailable
from nearfar.compiler.store.model import Changes
from nearfar.compiler.store.parameters import Parameters
from nearfar.compiler.store.store import Store
from nearfar.server_fallback.executors.executor import SleepRequest, WakeRequest
from nearfar.server_fallback.executors.model_table import ASLEEP
from nearfar.server_fallback.executors.stored_models import StoredModels
from nearfar.server_fallback.schema.models import LoadAdapterRequest, LoadRequest, UnloadRequest


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.pull("demo", "base")
    made.create("chef", "base", Changes(system="Cook."))
    made.create("wide", "base", Changes(parameters=Parameters(num_ctx=128)))
    return made


def test_a_sleeping_model_is_neither_loaded_by_requests_nor_unloaded_by_its_keep_alive(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        models.keep_seconds = 50.0
        async with models.using("chef"):
            # By the name of another model with the same engine.
            sleeping = asyncio.ensure_future(models.change(SleepRequest("base")))
            await until(lambda: models.states()["chef"] == ASLEEP)
            for name in ("chef", "base"):
                with pytest.raises(Unavailable, match=f"{name}: the model is asleep") as refused:
                    await used(models, name)
                assert refused.value.details["code"] == "model_asleep"
            assert not opener.executors[0].closed
        await sleeping
        assert opener.executors[0].closed
        pass_seconds(60)
        await asyncio.sleep(0.01)
        assert (models.states(), models.loaded()[0].expires) == ({"chef": ASLEEP}, None)
        await models.change(WakeRequest("base"))
        assert models.loaded()[0].expires is not None
        await used(models, "base")
        pass_seconds(60)
        await until(lambda: models.states() == {})
        # Once it is unloaded, requests load it again.
        await used(models, "base")
        await models.change(SleepRequest("base"))
        await models.change(UnloadRequest(model="base"))
        await used(models, "base")
        assert opener.opened == ["chef", "chef", "base", "base"]

    run(store, test)


def test_a_load_gets_the_memory_of_a_model_that_falls_asleep_and_lets_it_sleep(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        async with models.using("base"):
            waiting = asyncio.ensure_future(used(models, "wide"))
            await until(lambda: bool(models._loads))
            sleeping = asyncio.ensure_future(models.change(SleepRequest("base")))
            await until(lambda: models.states()["base"] == ASLEEP)
            assert not waiting.done()
        await asyncio.gather(waiting, sleeping)
        assert opener.opened == ["base", "wide"]
        assert models.states()["base"] == ASLEEP
        # It takes nothing, so another one goes if memory is needed, or none can.
        async with models.using("wide"):
            with pytest.raises(Unavailable, match="base: needs"):
                await models.change(WakeRequest("base"))

    run(store, test, budget=MODEL_BYTES)


def test_a_load_gets_the_memory_of_a_model_that_was_loaded_by_hand_and_leaves(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        await models.change(LoadRequest(model="x", name="pinned"))
        async with models.using("pinned"):
            leaving = asyncio.ensure_future(models.change(UnloadRequest(model="pinned")))
            await until(lambda: "pinned" not in models.states())
            waiting = asyncio.ensure_future(used(models, "base"))
            await until(lambda: bool(models._loads))
            assert not waiting.done()
        await asyncio.gather(waiting, leaving)
        assert opener.opened == ["x", "base"]

    run(store, test, budget=MODEL_BYTES)


def test_a_model_that_was_unloaded_is_freed_without_a_garbage_collection(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        await used(models, "base")
        held = weakref.ref(models.loaded()[0].entry)
        gc.disable()
        try:
            await models.change(UnloadRequest(model="base"))
            await until(lambda: held() is None)
        finally:
            gc.enable()
        assert opener.executors[0].closed

    run(store, test)


def test_a_request_for_an_adapter_uses_its_model(store: Store) -> None:
    async def test(models: StoredModels, opener: Opener) -> None:
        await used(models, "base")
        await models.change(LoadAdapterRequest(model="base", lora_name="fine", lora_path="./fine"))
        async with models.using("fine"):
            assert [each.users for each in models.loaded()] == [1]
            models.keep("base", 0.0)
            await asyncio.sleep(0.01)
            assert not opener.executors[0].closed
        await until(lambda: opener.executors[0].closed)
        assert models.loaded() == []

    run(store, test, make=AdapterExecutor)
