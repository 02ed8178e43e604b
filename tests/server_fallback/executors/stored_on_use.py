"""Models of a store that are loaded on use, without engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from fake_executor import FakeExecutor

from nearfar.compiler.store.store import Store
from nearfar.server_fallback.executors.executor import Executor, LoadsOnUse, Models, Opening
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.executors.stored_models import StoredModels

MODEL_BYTES = 1000


@dataclass
class Opener:
    """Opens what ``make`` makes, of ``MODEL_BYTES``, once ``may_open`` is set."""

    make: Callable[[], Executor] = FakeExecutor
    prepared: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    executors: list[Any] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    preparing: list[str] = field(default_factory=list)
    may_open: asyncio.Event | None = None

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            self.preparing.append(model)
            await (asyncio.sleep(0) if self.may_open is None else self.may_open.wait())
            self.executors.append(self.make())
            self.opened.append(model)
            opened: Executor = self.executors[-1]
            return opened

        self.prepared.append(model)
        return Opening(name or model, MODEL_BYTES, open_it, release=lambda: self.released.append(model))


def run(
    store: Store,
    test: Callable[[StoredModels, Opener], Coroutine[Any, Any, None]],
    budget: int | None = None,
    make: Callable[[], Executor] = FakeExecutor,
) -> None:
    async def main() -> None:
        opener = Opener(make)
        models: Models = StoredModels(Registry(opener, budget), store)
        assert isinstance(models, LoadsOnUse)
        assert isinstance(models, StoredModels)
        await test(models, opener)
        await models.close(0.0)
        # Also those that did not fit, or failed.
        assert sorted(opener.released) == sorted(opener.prepared)

    asyncio.run(main())


async def used(models: StoredModels, name: str) -> None:
    async with models.using(name):
        pass
