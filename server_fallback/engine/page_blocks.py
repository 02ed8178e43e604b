"""Page blocks: the stored pages of a few tokens of a prompt, which pass from the engine that computed them to the
prefix cache of another one that has the same model.

The bytes are those of `Runner.read_pages`: group by group, page by page, and in the last block the state of recurrent
layers. Pages that lie behind a window at the end of the prompt are left out, because nothing reads them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

# Those of `Runner`.
ReadPages = Callable[[Sequence[Sequence[int]]], Future[bytes]]
WritePages = Callable[[Sequence[Sequence[int]], bytes], None]

# The fewest tokens of a block, and the most blocks of a prompt. A larger block keeps the device from its next step for
# longer, and takes more memory on its way; each block costs both engines a walk through the tokens before it.
BLOCK_TOKENS, BLOCKS = 64, 128


def block_tokens(total: int) -> int:
    """The tokens of each block of a prefix of ``total`` tokens, but the last."""
    return max(1, -(-total // (BLOCKS * BLOCK_TOKENS))) * BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class PageBlock:
    """The pages of the tokens from ``start`` up to ``end``, both of which are page borders."""

    start: int
    end: int
    data: bytes


@dataclass(frozen=True, slots=True)
class BlockWrite:
    """A block for the prefix cache. ``token_ids`` are all tokens of the prefix that is being transferred, of which the
    block's are some, and ``adapter`` names the LoRA adapter that computed it.
    """

    token_ids: Sequence[int]
    block: PageBlock
    adapter: str | None = None
