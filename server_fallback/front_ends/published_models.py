"""The models of the main process. Each change is published to all front ends before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ..executors.encoder_executor import EncoderExecutor
from ..executors.executor import Executor, ExecutorState
from ..executors.local import LocalExecutor
from ..executors.model_table import ModelEntry
from ..executors.registry import Registry
from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard, UnloadAdapterRequest
from .messages import Publish, SharedModel

Result = TypeVar("Result")


class PublishedModels:
    """Implements `Models`. ``publish`` returns when all front ends use the models."""

    def __init__(self, registry: Registry, publish: Callable[[Publish], Awaitable[None]]) -> None:
        self._registry, self._publish = registry, publish

    def latest(self) -> Publish:
        return Publish(tuple(shared_model(entry) for entry in self._registry.entries()))

    def cards(self) -> Sequence[ModelCard]:
        return self._registry.cards()

    def states(self) -> Mapping[str, ExecutorState]:
        return self._registry.states()

    def answers_at_once(self, name: str) -> int | None:
        return self._registry.answers_at_once(name)

    async def executor(self, name: str) -> Executor:
        return await self._registry.executor(name)

    async def load(self, request: LoadRequest) -> ModelCard:
        return await self._changed(self._registry.load(request))

    async def unload(self, name: str) -> None:
        await self._changed(self._registry.unload(name))

    async def load_adapter(self, request: LoadAdapterRequest) -> ModelCard:
        return await self._changed(self._registry.load_adapter(request))

    async def unload_adapter(self, request: UnloadAdapterRequest) -> None:
        await self._changed(self._registry.unload_adapter(request))

    async def close(self, drain_seconds: float) -> None:
        await self._registry.close(drain_seconds)

    async def _changed(self, change: Coroutine[Any, Any, Result]) -> Result:
        """Publish immediate changes, such as the names of a model that is being unloaded, and the final state."""
        task = asyncio.ensure_future(change)
        # Let the task start.
        await asyncio.sleep(0)
        try:
            if not task.done():
                await self._publish(self.latest())
            return await task
        finally:
            await self._publish(self.latest())


def shared_model(entry: ModelEntry) -> SharedModel:
    executor = entry.executor
    return SharedModel(
        name=entry.name,
        model=entry.model,
        created=entry.created,
        aliases=tuple(entry.aliases),
        adapters=tuple(entry.adapters) if executor is not None else (),
        task=entry.task,
        answers_at_once=entry.answers_at_once,
        memory_bytes=entry.memory_bytes,
        share=executor.share if isinstance(executor, LocalExecutor | EncoderExecutor) else None,
    )
