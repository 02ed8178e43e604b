"""The sizes of `attention_decode_mma`: its tiles, and the ranges of keys that fill a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.expr import Expr
from ...ir.heads import Heads, Preparation
from ..decode_range import Ranges
from . import kv_codes
from .attention_mma import RESERVED_BYTES
from .functions import SHORT

WARP = 32
# The keys of a warp in a tile, and the most heads: rows of half of a tensor core's tile.
WARP_KEYS, MAX_HEADS = 16, 8
# A range has at most this many keys, so that one long sequence among short ones does not delay a batch.
LONGEST_RANGE = 1024


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """``heads`` query heads, a divisor of the number per kv head; ``warps`` of a workgroup, each with 16 keys of a
    tile; ``stages`` of tiles in shared memory; ``workgroups``: the number that fills a GPU.
    """

    heads: int
    warps: int
    stages: int
    workgroups: int

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def keys(self) -> int:
        return self.warps * WARP_KEYS

    def shared_bytes(self, facts: Heads) -> int:
        """Bytes of shared memory: the stages, the new heads, and the results of each warp."""
        results = self.warps * self.heads * (facts.head_dim + 2) * 4 + 4
        if facts.form is None:
            rows = (self.heads + 2) * facts.head_dim * 2
            return 4 * facts.head_dim * self.keys * self.stages + rows + results
        # Queries with a factor each, and the words of the new key and value.
        rows = self.heads * (facts.head_dim * 2 + 4) + 8 * facts.form.words(facts.head_dim)
        return kv_codes.shared_bytes(facts, self.keys) * self.stages + rows + results


@dataclass(frozen=True, slots=True)
class FilledRanges(Ranges):
    """The ranges of decode attention that fill a GPU of ``workgroups``, of which each row of a batch has ``row_parts``
    without ranges.
    """

    workgroups: int = 1
    row_parts: int = 1

    @property
    def count(self) -> Expr:
        # Close to filling / n for n sequences: a divisor of a size expression is a constant.
        sequences, filling = self.heads.sequences, self._filling
        few: Expr = ["sub", filling + filling // 2, ["mul", filling // 2, sequences]]
        more: Expr = ["ceildiv", ["max", 0, ["sub", filling, sequences]], 4]
        return ["min", self._ranges_of_context, ["max", self._long_ranges, ["max", few, more]]]

    @property
    def partials(self) -> Expr:
        # n * (filling - n + 3) / 4 is at most (filling + 3) ** 2 / 16.
        most = max(self._filling + 1, -(-((self._filling + 3) ** 2) // 16))
        return ["add", ["mul", self.heads.sequences, self._long_ranges], most]

    @property
    def _filling(self) -> int:
        """The ranges of one sequence that fill a GPU."""
        return -(-self.workgroups // self.row_parts)

    @property
    def _long_ranges(self) -> Expr:
        return ["ceildiv", self.reach, LONGEST_RANGE]


def supports(heads: Heads, preparation: Preparation) -> bool:
    """Whether the kernel can run such heads. It appends keys and values to pages of activations, or of 8 bits if pages
    begin at multiples of 16 bytes. Keys of 4 bits are rotated, which it does not do.
    """
    shape = heads.head_dim % 32 == 0 and heads.head_dim <= 256
    eight_bits = heads.form is not None and heads.form.bits == 8 and heads.page_size % 4 == 0
    pages = preparation.appends and (heads.form is None or eight_bits)
    return heads.activation in SHORT and pages and shape and not preparation.norm_wide


def decode_tile(heads: Heads, workgroups: int, max_bytes: int) -> DecodeTile | None:
    """The largest tile of which two fit into the shared memory of a multiprocessor, or else one; None if none fits.

    Measured on an H200, 16 and 32 query heads of 128 elements: three stages take 3 to 18 % less time than two for more
    than 1,024 keys in all, and as much below.
    """
    own = max(each for each in range(1, MAX_HEADS + 1) if heads.group % each == 0)
    # A stage of 8 bits has half the bytes.
    counts = (3, 2) if heads.form is None else (4, 3, 2)
    tiles = [DecodeTile(own, warps, stages, workgroups) for warps in (4, 2) for stages in counts]
    for room in ((max_bytes - RESERVED_BYTES) // 2, max_bytes):
        for tile in tiles:
            if tile.shared_bytes(heads) <= room:
                return tile
    return None
