"""Models: the executors of one process by the names that requests ask for. The API knows them by this interface only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from nearfar.compiler.errors import RequestError

from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard
from .executor import Executor, ExecutorState


class UnknownModel(RequestError):
    """No model, alias or adapter has this name. Over HTTP it is a 404."""

    code = "model_not_found"


class Models(Protocol):
    """Names are those of models, aliases and adapters, one name space. Safe to call from many tasks of one event loop."""

    def cards(self) -> Sequence[ModelCard]:
        """What may be asked for now, aliases and adapters too."""

    def states(self) -> Mapping[str, ExecutorState]:
        """By model (no aliases, no adapters), those that are still loading too, which are not ready. Cheap: read for every scrape."""

    async def executor(self, name: str) -> Executor:
        """What answers for the name; an adapter's executor applies it. Raises UnknownModel. Waits for nothing that takes long."""

    async def load(self, request: LoadRequest) -> ModelCard:
        """Returns when it is ready. Raises RequestError for a name that is taken or a folder that is none, BundleError and CheckpointError,
        Unavailable where the memory does not suffice; then nothing of it is left."""

    async def unload(self, name: str) -> None:
        """Let what runs on it end, then give its memory back; of an alias only the name goes. Raises UnknownModel."""

    async def load_adapter(self, request: LoadAdapterRequest) -> ModelCard:
        """Raises UnknownModel for its model, RequestError for a name that is taken or an adapter that does not fit."""

    async def unload_adapter(self, name: str) -> None: ...

    async def close(self, drain_seconds: float) -> None:
        """Load nothing more, let what runs end, for so long at most, then close every executor."""
