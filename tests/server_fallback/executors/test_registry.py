"""Models by name: loaded, found, unloaded, within a budget of memory."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace

import pytest
from fake_opener import AdapterExecutor, FakeOpener, fails, run
from waiting import until

from nearfar.compiler.runtime.errors import CheckpointError, RequestError, Unavailable
from nearfar.server_fallback import garbage
from nearfar.server_fallback.executors import registry as registry_module
from nearfar.server_fallback.executors.executor import (
    Executor,
    ExecutorState,
    Opening,
    SleepRequest,
    UnknownModel,
    WakeRequest,
)
from nearfar.server_fallback.executors.model_table import ASLEEP
from nearfar.server_fallback.executors.registry import Registry, default_name
from nearfar.server_fallback.schema.models import LoadAdapterRequest, LoadRequest, UnloadAdapterRequest


def test_a_model_answers_to_its_name_and_its_aliases() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        card = await registry.load(LoadRequest(model="1", name="one", aliases=["uno", "eins"]))
        assert (card.id, card.root, card.max_model_len, card.owned_by) == ("one", "one", 64, "nearfar")
        assert [each.id for each in registry.cards()] == ["one", "uno", "eins"]
        assert {each.root for each in registry.cards()} == {"one"}
        assert await registry.executor("uno") is opener.opened[0]
        assert registry.states().keys() == {"one"}
        await registry.unload("uno")
        assert [each.id for each in registry.cards()] == ["one", "eins"]
        error = await fails(UnknownModel, r"'uno' is not loaded; loaded: one, eins", registry.executor("uno"))
        assert error.details["param"] == "model"
        await registry.unload("eins")
        await registry.unload("one")
        await fails(UnknownModel, "loaded: none", registry.executor("one"))
        assert opener.opened[0].closed

    run(test)


def test_a_name_belongs_to_one_model() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="1", aliases=["uno"]))
        for request in (
            LoadRequest(model="1"),
            LoadRequest(model="2", name="uno"),
            LoadRequest(model="2", aliases=["1"]),
            LoadRequest(model="2", aliases=["2"]),
            LoadRequest(model="2", aliases=["x", "x"]),
        ):
            await fails(RequestError, "is already in use", registry.load(request))
        assert len(opener.opened) == 1
        assert [card.id for card in registry.cards()] == ["1", "uno"]

    run(test)


def test_simultaneous_loads_of_one_model_happen_once_and_outlive_their_callers() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        opener.gate.clear()
        loads = [asyncio.create_task(registry.load(LoadRequest(model="1"))) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert registry.cards() == []
        assert not registry.states()["1"].ready
        await fails(Unavailable, "still loading", registry.executor("1"))
        await fails(RequestError, "still loading", registry.unload("1"))
        await fails(RequestError, "is already in use", registry.load(LoadRequest(model="2", name="1")))
        loads[0].cancel()
        opener.gate.set()
        assert [card.id for card in await asyncio.gather(*loads[1:])] == ["1", "1"]
        assert len(opener.opened) == 1

    run(test)


def test_a_load_that_fails_leaves_nothing() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        for _ in range(2):
            await fails(
                CheckpointError, "no model", registry.load(LoadRequest(model="bad", name="7", aliases=["seven"]))
            )
        assert (registry.states(), registry.cards(), opener.prepared) == ({}, [], ["bad", "bad"])
        await registry.load(LoadRequest(model="7", aliases=["seven"]))

    run(test, budget=7_000_000)


def test_a_model_that_does_not_fit_is_refused_with_sizes() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="60"))
        error = await fails(
            Unavailable,
            r"50: needs 50\.0 MB, and 40\.0 MB of 100\.0 MB are free \(60 60\.0 MB\)",
            registry.load(LoadRequest(model="50")),
        )
        assert error.details["needed_bytes"] == 50_000_000
        # Just fits.
        await registry.load(LoadRequest(model="40"))
        await fails(Unavailable, "0 bytes of 100.0 MB are free", registry.load(LoadRequest(model="1")))
        await registry.unload("60")
        await registry.load(LoadRequest(model="50"))
        assert len(opener.opened) == 3

    run(test, budget=100_000_000)


def test_memory_of_a_load_under_way_counts() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        opener.gate.clear()
        first = asyncio.create_task(registry.load(LoadRequest(model="60")))
        await asyncio.sleep(0.01)
        await fails(Unavailable, "60 60.0 MB", registry.load(LoadRequest(model="50")))
        opener.gate.set()
        await first

    run(test, budget=100_000_000)


def test_unloading_lets_running_requests_end_and_frees_memory_only_then() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="60"))
        executor = opener.opened[0]
        executor.now = replace(executor.now, running=1)
        unloading = asyncio.create_task(registry.unload("60"))
        await asyncio.sleep(0.03)
        assert not executor.closed
        await fails(UnknownModel, "not loaded", registry.executor("60"))
        await fails(Unavailable, "needs", registry.load(LoadRequest(model="50")))
        executor.now = replace(executor.now, running=0)
        await unloading
        assert executor.closed
        await registry.load(LoadRequest(model="50"))

    run(test, budget=100_000_000)


def test_closing_drains_within_its_limit_ends_loads_and_accepts_no_more() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="1"))
        opener.opened[0].now = ExecutorState(ready=True, detail="", running=1)
        opener.gate.clear()
        load = asyncio.create_task(registry.load(LoadRequest(model="2")))
        await asyncio.sleep(0.01)
        await registry.close(0.05)
        assert opener.opened[0].closed
        with pytest.raises(Unavailable, match="shutting down"):
            await load
        await fails(Unavailable, "shutting down", registry.load(LoadRequest(model="3")))

    run(test)


def test_adapters_share_the_models_name_space() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await fails(
            RequestError, "loaded: none", registry.load_adapter(LoadAdapterRequest(lora_name="a", lora_path="xyz"))
        )
        await registry.load(LoadRequest(model="1"))
        card = await registry.load_adapter(LoadAdapterRequest(lora_name="a", lora_path="xyz"))
        assert (card.id, card.parent, card.root) == ("a", "1", "1")
        assert (await registry.executor("a")).context == 3
        await fails(
            RequestError, "is already in use", registry.load_adapter(LoadAdapterRequest(lora_name="1", lora_path="x"))
        )
        await fails(
            CheckpointError, "no adapter", registry.load_adapter(LoadAdapterRequest(lora_name="b", lora_path="bad"))
        )
        assert [each.id for each in registry.cards()] == ["1", "a"]
        await fails(UnknownModel, "is not loaded", registry.unload_adapter(UnloadAdapterRequest(lora_name="1")))
        await registry.load(LoadRequest(model="2"))
        await fails(
            RequestError,
            "must name the adapter's model",
            registry.load_adapter(LoadAdapterRequest(lora_name="c", lora_path="x")),
        )
        other = UnloadAdapterRequest(lora_name="a", model="2")
        await fails(
            UnknownModel, "2: the adapter 'a' is not loaded for this model, but for 1", registry.unload_adapter(other)
        )
        await registry.unload_adapter(UnloadAdapterRequest(lora_name="a", model="1"))
        await fails(UnknownModel, "not loaded", registry.executor("a"))
        assert opener.opened[0].adapters == {}

    run(test, kind=AdapterExecutor)


def test_a_model_without_adapters_refuses_them() -> None:
    async def test(registry: Registry, _: FakeOpener) -> None:
        await registry.load(LoadRequest(model="1"))
        await fails(
            RequestError,
            "does not support adapters",
            registry.load_adapter(LoadAdapterRequest(lora_name="a", lora_path="x")),
        )

    run(test)


def test_a_models_name_is_its_folders_or_what_a_hub_calls_it(tmp_path: Path) -> None:
    (tmp_path / "Qwen3").mkdir()
    assert default_name(f"{tmp_path}/Qwen3/") == "Qwen3"
    assert default_name("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert default_name("demo") == "demo"


def test_a_model_sleeps_without_memory_and_wakes_with_its_adapters() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="6", name="six", aliases=["vi"]))
        await registry.load_adapter(LoadAdapterRequest(lora_name="fine", lora_path="./fine"))
        before, first = registry.cards(), opener.opened[0]
        first.now = ExecutorState(ready=True, detail="ready", running=1)
        sleeping = asyncio.ensure_future(registry.change(SleepRequest("vi")))
        await asyncio.sleep(0.03)
        # Running answers end first, and no new one begins.
        assert not first.closed
        error = await fails(Unavailable, "fine: the model is asleep; an admin wakes it", registry.executor("fine"))
        assert error.details["code"] == "model_asleep"
        first.now = ExecutorState(ready=True, detail="ready")
        await sleeping
        assert first.closed
        assert registry.cards() == before
        assert registry.states()["six"] == ASLEEP
        # Another model gets the memory, and then the first one cannot wake.
        await registry.load(LoadRequest(model="5"))
        await fails(Unavailable, "six: needs 6.0 MB, and 5.0 MB of 10.0 MB", registry.change(WakeRequest("six")))
        assert registry.states()["six"] == ASLEEP
        await registry.unload("5")
        await registry.change(WakeRequest("six"))
        await registry.change(WakeRequest("six"))
        assert registry.cards() == before
        assert opener.opened[2].adapters == {"fine": "./fine"}
        assert (await registry.executor("fine")).context == len("./fine")
        await registry.change(SleepRequest("six"))
        await registry.change(SleepRequest("six"))
        await registry.unload("six")
        assert registry.cards() == []

    run(test, budget=10_000_000, kind=AdapterExecutor)


@pytest.mark.parametrize("leaves", ["unload", "sleep"])
def test_the_memory_of_a_closed_model_is_freed_without_a_collection_and_on_another_thread(
    leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would delay all answers."""
    freed = list[tuple[int, bool]]()

    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="1"))
        held = weakref.ref(opener.opened.pop())
        # What it would collect needs no collection.
        monkeypatch.setattr(registry_module, "COLLECTIONS", SimpleNamespace(collect=lambda: None))
        monkeypatch.setattr(registry_module, "free_memory", lambda: freed.append((get_ident(), held() is None)))
        gc.disable()
        try:
            await getattr(registry, leaves)("1")
            await until(lambda: bool(freed))
        finally:
            gc.enable()
        ((thread, is_gone),) = freed
        assert (thread == get_ident(), is_gone) == (False, True)
        monkeypatch.undo()

    run(test)


def test_complete_collections_are_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, collected = 100.0, list[float]()
    monkeypatch.setattr(garbage, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(garbage, "gc", SimpleNamespace(collect=lambda: collected.append(now)))
    collections = garbage.SeldomCollections()
    for now in (100.0, 129.0, 130.0, 131.0, 159.0, 160.0):  # noqa: B007
        collections.collect()
    assert collected == [130.0, 160.0]


def test_a_model_that_loads_does_not_sleep() -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        opener.gate.clear()
        loading = asyncio.ensure_future(registry.load(LoadRequest(model="1")))
        await asyncio.sleep(0)
        await fails(RequestError, "still loading", registry.change(SleepRequest("1")))
        opener.gate.set()
        await loading
        await fails(UnknownModel, "'x' is not loaded", registry.change(SleepRequest("x")))

    run(test)


def test_a_model_that_is_refused_is_freed_without_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its bundle. The next model waits for memory, and is refused, again and again."""

    async def test(registry: Registry, opener: FakeOpener) -> None:
        held, prepare = list[weakref.ref[object]](), opener.prepare

        async def noted(model: str, name: str | None) -> Opening:
            opening = await prepare(model, name)
            held.append(weakref.ref(opening.open))
            return opening

        await registry.load(LoadRequest(model="4"))
        await registry.sleep("4")
        await registry.load(LoadRequest(model="8"))
        monkeypatch.setattr(opener, "prepare", noted)
        requests = (LoadRequest(model="5"), WakeRequest("4"), LoadRequest(model="bad"))
        gc.disable()
        try:
            for request in requests:
                # What pytest keeps of an error refers to its frames.
                with suppress(Unavailable, CheckpointError):
                    await registry.change(request)
            await until(lambda: [each() for each in held] == [None] * len(requests))
        finally:
            gc.enable()

    class Elsewhere:
        async def publish(self) -> None:
            pass

        async def unused(self, executor: Executor) -> None:
            pass

    async def with_front_ends(registry: Registry, opener: FakeOpener) -> None:
        registry.elsewhere = Elsewhere()
        await test(registry, opener)

    run(test, budget=10_000_000)
    run(with_front_ends, budget=10_000_000)


def test_freeing_memory_leaves_no_library_behind() -> None:
    """A library object of ctypes has classes of its own, which refer to themselves."""
    garbage.free_memory()
    before = sum(type(each) is ctypes.CDLL for each in gc.get_objects())
    gc.disable()
    try:
        garbage.free_memory()
        assert sum(type(each) is ctypes.CDLL for each in gc.get_objects()) == before
    finally:
        gc.enable()
