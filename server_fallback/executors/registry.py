"""Registry: the models of one process by name, loaded and unloaded while it serves, within a budget of memory.

A name is a model's, an alias of one, or an adapter's. It is reserved while its model loads, and free again if the load
fails.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from nearfar.compiler.cli.output import megabytes
from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.runtime.errors import RequestError, Unavailable

from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard, UnloadAdapterRequest, UnloadRequest
from .executor import Executor, ExecutorState, ModelChange, Opener, TakesAdapters, UnknownModel
from .model_table import ModelEntry, ModelTable

POLL_SECONDS = 0.02
UNLOAD_DRAIN_SECONDS = 600.0
SHUTTING_DOWN = "the server is shutting down and loads no more models; use another server"


class Registry:
    """Implements `Models`. ``memory_bytes`` is the limit for all models together, None for no limit. ``closed``: it
    loads no more models. ``publish`` is awaited with each change of the names and models.
    """

    def __init__(self, opener: Opener, memory_bytes: int | None = None) -> None:
        self._opener, self._budget = opener, memory_bytes
        self._table = ModelTable()
        # The tasks that load models, by name.
        self._loads: dict[str, asyncio.Task[ModelCard]] = {}
        # Models that are being unloaded: they cannot be found any more, but their memory is not free yet.
        self._leaving: set[ModelEntry] = set()
        self.closed = False
        self.publish: Callable[[], Awaitable[None]] | None = None

    def entries(self) -> Iterator[ModelEntry]:
        """All models, those that load included."""
        return iter(self._table)

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

    async def change(self, change: ModelChange) -> ModelCard | None:
        if self.publish is None:
            return await self._changed(change)
        task = asyncio.ensure_future(self._changed(change))
        # Let the task start: the names of a model that is being unloaded are gone at once.
        await asyncio.sleep(0)
        try:
            if not task.done():
                await self.publish()
            return await task
        finally:
            await self.publish()

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
        return None

    async def load(self, request: LoadRequest) -> ModelCard:
        """All callers that load the same model wait for one load, which continues even if none of them waits any
        more.
        """
        if self.closed:
            raise Unavailable(SHUTTING_DOWN)
        name = request.name or default_name(request.model)
        entry, loading = self._table.get(name), self._loads.get(name)
        if entry is not None and loading is not None and entry.model == request.model:
            return await self._loaded(loading)
        self._table.require_free([name, *request.aliases])
        entry = ModelEntry(name, request.model, int(time.time()), aliases=list(request.aliases))
        self._table.put(entry)
        loading = self._loads[name] = asyncio.create_task(self._load(entry))
        # If no caller waits any more, nothing else retrieves the exception.
        loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self._loaded(loading)

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
        await self.withdraw(name)

    def withdraw(self, name: str) -> Coroutine[Any, Any, None]:
        """Remove the names of a model at once. Returns what closes it when its requests have ended. Raises
        UnknownModel, and RequestError while it loads.
        """
        entry = self._table.find(name)
        if entry.executor is None:
            raise RequestError(f"{name}: the model is still loading; unload it when the load is done", param="model")
        self._withdraw(entry)
        return self._drained(entry, UNLOAD_DRAIN_SECONDS)

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
            entry.adapters[request.lora_name] = await executor.load_adapter(request.lora_name, request.lora_path)
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
        assert isinstance(entry.executor, TakesAdapters)
        await entry.executor.unload_adapter(name)

    async def close(self, drain_seconds: float) -> None:
        self.closed = True
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        entries = list(self._table)
        for entry in entries:
            self._withdraw(entry)
        await asyncio.gather(*(self._drained(entry, drain_seconds) for entry in entries))

    async def _loaded(self, loading: asyncio.Task[ModelCard]) -> ModelCard:
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            if not loading.cancelled():
                raise
            raise Unavailable(SHUTTING_DOWN) from None

    async def _load(self, entry: ModelEntry) -> ModelCard:
        try:
            opening = await self._opener.prepare(entry.model, entry.name)
            entry.memory_bytes = self._take(opening.memory_bytes or 0, entry)
            entry.task = opening.task
            entry.answers_at_once = opening.answers_at_once
            entry.executor, entry.release = await opening.open(), opening.release
            return entry.cards()[0]
        except BaseException:
            self._table.remove(entry)
            raise
        finally:
            del self._loads[entry.name]

    def _take(self, needed: int, entry: ModelEntry) -> int:
        """Raises Unavailable if a model of this size in bytes does not fit beside the others."""
        others = {
            each.name: each.memory_bytes
            for each in (*self._table, *self._leaving)
            if each is not entry and each.memory_bytes
        }
        used = sum(others.values())
        if self._budget is not None and needed + used > self._budget:
            held = ", ".join(f"{name} {megabytes(size)}" for name, size in others.items()) or "nothing else is loaded"
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
        self._leaving.add(entry)

    async def _drained(self, entry: ModelEntry, drain_seconds: float) -> None:
        """Close the executor when its requests have ended or the time is over."""
        executor = entry.executor
        assert executor is not None
        try:
            give_up = time.monotonic() + drain_seconds
            while (state := executor.state()).running + state.waiting > 0 and time.monotonic() < give_up:
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await executor.close()
            entry.release()
            self._leaving.discard(entry)


def default_name(model: str) -> str:
    """The default name of a model: the last part of a folder, or the complete name on a hub."""
    path = os.path.expanduser(model)
    return os.path.basename(os.path.abspath(path)) if os.path.exists(path) else model
