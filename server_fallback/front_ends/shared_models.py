"""The models of the main process, as a front end serves them: it shares their engines, and has its own text layer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace

from nearfar.compiler.runtime.errors import DeviceError, NearfarError, Unavailable

from ..executors.executor import Executor, ExecutorState, ModelChange
from ..executors.local_share import LocalShare, SpeechShare
from ..executors.model_table import POLL_SECONDS, ModelEntry, ModelTable
from ..executors.registry import UNLOAD_DRAIN_SECONDS
from ..executors.shared_opener import open_shared
from ..log_event import log_event
from ..processes.connection import Background, Connection
from ..schema.models import ModelCard
from ..text.grammar.grammar_compiler import GrammarCompiler
from .messages import Publish, SharedModel
from .shared_speech import open_shared_speech

RETRY_SECONDS = 0.5


class SharedModels:
    """Implements `Models`. Changes are those of the main process, which publishes them to all front ends."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._table = ModelTable()
        self._compiler = GrammarCompiler()
        # Which engines they use, by name, and all engines that this process opens or has not closed yet.
        self._opened: dict[str, str] = {}
        self._engines = Counter[str]()
        self._publishing = asyncio.Lock()
        # Set once the models of the first message are in use.
        self.has_published = asyncio.Event()
        self._background = Background()
        self._closed = False

    def cards(self) -> Sequence[ModelCard]:
        return self._table.cards()

    def states(self) -> Mapping[str, ExecutorState]:
        """The main process admits requests, so no model is ready while that is silent."""
        states = self._table.states()
        if self._link.is_ready:
            return states
        silent = f"the main process has been silent for {self._link.silent_seconds:.0f} s"
        return {name: replace(state, ready=False, detail=silent) for name, state in states.items()}

    def answers_at_once(self, name: str) -> int | None:
        return self._table.find(name).answers_at_once

    async def executor(self, name: str) -> Executor:
        return self._table.executor(name)

    def using(self, name: str) -> AbstractAsyncContextManager[Executor]:
        return self._table.using(name)

    async def change(self, change: ModelChange) -> ModelCard | None:
        card: ModelCard | None = await self._link.call(change)
        return card

    async def close(self, drain_seconds: float) -> None:
        """The main process closes the engines."""
        self._closed = True
        entries = list(self._table)
        for entry in entries:
            self._table.remove(entry)
        engines = self._opened
        await asyncio.gather(*(self._close(each, engines.pop(each.name, ""), drain_seconds) for each in entries))

    async def unused(self, engine: str) -> None:
        """Return when this process does not use an engine, for which the main process has no name any more."""
        while self._engines[engine]:
            await asyncio.sleep(POLL_SECONDS)

    async def publish(self, message: Publish) -> None:
        """Return when other models are in use."""
        # One after the other, in the order in which they came.
        async with self._publishing:
            published = {model.name: model for model in message.models}
            for entry in self._table:
                model = published.get(entry.name)
                opened = self._opened.get(entry.name)
                # A model that was unloaded and loaded again has a new engine.
                engine = None if model is None or model.share is None else model.share.engine
                if model is not None and model.share is not None and opened is not None and engine != opened:
                    # Another model has taken the name: the old one answers until the new one does.
                    await self._replace(entry, model, model.share)
                elif model is None or (opened is not None and engine != opened):
                    self._table.remove(entry)
                    if model is not None:
                        # It sleeps, or loads again, and keeps its names.
                        self._table.put(_new_entry(model))
                    self._leave(entry)
            await asyncio.gather(*(self._update(model) for model in message.models))
            self.has_published.set()

    async def _update(self, model: SharedModel) -> None:
        entry = self._table.get(model.name)
        if entry is None:
            entry = _new_entry(model)
            self._table.put(entry)
        entry.task, entry.answers_at_once = model.task, model.answers_at_once
        entry.memory_bytes = model.memory_bytes
        if entry.executor is None and model.share is not None:
            # A model that wakes up is asleep until its engine can be used here.
            await self._open(entry, model.share)
        entry.asleep = model.asleep
        entry.aliases, entry.adapters = list(model.aliases), dict(model.adapters)

    async def _replace(self, old: ModelEntry, model: SharedModel, share: LocalShare | SpeechShare) -> None:
        """If the new engine cannot be used, the model is "loading", as after `_open`."""
        entry, opened = _new_entry(model), False
        try:
            entry.executor = await self._executor(share)
            opened = True
        except NearfarError as error:
            log_event("model_not_shared", logging.ERROR, name=entry.name, error=error.code, message=error.message)
        self._table.put(entry)
        self._leave(old)
        if opened:
            self._opened[entry.name] = share.engine

    async def _open(self, entry: ModelEntry, share: LocalShare | SpeechShare) -> None:
        try:
            await self._attach(entry, share)
        except NearfarError as error:
            # The model is "loading" here; other front ends may have it.
            log_event("model_not_shared", logging.ERROR, name=entry.name, error=error.code, message=error.message)
            if isinstance(error, DeviceError | Unavailable):
                self._background.run(self._open_later(entry, share))

    async def _open_later(self, entry: ModelEntry, share: LocalShare | SpeechShare) -> None:
        """The main process starts a failed engine again, or gives up and unloads the model."""
        while entry.executor is None and self._table.get(entry.name) is entry:
            await asyncio.sleep(RETRY_SECONDS)
            with suppress(NearfarError):
                await self._attach(entry, share)

    async def _attach(self, entry: ModelEntry, share: LocalShare | SpeechShare) -> None:
        executor = await self._executor(share)
        if self._closed or entry.executor is not None or self._table.get(entry.name) is not entry:
            await self._let_go(executor, share.engine)
            return
        entry.executor, self._opened[entry.name] = executor, share.engine

    async def _executor(self, share: LocalShare | SpeechShare) -> Executor:
        self._engines[share.engine] += 1
        try:
            if isinstance(share, SpeechShare):
                return await open_shared_speech(share, self._link)
            return await open_shared(share, self._compiler)
        except BaseException:
            self._forget(share.engine)
            raise

    def _leave(self, entry: ModelEntry) -> None:
        """Close a model that has lost its names, once nobody uses it."""
        self._background.run(self._close(entry, self._opened.pop(entry.name, ""), UNLOAD_DRAIN_SECONDS))

    async def _close(self, entry: ModelEntry, engine: str, drain_seconds: float) -> None:
        if entry.executor is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_seconds):
                await entry.unused()
        await self._let_go(entry.executor, engine)

    async def _let_go(self, executor: Executor, engine: str) -> None:
        try:
            await executor.close()
        finally:
            self._forget(engine)

    def _forget(self, engine: str) -> None:
        self._engines[engine] -= 1
        if not self._engines[engine]:
            del self._engines[engine]


def _new_entry(model: SharedModel) -> ModelEntry:
    """Before its engine can be used: it sleeps, or is "loading"."""
    return ModelEntry(
        model.name,
        model.model,
        model.created,
        asleep=model.asleep,
        aliases=list(model.aliases),
        adapters=dict(model.adapters),
    )
