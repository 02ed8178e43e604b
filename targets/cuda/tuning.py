"""The sizes of CUDA's projection kernels, as data for each architecture, and the rules that choose among them.

`tests/bench/bench_cuda_projections.py` times every candidate on a GPU and prints the best beside the choice of these
rules. On an H200 it did so with 4 bits for 1 to 16 rows; the other sizes are estimates, and those of `linear_few`
follow from a count of its instructions (`bench_cuda_sass.py`). The reasoning, for an H100 (sm_90: 132 multiprocessors,
3.35 TB/s, 600 to 800 ns for a read from memory): memory is busy only if 2.0 to 2.7 MB are in flight, which is 16 to 20
KB for each multiprocessor. So every multiprocessor needs a workgroup first, and then every workgroup as many copies in
flight as its part of the matrix allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nearfar.compiler.kernels.builder import size_bytes
from nearfar.compiler.kernels.cuda import linear_few, linear_wgmma
from nearfar.compiler.kernels.cuda.linear_async import AsyncShape
from nearfar.compiler.kernels.cuda.linear_few import FewShape
from nearfar.compiler.kernels.cuda.linear_mma import MmaShape, is_plain, shared_bytes
from nearfar.compiler.kernels.cuda.linear_wgmma import WgmmaShape
from nearfar.compiler.kernels.cuda.rows16 import MAX_SPLIT_TILES, blocks_of
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.quant.kernel_format import WeightFormat

from .arch import max_dynamic_bytes
from .source import MAX_SHARED_BYTES

# The most shared memory for copies in flight. The input's tiles need the rest of the 48 KB, 8 KB for each input row.
SLOT_BYTES = 30 << 10
MAX_STAGES = 4
# The shared memory that splits need beside their tile.
SPLIT_BYTES = 64
# The number of rows up to which splits are worthwhile in front of the largest tile: sequences that decode together.
MIDDLE_BATCH = 256
# A matrix that needs more rows than this to occupy every multiprocessor with large tiles never uses them.
LARGE_BATCH = 4096
# Up to this number of rows, memory is the limit, and the small tiles of other kernels do.
FEW_ROWS = 32
# The numbers of rows for which wgmma's tiles are chosen, besides any larger number.
WGMMA_BATCHES = (64, MIDDLE_BATCH, 512, 1024, 2048)
# The formats and the smallest matrix, columns and outputs, that a GPU has computed with wgmma, and faster than with the
# other kernels.
WGMMA_KINDS = ("q4", "q8")
WGMMA_SIZE = 4096
# wgmma's workgroups, one for each multiprocessor, have as many blocks in flight as fit, but no more than this.
WGMMA_STAGES = (6, 5, 4, 3)
# The numbers of rows of linear_few.
FEW_ROW_COUNTS = (1, 2, 4)
# The sizes of linear_few: warps, tiles of a warp in all, and workgroups that share the columns.
FEW_WARPS = (8, 4)
FEW_TILES = 4
FEW_SPLITS = (1, 2, 4)
# The instructions of a warp of linear_few in SASS for sm_90 with 4-bit weights: in all, in a round of 128 columns, for
# each of its tiles in a round, if copies are started in the loop, and for two more rows. An exchange between workgroups
# takes as long as about 1,000 instructions (an estimate), and a scheduler needs two warps to be busy (an estimate).
FEW_FIXED, FEW_ROUND, FEW_TILE, FEW_COPIES, FEW_PAIR = 300, 20, 80, 27, 16
FEW_EXCHANGE, FEW_BUSY_WARPS = 1000, 2
SCHEDULERS = 4


@dataclass(frozen=True, slots=True)
class Tuning:
    """``vector``: shapes of matrix-vector kernels, from wide workgroups, which read the input less often, to narrow
    ones, of which a small matrix gives enough. For a gated projection, each half has half of ``rows``.

    ``mma``: tiles of tensor-core kernels, (input rows, tiles of 8 weight rows for each of four warps), from that for
    the fewest rows to that for the most. The last one reads and unpacks weights least often, and is used once its tiles
    alone occupy every multiprocessor; until then, the one before. ``pipelines``: (parts of a slice, stages) of these
    kernels, from the most columns in flight to the fewest; the first that fits into shared memory is used.

    ``wgmma``: the GPU has these instructions. An H200 computes the projections of Llama-3.1-8B with 4-bit weights in
    0.55 to 0.85 of the time of the other kernels at 64 rows, and in 0.3 to 0.65 of it at 256 to 4,096 rows.

    ``few_bytes``: the shared memory of a workgroup of `linear_few`. Half of a multiprocessor's, so that the next kernel
    copies its first weights while the previous one still runs.
    """

    multiprocessors: int
    vector: tuple[AsyncShape, ...]
    mma: tuple[tuple[int, int], ...]
    pipelines: tuple[tuple[int, int], ...]
    wgmma: bool = False
    few_bytes: int = MAX_SHARED_BYTES


# Four weight rows per thread share each value of the input that they read from shared memory; with two, reading the
# input would take as much of its bandwidth as memory allows.
VECTOR = (
    AsyncShape(128, 32, 4, MAX_STAGES),
    AsyncShape(128, 64, 4, MAX_STAGES),
    AsyncShape(128, 32, 2, MAX_STAGES),
    AsyncShape(128, 64, 2, MAX_STAGES),
    AsyncShape(128, 32, 1, MAX_STAGES),
    AsyncShape(128, 128, 2, MAX_STAGES),
    AsyncShape(128, 64, 1, MAX_STAGES),
    AsyncShape(128, 128, 1, MAX_STAGES),
)
# Up to 32 rows, memory is the limit: 64 weight rows make the input's copies no larger than those of 4-bit weights.
# With 64 weight rows and 64 input rows, reading the input from shared memory takes about as long as the tensor cores;
# 128 and 128 take 60 % of that, and half the unpacking.
MMA = ((16, 2), (32, 2), (64, 2), (128, 4))
PIPELINES = ((4, 4), (4, 3), (2, 4), (2, 3), (1, 4), (1, 3), (4, 2), (2, 2), (1, 2))
TUNINGS: Mapping[str, Tuning] = {
    # A100, L40S, H100 and B200. Other architectures use the numbers of the next older one.
    "sm_80": Tuning(108, VECTOR, MMA, PIPELINES),
    "sm_89": Tuning(142, VECTOR, MMA, PIPELINES),
    "sm_90": Tuning(132, VECTOR, MMA, PIPELINES, wgmma=True, few_bytes=112 << 10),
    "sm_100": Tuning(148, VECTOR, MMA, PIPELINES),
}


def tuning_for(arch: str) -> Tuning:
    """The sizes for a GPU, by NVRTC's name of it (`Arch.gpu`)."""
    number = arch_number(arch)
    return TUNINGS[max((known for known in TUNINGS if arch_number(known) <= number), key=arch_number)]


def arch_number(arch: str) -> int:
    """90 for "sm_90" and for "sm_90a"."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def vector_shapes(facts: Projection, tuning: Tuning, x_rows: int) -> list[AsyncShape]:
    """Every shape that suits a matrix, each with as many stages as fit."""
    blocks = -(-facts.columns // facts.weight.block_columns)
    halves = 2 if facts.gated else 1
    shapes = []
    for shape in tuning.vector:
        # A warp is the fewest lanes; more are wasted if they stay idle in the last round.
        rounds = -(-blocks // shape.lanes)
        if shape.rows % halves or (shape.lanes > 32 and 8 * rounds * shape.lanes > 9 * blocks):
            continue
        stages = min(shape.stages, SLOT_BYTES // (shape.threads * shape.rows * slot_bytes(facts.weight)))
        if stages < 2:
            continue
        shapes.append(replace(shape, rows=shape.rows // halves, stages=stages, x_rows=x_rows))
    return shapes


def slot_bytes(weight: WeightFormat) -> int:
    """The shared memory of a block and of the words that hold its high bits, scales and offsets."""
    scales = weight.scales_a_block if weight.scale_dtype and not weight.per_row else 0
    return size_bytes(weight.block_dtype) + 4 * (weight.high_bits + scales * weight.factors_a_group)


def vector_shape(facts: Projection, tuning: Tuning, x_rows: int) -> AsyncShape:
    """The widest shape that gives nearly every multiprocessor a workgroup."""
    shapes = vector_shapes(facts, tuning, x_rows)
    enough = [each for each in shapes if 10 * -(-facts.outputs // each.outputs) >= 9 * tuning.multiprocessors]
    return max(enough or shapes[-1:], key=lambda each: each.outputs)


def few_shapes(facts: Projection, tuning: Tuning, x_rows: int) -> list[FewShape]:
    """Every shape of `linear_few` that suits a matrix, each with as many stages as fit, in the order of `few_cost`."""
    if not linear_few.supports(facts):
        return []
    blocks, shapes = blocks_of(facts.columns), set()
    for splits in FEW_SPLITS if facts.norm is None else (1,):
        for warps in FEW_WARPS:
            # The fewest warps with as many rounds, but no split without columns.
            rounds = -(-blocks // (warps * splits))
            shape = FewShape(-(-blocks // (rounds * splits)), 1, 1, x_rows, splits)
            if shape.rounds(facts.columns) * shape.warps * (splits - 1) >= blocks:
                continue
            for tiles in range(1, FEW_TILES // (2 if facts.gated else 1) + 1):
                stages = few_stages(facts, tuning, replace(shape, tiles=tiles))
                if stages:
                    shapes.add(replace(shape, tiles=tiles, stages=stages))
    return sorted(shapes, key=lambda each: (few_cost(facts, tuning, each), each.warps, each.tiles, each.splits))


def few_stages(facts: Projection, tuning: Tuning, shape: FewShape) -> int:
    """The most stages that fit, one for each round at most; 0 if there are too few."""
    rounds = shape.rounds(facts.columns)
    fitting = (each for each in range(rounds, 0, -1) if few_fits(facts, tuning, replace(shape, stages=each)))
    stages = next(fitting, 0)
    return stages if stages >= min(rounds, 2) else 0


def few_fits(facts: Projection, tuning: Tuning, shape: FewShape) -> bool:
    return linear_few.shared_bytes(facts, shape) <= tuning.few_bytes


def few_cost(facts: Projection, tuning: Tuning, shape: FewShape) -> int:
    """The instructions that a scheduler of the busiest multiprocessor issues, with those of two warps at least."""
    rounds, tiles = shape.rounds(facts.columns), shape.tiles * (2 if facts.gated else 1)
    copies = FEW_COPIES if shape.stages < rounds else 0
    warp = FEW_FIXED + rounds * (FEW_ROUND + tiles * (FEW_TILE + copies + FEW_PAIR * (shape.pairs - 1)))
    workgroups = -(-facts.outputs // shape.outputs) * shape.splits
    warps = -(-(-(-workgroups // tuning.multiprocessors) * shape.warps) // SCHEDULERS)
    return max(warps, FEW_BUSY_WARPS) * warp + (FEW_EXCHANGE if shape.splits > 1 else 0)


def tensor_core_shapes(facts: Projection, tuning: Tuning, dtype: str) -> list[tuple[MmaShape | WgmmaShape, int | None]]:
    """As `mma_shapes`, with wgmma where a GPU has it and it is faster."""
    others = mma_shapes(facts, tuning, dtype)
    known = is_plain(facts.weight) and facts.weight.kind in WGMMA_KINDS
    if not tuning.wgmma or not known or min(facts.columns, facts.outputs) < WGMMA_SIZE:
        return [*others]
    found: list[tuple[MmaShape | WgmmaShape, int | None]] = [
        (shape, limit) for shape, limit in others if limit is not None and limit <= FEW_ROWS
    ]
    for limit in (*WGMMA_BATCHES, None):
        shape = wgmma_shape(facts, tuning, dtype, limit)
        if found and found[-1][0] == shape:
            found.pop()
        found.append((shape, limit))
    return found


def wgmma_shape(facts: Projection, tuning: Tuning, dtype: str, batch: int | None) -> WgmmaShape:
    """The shape for up to ``batch`` rows, or for more than all `WGMMA_BATCHES`."""
    narrow, wide = (wgmma_tile(facts, dtype, 64 if batch == 64 else 128, tiles) for tiles in (1, 2))
    if batch is None or batch > MIDDLE_BATCH:
        # Where both keep the multiprocessors equally busy, the wide one reads the input less often.
        prefers_wide = batch is None or busy(facts, tuning, wide, batch) >= busy(facts, tuning, narrow, batch)
        return wide if prefers_wide and not facts.gated else narrow
    blocks = blocks_of(facts.columns)
    # The most splits with one workgroup for each multiprocessor.
    splits = max(1, tuning.multiprocessors // wgmma_tiles(facts, narrow, batch))
    splits = -(-blocks // -(-blocks // splits))
    return narrow if splits == 1 else replace(narrow, splits=splits, max_batch=batch)


def wgmma_tile(facts: Projection, dtype: str, rows: int, tiles: int) -> WgmmaShape:
    """A tile without splits, with as many stages as fit."""
    room = max_dynamic_bytes("sm_90") - SPLIT_BYTES
    shapes = [WgmmaShape(rows, tiles, 2, dtype, stages) for stages in WGMMA_STAGES]
    fits = (linear_wgmma.shared_bytes(facts.weight, shape, gated=facts.gated) <= room for shape in shapes)
    return next((shape for shape, fit in zip(shapes, fits, strict=True) if fit), shapes[-1])


def wgmma_tiles(facts: Projection, shape: WgmmaShape, batch: int) -> int:
    return -(-facts.outputs // shape.outputs) * -(-batch // shape.rows)


def busy(facts: Projection, tuning: Tuning, shape: WgmmaShape, batch: int) -> float:
    """The share of the multiprocessors' time for a number of rows in which they have a tile."""
    rounds = wgmma_tiles(facts, shape, batch) / tuning.multiprocessors
    return rounds / math.ceil(rounds)


def mma_shapes(facts: Projection, tuning: Tuning, dtype: str) -> list[tuple[MmaShape, int | None]]:
    """The shapes for more and more input rows, each with the most rows that it is for; None for any number."""
    *small, large = (tile for tile in (mma_tile(facts, tuning, dtype, *sizes) for sizes in tuning.mma) if tile)
    # Between the two largest tiles, narrow matrices need the smaller one, at first with splits.
    enough = -(-9 * tuning.multiprocessors // (10 * column_blocks(facts, large))) * large.rows
    if enough > LARGE_BATCH:
        large = small[-1]
    batches = [tile.rows for tile in small]
    more = [batch for batch in (MIDDLE_BATCH, enough) if batches[-1] < batch <= enough]
    tiles = [*small, *(small[-1] for _ in more)]
    merged: list[tuple[MmaShape, int | None]] = []
    found = [
        (with_splits(facts, tuning, tile, batch), batch) for tile, batch in zip(tiles, batches + more, strict=True)
    ]
    for shape, limit in (*found, (large, None)):
        if merged and replace(merged[-1][0], max_batch=0) == replace(shape, max_batch=0):
            merged.pop()
        merged.append((shape, limit))
    return merged


def mma_tile(facts: Projection, tuning: Tuning, dtype: str, rows: int, tiles: int) -> MmaShape | None:
    """A tile without splits, with the first pipeline that fits; None if none fits."""
    for parts, stages in tuning.pipelines:
        shape = MmaShape(rows, tiles // 2 if facts.gated else tiles, 4, dtype, parts, stages)
        if shared_bytes(facts.weight, shape, gated=facts.gated) <= MAX_SHARED_BYTES - SPLIT_BYTES:
            return shape
    return mma_tile(facts, tuning, dtype, rows, tiles // 2) if tiles > 2 else None


def with_splits(facts: Projection, tuning: Tuning, shape: MmaShape, batch: int) -> MmaShape:
    """The shape with as many splits as ``batch`` rows need: until every multiprocessor has a workgroup, if each still
    has two blocks of columns, and until it has two, if each still has eight.
    """
    tiles, blocks = column_blocks(facts, shape) * -(-batch // shape.rows), blocks_of(facts.columns)
    enough, more = (-(-share * tuning.multiprocessors // (10 * tiles)) for share in (9, 18))
    splits = max(1, min(enough, blocks // 2), min(more, blocks // 8))
    splits = -(-blocks // -(-blocks // splits))
    if splits == 1 or tiles > MAX_SPLIT_TILES:
        return shape
    return replace(shape, splits=splits, max_batch=batch)


def column_blocks(facts: Projection, shape: MmaShape) -> int:
    return -(-facts.outputs // shape.outputs)
