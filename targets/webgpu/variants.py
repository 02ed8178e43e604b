"""The variants of every op on WebGPU: its numbers, and the variants of projections.

To add a faster kernel, write its template in `compiler/kernels/` and add a variant above the plain one.
"""

from __future__ import annotations

from dataclasses import replace

from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.attention_tile import TileOptions
from nearfar.compiler.kernels.half_products import multiplies_halves
from nearfar.compiler.kernels.integer_groups import FEATURE as INTEGER_DOTS
from nearfar.compiler.kernels.linear_dot_tile import DotTileShape, linear_dot_tile
from nearfar.compiler.kernels.linear_dots import DotShape, linear_dots
from nearfar.compiler.kernels.linear_subgroup import SubgroupShape, linear_subgroup
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector, power_of_two
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.quantize_rows import groups_of, quantize_rows
from nearfar.targets import gpu_variants
from nearfar.targets.context import Context
from nearfar.targets.gpu_attention import AttentionNumbers
from nearfar.targets.gpu_variants import (
    VECTOR_TEMPLATES,
    GpuNumbers,
    few_rows,
    num_buffers,
    tile_variant,
    vector_shape,
    vector_variant,
)
from nearfar.targets.variant import KernelCall, Variant, kernel

from .device import vendor_need

# Bytes of workgroup memory, threads of a workgroup and buffers of a kernel that every device has (W3C, WebGPU, 3.6.2).
MAX_SHARED_BYTES = 16 << 10
MAX_THREADS = 256
MAX_STORAGE_BUFFERS = 8
# About how many numbers a thread has in registers before the compilers of a vendor's GPUs spill (`make gpu-static`):
# Intel's spilled with 92 and not with 88, Apple's with 116 and not with 112, Adreno's with 180 and not with 172,
# NVIDIA's and AMD's with 264 and not with 252. Vendors have the names that browsers give them.
MOST_NUMBERS = {"intel": 90, "apple": 114, "qualcomm": 176, "nvidia": 256, "amd": 256}
ATTENTION = AttentionNumbers(
    max_shared_bytes=MAX_SHARED_BYTES,
    splits=(256, 128),
    # Few threads with several keys each read the queries from workgroup memory less often; wide heads need more threads
    # for their values.
    decode_threads=((64, 256), (64, 128), (128, 256), (64, 64), (128, 128), (256, 256)),
    # Twice the threads with half the work each need half the registers, so twice as many fit on a GPU, but they read
    # workgroup memory more often: on lavapipe, they took 1.4 to 1.5 times as long. Which is faster, a tuner measures.
    tiles=(
        *(TileOptions(rows, keys) for rows, keys in ((32, 32), (32, 16), (16, 32))),
        TileOptions(16, 32, MAX_THREADS),
        *(TileOptions(rows, keys) for rows, keys in ((16, 16), (8, 32))),
    ),
    max_tiles=3,
    # Adreno's compiler unrolls the loop over a key's blocks and loads all of them first: with 2,048 bytes, four keys of
    # 128 float32, it spilled 118 registers, with 1,024 none (`make gpu-static`).
    max_key_bytes=1024,
    # With four heads of 64 float16 and four keys a thread, 100 numbers, Intel's compiler spilled 11 to 104 registers,
    # with three heads, 88, none (`make gpu-static`).
    max_numbers=90,
    # On lavapipe, five and six heads took 1.3 to 1.5 times as long in this form, four 0.99 to 1.05.
    max_each_tile=80,
    # With at most 58 numbers, no compiler spilled.
    small_numbers=58,
    spilling={vendor_need(vendor): most for vendor, most in MOST_NUMBERS.items()},
    # With fewer new tokens per sequence, most rows of a tile would belong to other sequences.
    min_tile_rows=8,
)
NUMBERS = GpuNumbers(
    max_vector_rows=4,
    max_buffers=MAX_STORAGE_BUFFERS,
    attention=ATTENTION,
    # Each workgroup reads the whole weight, which takes longer than another dispatch for more rows.
    max_fused_rows=256,
    # Greedy rows are read once, and a decoded token has few dispatches.
    shared_rows=[">", "DR", 0],
    centering=(*VECTOR_TEMPLATES, linear_tile),
)
# A weight matrix of at least this many rows has enough workgroups with four rows per thread.
MIN_TALL_ROWS = 8192
# What kernels with float16 need.
HALVES: tuple[str, ...] = ("shader-f16",)
# Large tiles read weights less often; small ones give more workgroups. A matrix of WIDE rows has enough workgroups for
# most GPUs with few input rows, a smaller one only with many.
WIDE = 2048
MIN_WIDE_TILE_ROWS = 16
MIN_NARROW_TILE_ROWS = 256
# Up to this number of rows, pairs of them share the weights of a matrix-vector kernel.
MOST_PAIRED_ROWS = 8
# The most weight rows of a thread, the columns of a block of 4-bit weights, the passes from which on compilers do not
# unroll a loop, and the fewest threads along the columns.
MOST_ROWS, LARGE_BLOCK, MIN_PASSES, MIN_LANES = 4, 32, 4, 8
LARGE_TILE, SMALL_TILE = TileShape(64, 64, 16, 128), TileShape(32, 32, 32, 64)
# A thread with 8 by 8 sums reads four vectors of workgroup memory for 64 products, with 8 by 4 three for 32. With
# products in float16, 8 by 8 would need so many registers that less than a quarter of an AMD GPU's threads fit.
SQUARE_TILE: TileShape = replace(LARGE_TILE, threads=64, thread_outputs=8)
HALF_TILE = TileShape(64, 64, 32, 128, "float16", products="float16")


def variants_of(step: Step, context: Context) -> tuple[Variant, ...]:
    """The variants of one step, in the order in which a runtime tries them."""
    return gpu_variants.variants_of(step, context, NUMBERS, projection_variants)


def projection_variants(facts: Projection, activation: str) -> list[Variant]:
    """The kernels of one projection; with float16 activations, also products and tiles of float16. With int8
    activations, kernels of integers come first for few rows and for many; a tuner may prefer the others, which are more
    exact.
    """
    subgroup = kernel(linear_subgroup, facts=facts, shape=SubgroupShape())
    few_dots, many_dots = integer_variants(facts) if activation == "int8" else ([], [])
    few: Condition = ["and", [">", facts.batch, 1], ["<=", facts.batch, MOST_PAIRED_ROWS]]
    pairs = Variant((kernel(linear_vector, facts=facts, shape=pair_shape(facts)),), when=few)
    variants = [
        *few_dots,
        *([] if few_dots else [pairs]),
        *(vector_variant(facts, shape, NUMBERS) for shape in vector_shapes(facts)),
        Variant((subgroup,), when=few_rows(facts, NUMBERS), needs=("subgroups", "subgroup_id")),
        *many_dots,
        *([pairs] if few_dots else []),
    ]
    in_halves = activation == "float16" and multiplies_halves(facts.weight)
    if in_halves or (few_dots and multiplies_halves(facts.weight)):
        variants += [replace(vector_variant(facts, shape, NUMBERS), needs=HALVES) for shape in half_shapes(facts)]
    many: Condition = [">", facts.batch, MIN_WIDE_TILE_ROWS if facts.weight_rows >= WIDE else MIN_NARROW_TILE_ROWS]
    for tile, when in ((LARGE_TILE, many), (SMALL_TILE, None)):
        if activation == "float16":
            variants.append(tile_variant(facts, replace(tile, dtype="float16"), when, needs=HALVES))
        variants.append(tile_variant(facts, tile, when))
    more = []
    # Besides 8 by 8 sums, there are no registers for a norm's.
    if not facts.before_norm:
        more.append(replace(SQUARE_TILE, dtype="float16") if activation == "float16" else SQUARE_TILE)
    if in_halves and tiles_halves(facts):
        more.append(HALF_TILE)
    # Behind the tiles that run until a tuner has measured, but before the plainest.
    needs = HALVES if activation == "float16" else ()
    variants[-1:-1] = [tile_variant(facts, tile, many, needs) for tile in more]
    return variants


def tiles_halves(facts: Projection) -> bool:
    """Whether a tile with products in float16 computes a projection whose weights multiply so: if its columns share a
    scale, and no norm precedes the products.
    """
    return facts.weight.group % HALF_TILE.depth == 0 and not facts.before_norm


def integer_variants(facts: Projection) -> tuple[list[Variant], list[Variant]]:
    """The kernels of integer products for few rows and for many, behind one that quantizes the rows; none for weights
    that are floats, or if a kernel needs too many buffers. Products of unsigned bytes first: some drivers emulate
    signed ones (Mesa's for Adreno 740, with twice the instructions).
    """
    rest = replace(facts, load=())
    # The scales of rows are a buffer of their own, and so are codes.
    own, loads = num_buffers(rest) + 1, num_buffers(facts) - num_buffers(rest)
    if not facts.weight.scale_dtype or max(own, 3 + loads) > MAX_STORAGE_BUFFERS:
        return [], []
    few, many = [], []
    for signed in (False, True):
        rows = kernel(
            quantize_rows,
            batch=facts.batch,
            columns=facts.columns,
            x_dtype=facts.x_dtype,
            load=facts.load,
            halves=facts.weight.scales_a_chunk == 2,
            signed=signed,
        )

        def after(product: KernelCall, when: Condition = None, rows: KernelCall = rows) -> Variant:
            return Variant((rows, product), when=when, needs=(INTEGER_DOTS,))

        few += [
            after(kernel(linear_dots, facts=rest, shape=shape), few_rows(facts, NUMBERS))
            for shape in dot_shapes(facts, signed=signed)
        ]
        shape = DotTileShape(signed=signed) if facts.weight_rows >= WIDE else DotTileShape(32, 32, signed=signed)
        many.append(after(kernel(linear_dot_tile, facts=rest, shape=shape)))
    return few, many


def dot_shapes(facts: Projection, *, signed: bool) -> list[DotShape]:
    """The shapes of the integer kernels for few rows, the default first: four rows of a thread share its input."""
    lanes = min(16, max(4, power_of_two(groups_of(facts.columns))))
    return [DotShape(64, lanes, MOST_ROWS // halves(facts), signed=signed)]


def vector_shapes(facts: Projection) -> list[VectorShape]:
    """The shapes of the matrix-vector kernels, the default first, for a tuner to choose from: the second has half the
    threads with four weight rows each, the third twice the threads with one row each, which need the fewest registers.
    """
    usual = vector_shape(facts, MIN_TALL_ROWS)
    tall = tall_shape(facts)
    thin = replace(usual, threads=MAX_THREADS, rows=1)
    return [without_unrolling(facts, shape) for shape in (usual, tall, thin)]


def tall_shape(facts: Projection) -> VectorShape:
    usual = vector_shape(facts, MIN_TALL_ROWS)
    lanes = max(usual.lanes // 2, MIN_LANES)
    return replace(usual, threads=64, lanes=lanes, rows=MOST_ROWS // halves(facts))


def half_shapes(facts: Projection) -> list[VectorShape]:
    """The shapes of matrix-vector kernels with products in float16, for a tuner to choose from, behind all in float32,
    which are more exact.

    Their registers hold two numbers. With four weight rows a thread, three times as many threads fit on an Adreno 740
    as in float32, and with eight twice as many, with 0.9 times the instructions for each weight (`make gpu-static`).
    """
    tall = replace(without_unrolling(facts, tall_shape(facts)), products="float16")
    # There are at least as many lanes as rows.
    more = min(2 * tall.rows, tall.lanes)
    return [tall, replace(tall, rows=more)] if more > tall.rows else [tall]


def pair_shape(facts: Projection) -> VectorShape:
    """The shape for a few input rows, such as those of a step that checks drafts: two share unpacked weights.

    On lavapipe, a projection of 4,096 by 1,024 took 4.8 ms of one core for two rows and 18.6 for eight, 4.5 for one; 10
    and 37 with a workgroup for each row, and 60 with the small tile. With four rows that share weights, the compilers
    of Adreno, Apple and Intel GPUs spilled registers (`make gpu-static`), with two none.
    """
    usual = vector_shape(facts, MIN_TALL_ROWS)
    return replace(usual, threads=64, lanes=MIN_LANES, rows=MOST_ROWS // halves(facts), x_rows=2)


def without_unrolling(facts: Projection, shape: VectorShape) -> VectorShape:
    """A shape with fewer lanes, so with more passes over the columns, if it would need too many registers otherwise.

    Adreno's compiler unrolls loops of two and three passes and loads the weights of all passes first. With four rows of
    4-bit weights it then spilled 21 registers in Llama-3.2-1B's gate and up projections (`make gpu-static`).
    """
    passes = -(-facts.columns // (facts.weight.block_columns * shape.lanes * shape.unroll))
    is_large = shape.rows * halves(facts) >= MOST_ROWS and facts.weight.block_columns == LARGE_BLOCK
    if not is_large or not 1 < passes < MIN_PASSES or shape.lanes == MIN_LANES:
        return shape
    return without_unrolling(facts, replace(shape, lanes=shape.lanes // 2))


def halves(facts: Projection) -> int:
    """The weight rows that a row of a thread stands for."""
    return 2 if facts.gated else 1
