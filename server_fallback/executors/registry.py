"""Registry: the models of one process by name, loaded and unloaded while it serves, within a budget of memory.

A name is a model's, an alias of one, or an adapter's. It is reserved while its model loads, and free again if the load
fails.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from nearfar.compiler.cli.output import megabytes
from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.runtime.errors import RequestError, Unavailable

from ..garbage import SeldomCollections, free_memory
from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard, UnloadAdapterRequest, UnloadRequest
from .executor import (
    Executor,
    ExecutorState,
    ModelChange,
    Opener,
    SleepRequest,
    TakesAdapters,
    UnknownModel,
    WakeRequest,
)
from .model_table import ModelEntry, ModelTable

Result = TypeVar("Result")
UNLOAD_DRAIN_SECONDS = 600.0
COLLECTIONS = SeldomCollections()
SHUTTING_DOWN = "the server is shutting down and loads no more models; use another server"


class Elsewhere(Protocol):
    """The other processes of this server, which use the models of this one."""

    async def publish(self) -> None:
        """Return when they know the names and models of now."""

    async def unused(self, executor: Executor) -> None:
        """Return when none of them uses this executor any more, which has no name."""


class Registry:
    """Implements `Models`. ``memory_bytes`` is the limit for all models together, None for no limit. ``closed``: it
    loads no more models. ``elsewhere`` is there if other processes use the models.
    """

    def __init__(self, opener: Opener, memory_bytes: int | None = None) -> None:
        self._opener, self._budget = opener, memory_bytes
        self._table = ModelTable()
        # The tasks that load models, by name, and those that wake them up.
        self._loads: dict[str, asyncio.Task[ModelCard]] = {}
        self._wakes: set[asyncio.Task[None]] = set()
        # Models that no name finds, but whose memory is taken: those that are being unloaded, or were opened apart.
        self._unnamed: set[ModelEntry] = set()
        self.closed = False
        self.elsewhere: Elsewhere | None = None
        # The tasks that close models without a name when nobody uses them any more.
        self._leaves: set[asyncio.Task[None]] = set()

    def entries(self) -> Iterator[ModelEntry]:
        """All models, those that load included."""
        return iter(self._table)

    def entry(self, name: str) -> ModelEntry:
        """The model of this name. Raises UnknownModel."""
        return self._table.find(name)

    def opened(self) -> Iterator[ModelEntry]:
        """All models that are open, those without a name included."""
        return (entry for entry in (*self._table, *self._unnamed) if entry.executor is not None)

    def cards(self) -> Sequence[ModelCard]:
        return self._table.cards()

    def states(self) -> Mapping[str, ExecutorState]:
        return self._table.states()

    def state(self, name: str) -> ExecutorState:
        """The state of the model with this name. Raises UnknownModel."""
        return self._table.find(name).state()

    def memory_bytes(self, name: str) -> int:
        """The memory counted for a model; 0 if this process does not hold the model."""
        return self._table.find(name).memory_bytes

    def task(self, name: str) -> Task:
        return self._table.find(name).task

    def answers_at_once(self, name: str) -> int | None:
        return self._table.find(name).answers_at_once

    async def executor(self, name: str) -> Executor:
        return self._table.executor(name)

    def using(self, name: str) -> AbstractAsyncContextManager[Executor]:
        return self._table.using(name)

    async def change(self, change: ModelChange) -> ModelCard | None:
        if self.elsewhere is None:
            return await self._changed(change)
        task = asyncio.ensure_future(self._changed(change))
        # Let the task start: the names of a model that is being unloaded are gone at once.
        await asyncio.sleep(0)
        try:
            if not task.done():
                await self.elsewhere.publish()
            return await task
        finally:
            del task  # See `_result`.
            await self.elsewhere.publish()

    async def _changed(self, change: ModelChange) -> ModelCard | None:
        match change:
            case LoadRequest():
                return await self.load(change)
            case LoadAdapterRequest():
                return await self.load_adapter(change)
            case UnloadRequest():
                await self.unload(change.model)
            case UnloadAdapterRequest():
                await self.unload_adapter(change)
            case SleepRequest():
                await self.sleep(change.model)
            case WakeRequest():
                await self.wake(change.model)
        return None

    async def load(self, request: LoadRequest) -> ModelCard:
        """All callers that load the same model wait for one load, which continues even if none of them waits any
        more.
        """
        if self.closed:
            raise Unavailable(SHUTTING_DOWN)
        name = request.name or default_name(request.model)
        entry = self._table.get(name)
        if entry is None or name not in self._loads or entry.model != request.model:
            self._table.require_free([name, *request.aliases])
            entry = ModelEntry(name, request.model, int(time.time()), aliases=list(request.aliases))
            self._table.put(entry)
            loading = self._loads[name] = asyncio.create_task(self._load(entry))
            # If no caller waits any more, nothing else retrieves the exception.
            loading.add_done_callback(lambda task: task.cancelled() or task.exception())
            del loading  # See `_result`.
        return await _result(self._loads[name])

    async def open_apart(self, request: LoadRequest) -> ModelEntry:
        """Open a model that no name finds until `swap`, or `close_apart`. Raises the errors of `load`."""
        if self.closed:
            raise Unavailable(SHUTTING_DOWN)
        name = request.name or default_name(request.model)
        entry = ModelEntry(name, request.model, int(time.time()))
        self._unnamed.add(entry)
        try:
            entry.executor = await self._open(entry)
        except BaseException:
            self._unnamed.discard(entry)
            raise
        if self.closed:
            await self.close_apart(entry)
            raise Unavailable(SHUTTING_DOWN)
        return entry

    async def close_apart(self, entry: ModelEntry) -> None:
        executor, entry.executor = entry.executor, None
        try:
            # None if it sleeps, or has been closed.
            if executor is not None:
                await _close(entry, executor)
        finally:
            self._unnamed.discard(entry)

    async def swap(
        self, opened: Sequence[ModelEntry], gone: Collection[str], aliases: Mapping[str, Sequence[str]]
    ) -> None:
        """From one moment on, models that were opened apart answer under their names, also instead of loaded models of
        these names; the models ``gone`` have none; and ``aliases`` are all aliases of these models. The models that
        lose their names end their running answers. Raises RequestError for a name in use, and then changes nothing.
        """
        if self.closed:
            raise Unavailable(SHUTTING_DOWN)
        new = {entry.name: entry for entry in opened}
        old = [entry for entry in self._table if entry.name in new or entry.name in gone]
        if loading := [entry.name for entry in old if entry.executor is None and entry.asleep is None]:
            raise Unavailable(f"{loading[0]}: the model is still loading; try again when it is done")
        after = ModelTable()
        for entry in self._table:
            if entry not in old:
                kept = [] if entry.name in aliases else entry.aliases
                after.require_free([entry.name, *kept, *entry.adapters])
                after.put(replace(entry, aliases=kept))
        for name in new:
            after.require_free([name])
            after.put(new[name])
        after.require_free([alias for names in aliases.values() for alias in names])
        for entry in old:
            self._withdraw(entry)
        for entry in opened:
            self._unnamed.discard(entry)
            self._table.put(entry)
        for name, names in aliases.items():
            found = self._table.get(name)
            if found is not None:
                found.aliases = list(names)
        if self.elsewhere is not None:
            await self.elsewhere.publish()
        for entry in old:
            self._leave(entry)

    async def prepare(self, model: str) -> None:
        """Compile a model if necessary, without loading it. Raises what loading raises."""
        opening = await self._opener.prepare(model, None)
        opening.release()

    async def unload(self, name: str) -> None:
        entry = self._table.find(name)
        if name in entry.aliases:
            entry.aliases.remove(name)
            return
        if name in entry.adapters:
            await self.unload_adapter(UnloadAdapterRequest(lora_name=name))
            return
        await closed(self.withdraw(entry))

    def withdraw(self, entry: ModelEntry) -> asyncio.Task[None]:
        """Remove the names of a model at once. The task closes it when nobody uses it any more (see `closed`). Raises
        RequestError while it loads.
        """
        if entry.executor is None and entry.asleep is None:
            message = f"{entry.name}: the model is still loading; unload it when the load is done"
            raise RequestError(message, param="model")
        self._withdraw(entry)
        return self._leave(entry)

    @property
    def leaving(self) -> bool:
        """Whether models that have no names any more still hold memory."""
        return bool(self._leaves)

    async def sleep(self, name: str) -> None:
        """Free the memory of a model once nobody uses it any more. Its names stay, and refuse requests at once."""
        entry = self._table.find(name)
        async with entry.moving:
            if entry.executor is None:
                if entry.asleep is None:
                    raise RequestError(f"{name}: the model is still loading", param="model")
                return
            # What was open leaves like a model that is unloaded.
            opened = replace(entry, aliases=[], adapters={}, moving=asyncio.Lock())
            entry.asleep, entry.executor, entry.memory_bytes = entry.cards()[0], None, 0
            self._unnamed.add(opened)
            try:
                if self.elsewhere is not None:
                    await self.elsewhere.publish()
            finally:
                leaving = self._leave(opened)
            await closed(leaving)

    async def wake(self, name: str) -> None:
        """Open a model again that sleeps, with its adapters. Raises the errors of `load`, and then it sleeps on."""
        if self.closed:
            raise Unavailable(SHUTTING_DOWN)
        waking = asyncio.ensure_future(self._wake(self._table.find(name)))
        self._wakes.add(waking)
        waking.add_done_callback(self._wakes.discard)
        try:
            await _result(waking)
        finally:
            del waking  # See `_result`.

    async def _wake(self, entry: ModelEntry) -> None:
        async with entry.moving:
            if entry.asleep is None:
                return
            executor: Executor | None = None
            try:
                executor = await self._open(entry)
                for adapter, path in entry.adapter_paths.items():
                    assert isinstance(executor, TakesAdapters)
                    entry.adapters[adapter] = await executor.load_adapter(adapter, path)
                if self._table.get(entry.name) is not entry:
                    raise Unavailable(f"{entry.name}: was unloaded while it woke up")
            except BaseException:
                if executor is not None:
                    await _close(entry, executor)
                entry.memory_bytes = 0
                raise
            entry.executor, entry.asleep = executor, None

    async def load_adapter(self, request: LoadAdapterRequest) -> ModelCard:
        if request.model is None and len(self._table) != 1:
            names = ", ".join(entry.name for entry in self._table) or "none"
            raise RequestError(f"'model' must name the adapter's model; loaded: {names}", param="model")
        entry = self._table.find(request.model) if request.model is not None else next(iter(self._table))
        executor = entry.executor
        if not isinstance(executor, TakesAdapters):
            raise RequestError(
                f"{entry.name}: does not support adapters; use a bundle that was compiled with --lora-rank",
                param="model",
            )
        self._table.require_free([request.lora_name])
        # Add the name now, so that no other request can use it meanwhile.
        entry.adapters[request.lora_name] = ""
        try:
            with entry.users.one_more():
                entry.adapters[request.lora_name] = await executor.load_adapter(request.lora_name, request.lora_path)
            entry.adapter_paths[request.lora_name] = request.lora_path
        except BaseException:
            del entry.adapters[request.lora_name]
            raise
        return next(card for card in entry.cards() if card.id == request.lora_name)

    async def unload_adapter(self, request: UnloadAdapterRequest) -> None:
        name = request.lora_name
        entry = self._table.find(name)
        if name not in entry.adapters:
            raise UnknownModel(f"the adapter {name!r} is not loaded", param="lora_name")
        if request.model is not None and self._table.find(request.model) is not entry:
            raise UnknownModel(
                f"{request.model}: the adapter {name!r} is not loaded for this model, but for {entry.name}",
                param="model",
            )
        del entry.adapters[name]
        entry.adapter_paths.pop(name, None)
        if entry.executor is not None:
            assert isinstance(entry.executor, TakesAdapters)
            with entry.users.one_more():
                await entry.executor.unload_adapter(name)

    async def close(self, drain_seconds: float) -> None:
        self.closed = True
        tasks: list[asyncio.Task[Any]] = [*self._loads.values(), *self._wakes, *self._leaves]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that was cancelled before it began has closed nothing.
        unnamed = [entry for entry in self._unnamed if entry.executor is not None]
        await asyncio.gather(*(self.close_apart(entry) for entry in unnamed))
        entries = list(self._table)
        for entry in entries:
            self._withdraw(entry)
        await asyncio.gather(*(self._drained(entry, drain_seconds) for entry in entries))

    async def _open(self, entry: ModelEntry) -> Executor:
        opening = await self._opener.prepare(entry.model, entry.name)
        try:
            entry.memory_bytes = self._take(opening.memory_bytes or 0, entry)
            entry.task = opening.task
            entry.answers_at_once = opening.answers_at_once
            executor = await opening.open()
        except BaseException:
            opening.release()
            raise
        entry.release = opening.release
        return executor

    async def _load(self, entry: ModelEntry) -> ModelCard:
        try:
            entry.executor = await self._open(entry)
            return entry.cards()[0]
        except BaseException:
            self._table.remove(entry)
            raise
        finally:
            del self._loads[entry.name]

    def _take(self, needed: int, entry: ModelEntry) -> int:
        """Raises Unavailable if a model of this size in bytes does not fit beside the others."""
        others = [
            (each.name, each.memory_bytes)
            for each in (*self._table, *self._unnamed)
            if each is not entry and each.memory_bytes
        ]
        used = sum(size for _, size in others)
        if self._budget is not None and needed + used > self._budget:
            held = ", ".join(f"{name} {megabytes(size)}" for name, size in others) or "nothing else is loaded"
            raise Unavailable(
                f"{entry.name}: needs {megabytes(needed)}, and {megabytes(max(0, self._budget - used))} of "
                f"{megabytes(self._budget)} "
                f"are free ({held}); {'unload a model, or ' if others else ''}serve with less --kv-memory or more "
                "--memory",
                needed_bytes=needed, budget_bytes=self._budget,
            )  # fmt: skip
        return needed

    def _withdraw(self, entry: ModelEntry) -> None:
        self._table.remove(entry)
        self._unnamed.add(entry)

    def _leave(self, entry: ModelEntry) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._drained(entry, UNLOAD_DRAIN_SECONDS))
        self._leaves.add(task)
        task.add_done_callback(self._leaves.discard)
        return task

    async def _drained(self, entry: ModelEntry, drain_seconds: float) -> None:
        """Close the executor when nobody uses it, here or elsewhere, or the time is over. One that sleeps has none."""
        try:
            if entry.executor is None:
                async with entry.moving:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds):
                    if self.elsewhere is not None:
                        await self.elsewhere.unused(entry.executor)
                    await entry.unused()
        finally:
            await self.close_apart(entry)


async def closed(leaving: asyncio.Task[None]) -> None:
    """Wait for the task of `Registry.withdraw`, which goes on if its caller leaves, and ends with the registry."""
    await asyncio.wait([leaving])
    if not leaving.cancelled():
        leaving.result()


async def _result(opening: asyncio.Task[Result]) -> Result:
    """The result of a task that goes on if its caller leaves. Raises Unavailable if the registry is closed before."""
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        if not opening.cancelled():
            raise
        raise Unavailable(SHUTTING_DOWN) from None
    finally:
        # Its error refers to this frame. Each would keep the other, with the model that was refused, until the garbage
        # collector runs.
        del opening


async def _close(entry: ModelEntry, executor: Executor) -> None:
    try:
        await executor.close()
    finally:
        entry.release()
        # This coroutine and its caller hold the executor until they have ended.
        asyncio.get_running_loop().call_soon(_free_memory)


def _free_memory() -> None:
    """Return it on another thread, so that no answer waits. A collection stops all of them, so it is seldom."""
    COLLECTIONS.collect()
    # Without effect at the end of the process, when the loop has no threads any more.
    with suppress(RuntimeError):
        asyncio.get_running_loop().run_in_executor(None, free_memory)


def default_name(model: str) -> str:
    """The default name of a model: the last part of a folder, or the complete name on a hub."""
    path = os.path.expanduser(model)
    return os.path.basename(os.path.abspath(path)) if os.path.exists(path) else model
