"""Models of a registry while requests are on their way to them: they stay open, and refuse later ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fake_opener import AdapterExecutor, FakeOpener, fails, run
from waiting import pass_seconds

from nearfar.compiler.runtime.errors import NearfarError, Unavailable
from nearfar.server_fallback.executors import model_table
from nearfar.server_fallback.executors.executor import Executor, ModelChange, SleepRequest, WakeRequest
from nearfar.server_fallback.executors.registry import UNLOAD_DRAIN_SECONDS, Registry
from nearfar.server_fallback.schema.models import LoadAdapterRequest, LoadRequest, UnloadRequest


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Coroutine[Any, Any, None]]:
    """Lets all tasks of the loop go on until they wait for something that the test does."""
    monkeypatch.setattr(model_table, "POLL_SECONDS", 0.0)

    async def turns() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    return turns


async def use(registry: Registry, name: str) -> None:
    async with registry.using(name):
        pass


LEAVES = [SleepRequest("alias"), UnloadRequest(model="1")]


@pytest.mark.parametrize("change", LEAVES, ids=["sleep", "unload"])
def test_a_request_on_its_way_keeps_its_model_open(change: ModelChange, turns: Any) -> None:
    """Its executor does not count it before it waits for the device, or between two steps."""

    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="6", name="1", aliases=["alias"]))
        async with registry.using("alias") as executor:
            leaving = asyncio.ensure_future(registry.change(change))
            await turns()
            for name in ("1", "alias"):
                error = await fails(NearfarError, "the model is asleep|is not loaded", use(registry, name))
                assert error.details.get("code") == ("model_asleep" if isinstance(change, SleepRequest) else None)
            # Its memory is not free yet.
            await fails(Unavailable, "needs 5.0 MB, and 4.0 MB of 10.0 MB", registry.load(LoadRequest(model="5")))
            assert executor is opener.opened[0]
            assert (opener.opened[0].closed, leaving.done()) == (False, False)
        await leaving
        assert opener.opened[0].closed
        await registry.load(LoadRequest(model="5"))

    run(test, budget=10_000_000)


@pytest.mark.parametrize("change", LEAVES, ids=["sleep", "unload"])
def test_a_request_that_does_not_end_keeps_its_model_open_for_a_time(change: ModelChange, turns: Any) -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="1", aliases=["alias"]))
        async with registry.using("1"):
            leaving = asyncio.ensure_future(registry.change(change))
            await turns()
            assert not opener.opened[0].closed
            pass_seconds(UNLOAD_DRAIN_SECONDS)
            await leaving
            assert opener.opened[0].closed

    run(test)


@pytest.mark.parametrize("change", LEAVES, ids=["sleep", "unload"])
def test_a_server_that_ends_closes_a_model_that_waits_for_requests(change: ModelChange, turns: Any) -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="1", aliases=["alias"]))
        async with registry.using("1"):
            leaving = asyncio.ensure_future(registry.change(change))
            await turns()
            await registry.close(0.0)
            await leaving
            assert opener.opened[0].closed

    run(test)


def test_a_model_whose_adapter_is_being_loaded_stays_open(turns: Any) -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="1"))
        may_load, load = asyncio.Event(), opener.opened[0].load_adapter  # type: ignore[attr-defined]

        async def slowly(name: str, path: str) -> str:
            await may_load.wait()
            loaded: str = await load(name, path)
            return loaded

        opener.opened[0].load_adapter = slowly  # type: ignore[attr-defined]
        loading = asyncio.ensure_future(registry.load_adapter(LoadAdapterRequest(lora_name="a", lora_path="x")))
        await turns()
        sleeping = asyncio.ensure_future(registry.change(SleepRequest("1")))
        await turns()
        assert not opener.opened[0].closed
        may_load.set()
        await asyncio.gather(loading, sleeping)
        await registry.change(WakeRequest("1"))
        assert opener.opened[1].adapters == {"a": "x"}

    run(test, kind=AdapterExecutor)


def test_an_unload_waits_for_a_model_that_falls_asleep_or_wakes_up(turns: Any) -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        unload = UnloadRequest(model="6")
        await registry.load(LoadRequest(model="6"))
        async with registry.using("6"):
            changes = [asyncio.ensure_future(registry.change(each)) for each in (SleepRequest("6"), unload)]
            await turns()
            assert not any(each.done() for each in changes)
        await asyncio.gather(*changes)
        await registry.load(LoadRequest(model="6"))
        await registry.change(SleepRequest("6"))
        opener.gate.clear()
        waking = asyncio.ensure_future(registry.change(WakeRequest("6")))
        await turns()
        unloading = asyncio.ensure_future(registry.change(unload))
        await turns()
        assert not unloading.done()
        opener.gate.set()
        await fails(Unavailable, "6: was unloaded while it woke up", waking)  # type: ignore[arg-type]
        await unloading
        assert [each.closed for each in opener.opened] == [True] * 3
        await registry.load(LoadRequest(model="10"))

    run(test, budget=10_000_000)


def test_a_model_wakes_up_although_its_caller_leaves_and_not_while_the_server_ends(turns: Any) -> None:
    async def test(registry: Registry, opener: FakeOpener) -> None:
        await registry.load(LoadRequest(model="1"))
        await registry.change(SleepRequest("1"))
        opener.gate.clear()
        waking = asyncio.ensure_future(registry.change(WakeRequest("1")))
        await turns()
        waking.cancel()
        opener.gate.set()
        await turns()
        assert registry.states()["1"].ready
        await registry.change(SleepRequest("1"))
        opener.gate.clear()
        waking = asyncio.ensure_future(registry.change(WakeRequest("1")))
        await turns()
        await registry.close(0.0)
        await fails(Unavailable, "is shutting down", waking)  # type: ignore[arg-type]
        assert len(opener.opened) == 2

    run(test)


def test_a_model_stays_open_while_another_process_uses_it(turns: Any) -> None:
    class Others:
        def __init__(self) -> None:
            self.left, self.known = asyncio.Event(), list[list[str]]()

        async def publish(self) -> None:
            self.known.append([f"{entry.name} {entry.executor is not None}" for entry in registries[0].entries()])

        async def unused(self, executor: Executor) -> None:
            assert executor.state().ready
            await self.left.wait()

    registries = list[Registry]()

    async def test(registry: Registry, opener: FakeOpener) -> None:
        registries.append(registry)
        others = registry.elsewhere = Others()
        await registry.change(LoadRequest(model="1"))
        assert others.known[-1] == ["1 True"]
        sleeping = asyncio.ensure_future(registry.change(SleepRequest("1")))
        await turns()
        assert (others.known[-1], opener.opened[0].closed) == (["1 False"], False)
        others.left.set()
        await sleeping
        assert opener.opened[0].closed

    run(test)
