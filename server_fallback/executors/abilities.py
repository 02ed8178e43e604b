"""What an executor has beside `Executor` where it knows the model's tokens: our own engine does, another server does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Abilities:
    """``tokenizer_sha256`` is of tokenizer.json. ``tools``: the model writes tool calls; ``embeds``: it makes embeddings and no text;
    ``verify``: it takes drafts over the wire. None where answers may be of different tokens."""

    tokenizer_sha256: str | None
    vocab_size: int | None
    tools: bool
    embeds: bool
    verify: bool = False


@runtime_checkable
class TellsAbilities(Protocol):
    def abilities(self) -> Abilities: ...
