"""StoredModels: the models of the store. One is loaded when a request needs it, and unloaded when no request has used
it for a time, or when another one needs its memory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.nearest import did_you_mean, with_advice
from nearfar.compiler.runtime.errors import Unavailable
from nearfar.compiler.store.model import StoredModel
from nearfar.compiler.store.names import StoreName, UnknownModel
from nearfar.compiler.store.store import Store

from ..log_event import log_event
from ..schema.models import LoadRequest, ModelCard, UnloadRequest
from .executor import Executor, ExecutorState, ModelChange, SleepRequest, WakeRequest
from .local import LocalExecutor
from .model_table import ModelEntry
from .registry import SHUTTING_DOWN, Registry, closed

KEEP_SECONDS = 300.0
# How long a load waits until running answers free the memory that its model needs.
ROOM_SECONDS = 120.0
# Meanwhile, requests for models that are loaded go first for this time. Then they wait behind it, because models that
# are always in use would never leave.
FIRST_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class LoadedModel:
    """A model that was loaded on use, and its ``entry`` in the registry. ``expires`` is the time (`time.time`) at which
    it will be unloaded, None while it is used or sleeps, or if it stays.
    """

    stored: StoredModel
    entry: ModelEntry
    keep_seconds: float
    last_used: float = 0.0
    expires: float | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def users(self) -> int:
        return self.entry.users.count

    @property
    def is_open(self) -> bool:
        """False while it sleeps."""
        return self.entry.executor is not None


@dataclass(eq=False, slots=True)
class EngineLoad:
    """The one load of an engine for all requests that need it; ``waiting`` of them will use the model. Once it waits
    for memory, ``goes_first`` is the time of the event loop from which requests for loaded models wait behind it.
    """

    stored: StoredModel
    waiting: int = 0
    goes_first: float = math.inf
    task: asyncio.Task[LoadedModel] = field(init=False)


@dataclass(slots=True)
class StoredModels:
    """Implements `LoadsOnUse`. Models that were loaded by `change` stay, like those of ``registry``."""

    registry: Registry
    store: Store
    keep_seconds: float = KEEP_SECONDS
    # Both by the key of their engines.
    _loaded: dict[str, LoadedModel] = field(default_factory=dict)
    _loads: dict[str, EngineLoad] = field(default_factory=dict)
    # Loads come one at a time, so that each sees what memory the others leave, in the order of their first requests.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    def cards(self) -> Sequence[ModelCard]:
        loaded = list(self.registry.cards())
        names = {card.id.lower() for card in loaded}
        stored = [each for each in self.store.models() if each.name.lower() not in names]
        return [*loaded, *(ModelCard(id=each.name, created=int(each.modified.timestamp())) for each in stored)]

    def states(self) -> Mapping[str, ExecutorState]:
        return self.registry.states()

    def answers_at_once(self, name: str) -> int | None:
        return self.registry.answers_at_once(self._loaded_name(name) or name)

    def memory_bytes(self, name: str) -> int:
        return self.registry.memory_bytes(self._loaded_name(name) or name)

    def task(self, name: str) -> Task:
        return self.registry.task(self._loaded_name(name) or name)

    def loaded(self) -> Sequence[LoadedModel]:
        """Those that were loaded on use, the last used first."""
        return sorted(self._loaded.values(), key=lambda each: -each.last_used)

    async def executor(self, name: str) -> Executor:
        """The executor of a model that is loaded. Raises UnknownModel for others."""
        return await self.registry.executor(self._loaded_name(name) or name)

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Executor]:
        if self._is_given(name):
            async with self.registry.using(name) as given:
                yield given
            return
        stored = await asyncio.to_thread(self._find, name)
        loaded = await self._used(stored)
        try:
            yield self._executor(loaded, stored)
        finally:
            loaded.entry.users.add(-1)

    def keep(self, name: str, seconds: float) -> None:
        loaded = self._loaded_model(name)
        if loaded is not None:
            loaded.keep_seconds = seconds
            self._rest(loaded)

    async def change(self, change: ModelChange) -> ModelCard | None:
        loaded = None
        if isinstance(change, UnloadRequest | SleepRequest | WakeRequest):
            loaded = self._loaded_model(change.model)
        if loaded is not None and isinstance(change, UnloadRequest):
            await closed(self._unload(loaded, "requested"))
            return None
        if loaded is not None and isinstance(change, SleepRequest | WakeRequest):
            change = replace(change, model=loaded.name)
        try:
            return await self.registry.change(change)
        finally:
            if loaded is not None:
                self._rest(loaded)
            # A load may wait for the memory of what was unloaded, or sleeps.
            self._freed.set()

    async def forget(self, name: str) -> None:
        """Unload a model whose record is removed. Others that share its engine load it again."""
        loaded = self._named(name)
        if loaded is not None:
            await closed(self._unload(loaded, "removed"))

    async def close(self, drain_seconds: float) -> None:
        for loaded in self._loaded.values():
            self._stay(loaded)
        # The registry closes them. A request that ends later unloads nothing.
        self._loaded.clear()
        # A load that waits for memory sees that the registry is closed, and fails.
        self._freed.set()
        await self.registry.close(drain_seconds)

    def _is_given(self, name: str) -> bool:
        """Whether a model or an adapter of this name was loaded by `change`."""
        used = [each.stored for each in self._loaded.values()] + [each.stored for each in self._loads.values()]
        if any(each.name == name for each in used):
            return False
        with suppress(UnknownModel):
            self.registry.entry(name)
            return True
        return False

    def _find(self, name: str) -> StoredModel:
        stored = self.store.find(name)
        if stored is None:
            names = [each.name for each in self.store.models()]
            problem = f"the model {name[:100]!r} is not in the store"
            advice = f"available: {', '.join(names) or 'none'}; nearfar pull downloads others"
            raise UnknownModel(with_advice(problem, did_you_mean(name, names), advice), param="model")
        return stored

    def _named(self, name: str) -> LoadedModel | None:
        """The model that was loaded under this name."""
        parsed = StoreName.parse_or_none(name)
        file = None if parsed is None else parsed.file
        return next((each for each in self._loaded.values() if each.stored.store_name.file == file), None)

    def _loaded_model(self, name: str) -> LoadedModel | None:
        """As `_named`, or the model whose engine the one of this name uses."""
        named = self._named(name)
        stored = self.store.find(name) if named is None and self._loaded else None
        return named if stored is None else self._loaded.get(stored.engine_key)

    def _loaded_name(self, name: str) -> str | None:
        loaded = self._loaded_model(name)
        return None if loaded is None else loaded.name

    def _executor(self, loaded: LoadedModel, stored: StoredModel) -> Executor:
        # By its entry: the name may be another model's, if this one was unloaded while the request waited for it.
        executor = loaded.entry.answering(stored.name)
        if stored == loaded.stored or not isinstance(executor, LocalExecutor):
            return executor
        return executor.inheriting(stored.name, stored)

    async def _used(self, stored: StoredModel) -> LoadedModel:
        """The loaded model with this engine, which now has one user more."""
        while (loaded := self._loaded.get(stored.engine_key)) is not None:
            now = asyncio.get_running_loop().time()
            first = next((load for load in self._loads.values() if load.goes_first <= now), None)
            if first is None:
                loaded.entry.users.add(1)
                return loaded
            await asyncio.wait([first.task])
        load = self._loads.get(stored.engine_key) or self._begin(stored)
        load.waiting += 1
        try:
            # It goes on if this request ends meanwhile: others may wait for it, and the model must be unloaded.
            return await asyncio.shield(load.task)
        except asyncio.CancelledError:
            if not load.task.done():
                load.waiting -= 1
            elif not load.task.cancelled() and load.task.exception() is None:
                # It arrived for a request that was cancelled in this moment.
                load.task.result().entry.users.add(-1)
            raise

    def _begin(self, stored: StoredModel) -> EngineLoad:
        load = self._loads[stored.engine_key] = EngineLoad(stored)
        load.task = asyncio.ensure_future(self._arrive(load))
        # If no request waits any more, nothing else retrieves the exception.
        load.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return load

    async def _arrive(self, load: EngineLoad) -> LoadedModel:
        """The model when it is loaded, with all requests that wait for it as its users."""
        stored = load.stored
        try:
            async with self._turn:
                former = self._named(stored.name)
                if former is not None:
                    # Its answers may take long. If its memory is needed, `_make_room` waits for them.
                    self._unload(former, "changed")
                await self._load_with_room(load)
            if self.registry.closed:
                raise Unavailable(SHUTTING_DOWN)
            entry = self.registry.entry(stored.name)
            loaded = self._loaded[stored.engine_key] = LoadedModel(stored, entry, self.keep_seconds)
        finally:
            del self._loads[stored.engine_key]
        entry.users.changed = partial(self._used_or_left, loaded)
        entry.users.add(load.waiting)
        return loaded

    def _used_or_left(self, loaded: LoadedModel) -> None:
        loaded.last_used = time.monotonic()
        self._rest(loaded)

    async def _load_with_room(self, load: EngineLoad) -> None:
        stored, loop = load.stored, asyncio.get_running_loop()
        began = loop.time()
        while True:
            self._freed.clear()
            started = time.monotonic()
            try:
                await self.registry.change(LoadRequest(model=stored.name, name=stored.name))
            except Unavailable as error:
                if "needed_bytes" not in error.details or not await self._make_room(load, began):
                    raise
            else:
                seconds = round(time.monotonic() - started, 4)
                log_event("model_loaded", name=stored.name, by="use", seconds=seconds)
                return

    async def _make_room(self, load: EngineLoad, began: float) -> bool:
        """Unload the idle model whose last use is oldest, or wait for a model to become idle or to leave. False if none
        does in time.
        """
        if self._freed.is_set():
            # A model has left, or become idle, while this one was refused.
            return True
        held = [each for each in self._loaded.values() if each.is_open]
        idle = [each for each in held if each.users == 0]
        if idle:
            await closed(self._unload(min(idle, key=lambda each: each.last_used), "memory"))
            return True
        if not held and not self.registry.leaving:
            return False
        load.goes_first = began + FIRST_SECONDS
        try:
            async with asyncio.timeout_at(began + ROOM_SECONDS):
                await self._freed.wait()
        except TimeoutError:
            return False
        return True

    def _rest(self, loaded: LoadedModel) -> None:
        """Start the time after which a model without users is unloaded. One that sleeps stays until it is woken, or
        unloaded.
        """
        self._stay(loaded)
        if loaded.users > 0 or not loaded.is_open or not self._has(loaded):
            return
        self._freed.set()
        if math.isinf(loaded.keep_seconds):
            return
        if loaded.keep_seconds == 0:
            self._expire(loaded)
            return
        loaded.expires = time.time() + loaded.keep_seconds
        loaded.timer = asyncio.get_running_loop().call_later(loaded.keep_seconds, self._expire, loaded)

    @staticmethod
    def _stay(loaded: LoadedModel) -> None:
        """Its time is over only when `_rest` starts it again."""
        if loaded.timer is not None:
            loaded.timer.cancel()
        loaded.expires = loaded.timer = None

    def _expire(self, loaded: LoadedModel) -> None:
        if loaded.users == 0 and loaded.is_open and self._has(loaded):
            self._unload(loaded, "keep_alive")

    def _has(self, loaded: LoadedModel) -> bool:
        """Whether it was neither unloaded nor replaced."""
        return self._loaded.get(loaded.stored.engine_key) is loaded

    def _unload(self, loaded: LoadedModel, reason: str) -> asyncio.Task[None]:
        """No request finds it from now on. The task ends when it is closed, after the requests that use it."""
        del self._loaded[loaded.stored.engine_key]
        self._stay(loaded)

        def unloaded(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                log_event("model_unloaded", name=loaded.name, by=reason)
            # It refers to the model, and this one to it.
            loaded.entry.users.changed = lambda: None
            self._freed.set()

        task = self.registry.withdraw(loaded.entry)
        task.add_done_callback(unloaded)
        return task
