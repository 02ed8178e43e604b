"""An opener of models that answer nothing, in a registry, for tests of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_executor import FakeExecutor

from nearfar.compiler.runtime.errors import CheckpointError, NearfarError
from nearfar.server_fallback.executors.executor import Executor, Models, Opening
from nearfar.server_fallback.executors.registry import Registry


class AdapterExecutor(FakeExecutor):
    async def load_adapter(self, name: str, path: str) -> str:
        await asyncio.sleep(0)
        if path == "bad":
            raise CheckpointError("bad: holds no adapter")
        self.adapters[name] = path
        return f"hash of {path}"

    async def unload_adapter(self, name: str) -> None:
        del self.adapters[name]

    def with_adapter(self, name: str, identity: str) -> Executor:
        assert identity == f"hash of {self.adapters[name]}"
        return FakeExecutor(context=len(self.adapters[name]))


@dataclass
class FakeOpener:
    """Models are named "<megabytes>"; "bad" does not open. ``gate`` holds openings back."""

    kind: type[FakeExecutor] = FakeExecutor
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    opened: list[FakeExecutor] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    async def prepare(self, model: str, name: str | None) -> Opening:
        self.prepared.append(model)
        await asyncio.sleep(0)

        async def open_it() -> Executor:
            await self.gate.wait()
            if model == "bad":
                raise CheckpointError("bad: no model")
            self.opened.append(self.kind())
            return self.opened[-1]

        return Opening(name or model, int(model) * 1_000_000 if model.isdigit() else None, open_it)


def run(
    test: Callable[[Registry, FakeOpener], Coroutine[Any, Any, None]], budget: int | None = None, **options: Any
) -> None:
    async def main() -> None:
        opener = FakeOpener(**options)
        registry: Models = Registry(opener, budget)
        assert isinstance(registry, Registry)
        await test(registry, opener)
        await registry.close(0.0)
        assert all(executor.closed for executor in opener.opened)

    asyncio.run(main())


async def fails(kind: type[NearfarError], message: str, doing: Coroutine[Any, Any, Any]) -> NearfarError:
    with pytest.raises(kind, match=message) as raised:
        await doing
    return raised.value
