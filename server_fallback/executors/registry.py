"""Registry: the models of one process by name, loaded and unloaded while it serves, within a budget of memory.

A name is a model's, an alias of one, or an adapter's. It is reserved while its model loads, and free again if the load
fails.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nearfar.compiler.cli.output import megabytes
from nearfar.compiler.errors import RequestError, Unavailable

from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard
from .executor import Executor, ExecutorState, Opener, TakesAdapters, UnknownModel

POLL_SECONDS = 0.02
UNLOAD_DRAIN_SECONDS = 600.0
SHUTTING_DOWN = "the server is shutting down and loads no more models; use another server"
LOADING = ExecutorState(ready=False, detail="loading")


@dataclass(eq=False)
class Entry:
    """A model. ``executor`` is None while the task ``loading`` loads it. ``adapters`` are the names of its adapters."""

    name: str
    model: str
    created: int
    loading: asyncio.Task[ModelCard] | None = None
    executor: Executor | None = None
    memory_bytes: int = 0
    embeds: bool = False
    answers_at_once: int | None = None
    aliases: list[str] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)

    def state(self) -> ExecutorState:
        return LOADING if self.executor is None else self.executor.state()

    def names(self) -> list[str]:
        return [self.name, *self.aliases, *self.adapters]


class Registry:
    """Implements `Models`. ``memory_bytes`` is the limit for all models together, None for no limit. ``closed``: it
    loads no more models.
    """

    def __init__(self, opener: Opener, memory_bytes: int | None = None) -> None:
        self._opener, self._budget = opener, memory_bytes
        self._entries: dict[str, Entry] = {}
        # Models that are being unloaded: they cannot be found any more, but their memory is not free yet.
        self._leaving: set[Entry] = set()
        self.closed = False

    def cards(self) -> Sequence[ModelCard]:
        return [
            card for entry in self._entries.values() if entry.executor is not None for card in self._cards_of(entry)
        ]

    def states(self) -> Mapping[str, ExecutorState]:
        return {name: entry.state() for name, entry in self._entries.items()}

    def memory_bytes(self, name: str) -> int:
        """The memory counted for a model; 0 if this process does not hold the model."""
        return self._find(name).memory_bytes

    def embeds(self, name: str) -> bool:
        return self._find(name).embeds

    def answers_at_once(self, name: str) -> int | None:
        return self._find(name).answers_at_once

    async def executor(self, name: str) -> Executor:
        entry = self._find(name)
        if entry.executor is None:
            raise Unavailable(f"{name}: the model is still loading; try again soon", retry_after_seconds=5.0)
        if name in entry.adapters:
            assert isinstance(entry.executor, TakesAdapters)
            return entry.executor.with_adapter(name)
        return entry.executor

    async def load(self, request: LoadRequest) -> ModelCard:
        """All callers that load the same model wait for one load, which continues even if none of them waits any
        more.
        """
        if self.closed:
            raise Unavailable(SHUTTING_DOWN)
        name = request.name or default_name(request.model)
        entry = self._entries.get(name)
        if entry is not None and entry.loading is not None and entry.model == request.model:
            return await self._loaded(entry.loading)
        self._reserve([name, *request.aliases])
        entry = self._entries[name] = Entry(name, request.model, int(time.time()), aliases=list(request.aliases))
        entry.loading = asyncio.create_task(self._load(entry))
        # If no caller waits any more, nothing else retrieves the exception.
        entry.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self._loaded(entry.loading)

    async def unload(self, name: str) -> None:
        entry = self._find(name)
        if name in entry.aliases:
            entry.aliases.remove(name)
            return
        if name in entry.adapters:
            await self.unload_adapter(name)
            return
        if entry.executor is None:
            raise RequestError(f"{name}: the model is still loading; unload it when the load is done", param="model")
        await self._remove(entry, UNLOAD_DRAIN_SECONDS)

    async def load_adapter(self, request: LoadAdapterRequest) -> ModelCard:
        if request.model is None and len(self._entries) != 1:
            names = ", ".join(self._entries) or "none"
            raise RequestError(f"'model' must name the adapter's model; loaded: {names}", param="model")
        entry = self._find(request.model or next(iter(self._entries)))
        executor = entry.executor
        if not isinstance(executor, TakesAdapters):
            raise RequestError(
                f"{entry.name}: takes no adapters; use a bundle that was compiled with --lora-rank",
                param="model",
            )
        self._reserve([request.lora_name])
        # Add the name now, so that no other request can use it meanwhile.
        entry.adapters.append(request.lora_name)
        try:
            await executor.load_adapter(request.lora_name, request.lora_path)
        except BaseException:
            entry.adapters.remove(request.lora_name)
            raise
        return next(card for card in self._cards_of(entry) if card.id == request.lora_name)

    async def unload_adapter(self, name: str) -> None:
        entry = self._find(name)
        if name not in entry.adapters:
            raise UnknownModel(f"the adapter {name!r} is not loaded", param="model")
        entry.adapters.remove(name)
        assert isinstance(entry.executor, TakesAdapters)
        await entry.executor.unload_adapter(name)

    async def close(self, drain_seconds: float) -> None:
        self.closed = True
        loads = [entry.loading for entry in self._entries.values() if entry.loading is not None]
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await asyncio.gather(*(self._remove(entry, drain_seconds) for entry in list(self._entries.values())))

    async def _loaded(self, loading: asyncio.Task[ModelCard]) -> ModelCard:
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            if not loading.cancelled():
                raise
            raise Unavailable(SHUTTING_DOWN) from None

    async def _load(self, entry: Entry) -> ModelCard:
        try:
            opening = await self._opener.prepare(entry.model, entry.name)
            entry.memory_bytes = self._take(opening.memory_bytes or 0, entry)
            entry.embeds = opening.embeds
            entry.answers_at_once = opening.answers_at_once
            entry.executor = await opening.open()
            entry.loading = None
            return self._cards_of(entry)[0]
        except BaseException:
            del self._entries[entry.name]
            raise

    def _take(self, wanted: int, entry: Entry) -> int:
        """Raises Unavailable if a model of this size in bytes does not fit beside the others."""
        others = {
            each.name: each.memory_bytes
            for each in (*self._entries.values(), *self._leaving)
            if each is not entry and each.memory_bytes
        }
        used = sum(others.values())
        if self._budget is not None and wanted + used > self._budget:
            held = ", ".join(f"{name} {megabytes(size)}" for name, size in others.items()) or "nothing else is loaded"
            raise Unavailable(
                f"{entry.name}: needs {megabytes(wanted)}, and {megabytes(max(0, self._budget - used))} of "
                f"{megabytes(self._budget)} "
                f"are free ({held}); {'unload a model, or ' if others else ''}serve with less --kv-memory or more "
                "--memory",
                needed_bytes=wanted, budget_bytes=self._budget,
            )  # fmt: skip
        return wanted

    async def _remove(self, entry: Entry, drain_seconds: float) -> None:
        """Remove the names at once, and close the executor when its requests have ended or the time is over."""
        executor = entry.executor
        assert executor is not None
        del self._entries[entry.name]
        self._leaving.add(entry)
        try:
            give_up = time.monotonic() + drain_seconds
            while (state := executor.state()).running + state.waiting > 0 and time.monotonic() < give_up:
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await executor.close()
            self._leaving.discard(entry)

    def _find(self, name: str) -> Entry:
        for entry in self._entries.values():
            if name in entry.names():
                return entry
        names = ", ".join(card.id for card in self.cards()) or "none"
        raise UnknownModel(f"the model {name[:100]!r} is not loaded; loaded: {names}", param="model")

    def _reserve(self, names: Sequence[str]) -> None:
        taken = {name for entry in self._entries.values() for name in entry.names()}
        for index, name in enumerate(names):
            if name in taken or name in names[:index]:
                raise RequestError(
                    f"the name {name!r} is already in use; unload it first, or choose another name", param="name"
                )

    def _cards_of(self, entry: Entry) -> list[ModelCard]:
        assert entry.executor is not None
        # An upstream may not report its context.
        longest = entry.executor.context or None
        own, *aliases = (
            ModelCard(id=name, created=entry.created, root=entry.name, max_model_len=longest)
            for name in (entry.name, *entry.aliases)
        )
        return [own, *aliases, *(own.model_copy(update={"id": name, "parent": entry.name}) for name in entry.adapters)]


def default_name(model: str) -> str:
    """The default name of a model: the last part of a folder, or the complete name on a hub."""
    path = os.path.expanduser(model)
    return os.path.basename(os.path.abspath(path)) if os.path.exists(path) else model
