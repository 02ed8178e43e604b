"""Executors over our own engine for a bundle that supports LoRA adapters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.formats.peft import adapter_id, read_adapter
from nearfar.compiler.runtime.batch import FloatArray

from .executor import Executor
from .local import Engine, GuestExecutor, LocalExecutor
from .text_model import TextModel


class AdaptableEngine(Engine, Protocol):
    """The part of `engine.token_engine.TokenEngine` that is needed here."""

    async def load_adapter(self, name: str, states: Mapping[str, FloatArray]) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...


class ExecutorWithAdapters(LocalExecutor):
    """A `LocalExecutor` that `HasAdapters`: those that its engine has loaded, here or for another server."""

    def with_adapter(self, name: str, identity: str) -> Executor:
        issuer = None if self._issuer is None else replace(self._issuer, model=name, adapter=identity)
        model = replace(self._model, name=name, model=name)
        of_engine: Any = {"workers": self._workers, "slots": self.slots}
        return GuestExecutor(self._engine, model, adapter=name, issuer=issuer, **of_engine)


class AdaptableExecutor(ExecutorWithAdapters):
    """A `LocalExecutor` that `TakesAdapters`, from folders in the format of PEFT."""

    def __init__(self, engine: AdaptableEngine, model: TextModel, manifest: Manifest, **local: Any) -> None:
        """``local`` is what else a `LocalExecutor` has."""
        super().__init__(engine, model, **local)
        self._adaptable_engine, self._manifest = engine, manifest

    async def load_adapter(self, name: str, path: str) -> str:
        folder = Path(os.path.expanduser(path))
        states = await asyncio.to_thread(read_adapter, folder, self._manifest)
        await self._adaptable_engine.load_adapter(name, states)
        return await asyncio.to_thread(adapter_id, folder)

    async def unload_adapter(self, name: str) -> None:
        await self._adaptable_engine.unload_adapter(name)

    async def adapt(self, name: str, path: str) -> None:
        """Load an adapter that applies to all requests that name no other."""
        await self.load_adapter(name, path)
        self._adapter = name
