"""Page blocks: the stored pages of a few tokens of a prompt, which pass from the engine that computed them to the
prefix cache of another one that has the same model.

The bytes are those of `Runner.read_pages`: group by group, page by page, and in the last block the state of recurrent
layers. Pages that lie behind a window at the end of the prompt are left out, because nothing reads them again. If the
runner can read layers while it computes later ones (`LayeredRunner`), a block comes in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

# Those of `Runner`.
ReadPages = Callable[[Sequence[Sequence[int]]], Future[bytes]]
WritePages = Callable[[Sequence[Sequence[int]], bytes], None]
# The parts of a block: those of `LayeredRunner`, or only one, of `Runner`.
ReadParts = Callable[[Sequence[Sequence[int]]], Sequence[Future[bytes]]]

# The fewest tokens of a block, and the most blocks of a prompt. A larger block keeps the device from its next step for
# longer, and takes more memory on its way; each block costs both engines a walk through the tokens before it.
BLOCK_TOKENS, BLOCKS = 64, 128
# A block in parts is as large as the chunk of a prompt on a CPU, so that all of it is on its way before the chunk is
# computed.
LAYERED_BLOCKS = 4


def block_tokens(total: int) -> int:
    """The tokens of each block of a prefix of ``total`` tokens, but the last."""
    return max(1, -(-total // (BLOCKS * BLOCK_TOKENS))) * BLOCK_TOKENS


@runtime_checkable
class LayeredRunner(Protocol):
    """A runner that reads pages part by part, each of some layers, before the batch that computes them is over."""

    def read_layers(self, units: Sequence[Sequence[int]]) -> list[Future[bytes]]: ...

    def write_layers(self, units: Sequence[Sequence[int]], data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class PageBlock:
    """The pages of the tokens from ``start`` up to ``end``, both of which are page borders. On its way, ``data`` is
    the part ``part`` of ``parts``; a block that is written has all of them, one after the other.
    """

    start: int
    end: int
    data: bytes
    part: int = 0
    parts: int = 1

    @property
    def is_last(self) -> bool:
        return self.part == self.parts - 1


def joined(parts: Sequence[PageBlock]) -> PageBlock:
    """The block of all its parts, in their order."""
    return replace(parts[-1], data=b"".join(part.data for part in parts))


@dataclass(frozen=True, slots=True)
class BlockWrite:
    """A block for the prefix cache. ``token_ids`` are all tokens of the prefix that is being transferred, of which the
    block's are some, and ``adapter`` names the LoRA adapter that computed it.
    """

    token_ids: Sequence[int]
    block: PageBlock
    adapter: str | None = None
