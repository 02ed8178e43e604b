"""What an executor has beside `Executor` where LoRA adapters can be loaded into it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .executor import Executor


@runtime_checkable
class TakesAdapters(Protocol):
    async def load_adapter(self, name: str, path: str) -> None:
        """Raises CheckpointError for a folder that holds none, RequestError for one that does not fit the model."""

    async def unload_adapter(self, name: str) -> None:
        """Let what runs with it end first."""

    def with_adapter(self, name: str) -> Executor:
        """The same model with a loaded adapter; its `close` closes nothing."""
