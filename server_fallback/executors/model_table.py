"""The models of a process by the names that requests use: a model's own, its aliases, and its adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.runtime.errors import RequestError, Unavailable

from ..schema.models import ModelCard
from .executor import Executor, ExecutorState, HasAdapters, TellsAbilities, UnknownModel

LOADING = ExecutorState(ready=False, detail="loading")
ASLEEP = ExecutorState(ready=False, detail="asleep", memory_bytes=0)
# Of a model of the store, which a request loads.
NOT_LOADED = ExecutorState(ready=False, detail="not loaded", memory_bytes=0)
POLL_SECONDS = 0.02


@dataclass(eq=False, slots=True)
class Users:
    """How many use a model's executor: requests from before their first step until after their last one. Its own counts
    have them only while they wait for the device, or run there. ``changed`` is called after each change.
    """

    count: int = 0
    changed: Callable[[], None] = lambda: None

    def add(self, count: int) -> None:
        self.count += count
        self.changed()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self.add(1)
        try:
            yield
        finally:
            self.add(-1)


@dataclass(eq=False)
class ModelEntry:
    """A model. ``executor`` is None while the model loads or sleeps; ``asleep`` is its own card then. ``adapters`` are
    its adapters' hashes by name, ``adapter_paths`` their folders; ``model`` is what it was loaded from. The executor is
    closed when it has no ``users``, and ``release`` is called then.
    """

    name: str
    model: str
    created: int
    executor: Executor | None = None
    memory_bytes: int = 0
    task: Task = "generate"
    answers_at_once: int | None = None
    aliases: list[str] = field(default_factory=list)
    adapters: dict[str, str] = field(default_factory=dict)
    adapter_paths: dict[str, str] = field(default_factory=dict)
    asleep: ModelCard | None = None
    # Held while it falls asleep, or wakes up.
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: Users = field(default_factory=Users)
    release: Callable[[], None] = lambda: None

    async def unused(self) -> None:
        """Return when nobody uses its executor, and that runs no answer."""
        assert self.executor is not None
        while self.users.count or (state := self.executor.state()).running + state.waiting:
            await asyncio.sleep(POLL_SECONDS)

    def state(self) -> ExecutorState:
        if self.executor is not None:
            return self.executor.state()
        return LOADING if self.asleep is None else ASLEEP

    def names(self) -> list[str]:
        return [self.name, *self.aliases, *self.adapters]

    def cards(self) -> list[ModelCard]:
        """Information by name, for all names; empty while the model loads."""
        own = self.asleep if self.executor is None else self._card(self.executor)
        if own is None:
            return []
        aliases = [own.model_copy(update={"id": name}) for name in self.aliases]
        return [own, *aliases, *(own.model_copy(update={"id": name, "parent": self.name}) for name in self.adapters)]

    def answering(self, name: str) -> Executor:
        """The executor for one of its names. Raises Unavailable while the model loads or sleeps."""
        if self.executor is None and self.asleep is not None:
            raise Unavailable(f"{name}: the model is asleep; an admin wakes it: POST /wake_up", code="model_asleep")
        if self.executor is None:
            raise Unavailable(f"{name}: the model is still loading; try again soon", retry_after_seconds=5.0)
        if name in self.adapters:
            assert isinstance(self.executor, HasAdapters)
            return self.executor.with_adapter(name, self.adapters[name])
        return self.executor

    def _card(self, executor: Executor) -> ModelCard:
        # An upstream may not report its context.
        own = ModelCard(id=self.name, created=self.created, root=self.name, max_model_len=executor.context or None)
        if isinstance(executor, TellsAbilities):
            can = executor.abilities()
            own.input_modalities = ["audio"] if can.sound else ["text"]
            if can.vision:
                own.input_modalities.append("image")
            if can.video:
                own.input_modalities.append("video")
            if can.hears:
                own.input_modalities.append("audio")
        return own


class ModelTable:
    """The reading half of `Models`."""

    def __init__(self) -> None:
        self._entries: dict[str, ModelEntry] = {}

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> ModelEntry | None:
        """The model of that name, which is not an alias."""
        return self._entries.get(name)

    def put(self, entry: ModelEntry) -> None:
        self._entries[entry.name] = entry

    def remove(self, entry: ModelEntry) -> None:
        del self._entries[entry.name]

    def cards(self) -> Sequence[ModelCard]:
        return [card for entry in self._entries.values() for card in entry.cards()]

    def states(self) -> Mapping[str, ExecutorState]:
        return {name: entry.state() for name, entry in self._entries.items()}

    def find(self, name: str) -> ModelEntry:
        """The model of a name. Raises UnknownModel."""
        for entry in self._entries.values():
            if name in entry.names():
                return entry
        names = ", ".join(card.id for card in self.cards()) or "none"
        raise UnknownModel(f"the model {name[:100]!r} is not loaded; loaded: {names}", param="model")

    def executor(self, name: str) -> Executor:
        """Raises UnknownModel, and the errors of `ModelEntry.answering`."""
        return self.find(name).answering(name)

    @asynccontextmanager
    async def using(self, name: str) -> AsyncGenerator[Executor]:
        """The executor for a name, which stays open in the context. Raises the errors of `executor`."""
        entry = self.find(name)
        executor = entry.answering(name)
        with entry.users.one_more():
            yield executor

    def require_free(self, names: Sequence[str]) -> None:
        """Raises RequestError for a name that is in use, or given twice."""
        taken = {name for entry in self._entries.values() for name in entry.names()}
        for index, name in enumerate(names):
            if name in taken or name in names[:index]:
                raise RequestError(
                    f"the name {name!r} is already in use; unload it first, or choose another name", param="name"
                )
