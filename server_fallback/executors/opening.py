"""Opening: a model that could be loaded, before it is. What it will be called and how much memory it will take is known by then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from .executor import Executor


@dataclass(frozen=True, slots=True)
class Opening:
    """``memory_bytes`` None where this process does not hold the model. ``open`` may take minutes, and leaves nothing where it fails.

    ``embeds``: it is known to make embeddings and to generate nothing.
    """

    name: str
    memory_bytes: int | None
    open: Callable[[], Awaitable[Executor]]
    embeds: bool = False


class Opener(Protocol):
    async def prepare(self, model: str, name: str | None) -> Opening:
        """Find a model, and compile it where that was not done before. Raises RequestError and others for what cannot be served."""
