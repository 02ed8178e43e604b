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

from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.nearest import did_you_mean
from nearfar.compiler.runtime.errors import Unavailable
from nearfar.compiler.store.model import StoredModel
from nearfar.compiler.store.names import StoreName, UnknownModel
from nearfar.compiler.store.store import Store

from ..log_event import log_event
from ..schema.models import LoadRequest, ModelCard, UnloadRequest
from .executor import Executor, ExecutorState, ModelChange, SleepRequest, WakeRequest
from .local import LocalExecutor
from .registry import Registry

KEEP_SECONDS = 300.0
# How long a request waits until running answers free the memory that its model needs.
ROOM_SECONDS = 120.0
# Meanwhile, requests for models that are loaded go first for this time. Then they wait behind it, because models that
# are always in use would never leave.
FIRST_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class LoadedModel:
    """A model that was loaded on use. ``users`` requests use it now; ``expires`` is the time (`time.time`) at which it
    will be unloaded, None while it is used, or if it stays.
    """

    stored: StoredModel
    keep_seconds: float
    users: int = 0
    last_used: float = 0.0
    expires: float | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        return self.stored.name


@dataclass(slots=True)
class StoredModels:
    """Implements `LoadsOnUse`. Models that were loaded by `change` stay, like those of ``registry``."""

    registry: Registry
    store: Store
    keep_seconds: float = KEEP_SECONDS
    # By the key of their engines.
    _loaded: dict[str, LoadedModel] = field(default_factory=dict)
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    # The name of the one that is being loaded on use, and until when requests for others go first.
    _arriving: str | None = None
    _first_until: float = math.inf
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
        given: Executor | None = None
        # A request for a model that is being loaded for another one waits for it.
        if name != self._arriving and self._loaded_name(name) is None:
            with suppress(UnknownModel):
                given = await self.registry.executor(name)
        if given is not None:
            yield given
            return
        stored = await asyncio.to_thread(self._find, name)
        loading = asyncio.ensure_future(self._load(stored))
        try:
            # A load goes on if its request ends meanwhile: others may wait for it, and the model must be unloaded.
            loaded = await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(self._left)
            raise
        try:
            yield await self._executor(loaded, stored)
        finally:
            self._leave(loaded)

    def keep(self, name: str, seconds: float) -> None:
        loaded = self._loaded_model(name)
        if loaded is not None:
            loaded.keep_seconds = seconds
            self._rest(loaded)

    async def change(self, change: ModelChange) -> ModelCard | None:
        loaded = self._loaded_model(change.model) if isinstance(change, UnloadRequest) else None
        if loaded is not None:
            await asyncio.shield(self._unload(loaded, "requested"))
            return None
        if isinstance(change, SleepRequest | WakeRequest):
            change = replace(change, model=self._loaded_name(change.model) or change.model)
        return await self.registry.change(change)

    async def forget(self, name: str) -> None:
        """Unload a model whose record is removed. Others that share its engine load it again."""
        loaded = self._named(name)
        if loaded is not None:
            await asyncio.shield(self._unload(loaded, "removed"))

    async def close(self, drain_seconds: float) -> None:
        for loaded in self._loaded.values():
            if loaded.timer is not None:
                loaded.timer.cancel()
        # The registry closes them. A request that ends later unloads nothing.
        self._loaded.clear()
        await self.registry.close(drain_seconds)

    def _find(self, name: str) -> StoredModel:
        stored = self.store.find(name)
        if stored is None:
            names = [each.name for each in self.store.models()]
            raise UnknownModel(
                f"the model {name[:100]!r} is not in the store{did_you_mean(name, names)}; available: "
                f"{', '.join(names) or 'none'}; nearfar pull downloads others",
                param="model",
            )
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

    async def _executor(self, loaded: LoadedModel, stored: StoredModel) -> Executor:
        executor = await self.registry.executor(loaded.name)
        if stored == loaded.stored or not isinstance(executor, LocalExecutor):
            return executor
        return executor.inheriting(stored.name, stored)

    async def _load(self, stored: StoredModel) -> LoadedModel:
        """The loaded model with this engine, which now has one user more."""
        loaded = self._loaded.get(stored.engine_key)
        if loaded is not None and time.monotonic() < self._first_until:
            return self._use(loaded)
        # One model at a time, so that each sees what memory the others leave.
        async with self._loading:
            loaded = self._loaded.get(stored.engine_key)
            if loaded is None:
                former = self._named(stored.name)
                if former is not None:
                    # Its answers may take long. If its memory is needed, `_make_room` waits for them.
                    self._unload(former, "changed")
                self._arriving = stored.name
                try:
                    await self._load_with_room(stored)
                finally:
                    self._arriving, self._first_until = None, math.inf
                loaded = self._loaded[stored.engine_key] = LoadedModel(stored, self.keep_seconds)
            return self._use(loaded)

    def _use(self, loaded: LoadedModel) -> LoadedModel:
        loaded.users += 1
        loaded.last_used = time.monotonic()
        if loaded.timer is not None:
            loaded.timer.cancel()
        loaded.expires = loaded.timer = None
        return loaded

    async def _load_with_room(self, stored: StoredModel) -> None:
        give_up = time.monotonic() + ROOM_SECONDS
        self._first_until = time.monotonic() + FIRST_SECONDS
        while True:
            self._freed.clear()
            started = time.monotonic()
            try:
                await self.registry.change(LoadRequest(model=stored.name, name=stored.name))
            except Unavailable as error:
                if "needed_bytes" not in error.details or not await self._make_room(give_up):
                    raise
            else:
                seconds = round(time.monotonic() - started, 4)
                log_event("model_loaded", name=stored.name, by="use", seconds=seconds)
                return

    async def _make_room(self, give_up: float) -> bool:
        """Unload the idle model whose last use is oldest, or wait for a model to become idle or to leave. False if none
        does.
        """
        idle = [each for each in self._loaded.values() if each.users == 0]
        if idle:
            await asyncio.shield(self._unload(min(idle, key=lambda each: each.last_used), "memory"))
            return True
        if not self._loaded and not self.registry.leaving:
            return False
        try:
            await asyncio.wait_for(self._freed.wait(), max(0.0, give_up - time.monotonic()))
        except TimeoutError:
            return False
        return True

    def _left(self, loading: asyncio.Task[LoadedModel]) -> None:
        """The request that a model was loaded for has ended before it."""
        if not loading.cancelled() and loading.exception() is None:
            self._leave(loading.result())

    def _leave(self, loaded: LoadedModel) -> None:
        loaded.users -= 1
        self._rest(loaded)

    def _rest(self, loaded: LoadedModel) -> None:
        """Start the time after which a model without users is unloaded."""
        if loaded.timer is not None:
            loaded.timer.cancel()
        loaded.expires = loaded.timer = None
        if loaded.users > 0 or not self._has(loaded):
            return
        self._freed.set()
        if math.isinf(loaded.keep_seconds):
            return
        if loaded.keep_seconds == 0:
            self._expire(loaded)
            return
        loaded.expires = time.time() + loaded.keep_seconds
        loaded.timer = asyncio.get_running_loop().call_later(loaded.keep_seconds, self._expire, loaded)

    def _expire(self, loaded: LoadedModel) -> None:
        if loaded.users == 0 and self._has(loaded):
            self._unload(loaded, "keep_alive")

    def _has(self, loaded: LoadedModel) -> bool:
        """Whether it was neither unloaded nor replaced."""
        return self._loaded.get(loaded.stored.engine_key) is loaded

    def _unload(self, loaded: LoadedModel, reason: str) -> asyncio.Task[None]:
        """No request finds it from now on. The task ends when it is closed, after its running answers."""
        del self._loaded[loaded.stored.engine_key]
        if loaded.timer is not None:
            loaded.timer.cancel()

        def closed(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                log_event("model_unloaded", name=loaded.name, by=reason)
            self._freed.set()

        task = self.registry.withdraw(loaded.name)
        task.add_done_callback(closed)
        return task
