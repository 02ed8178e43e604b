"""The variants of every op on CUDA: its numbers, and the variants of projections.

`tuning.py` has the sizes of projections.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.attention_tile import TileOptions
from nearfar.compiler.kernels.cuda.linear_async import linear_async
from nearfar.compiler.kernels.cuda.linear_few import linear_few
from nearfar.compiler.kernels.cuda.linear_mma import MmaShape, linear_mma, supports
from nearfar.compiler.kernels.cuda.linear_wgmma import WgmmaShape, linear_wgmma
from nearfar.compiler.kernels.cuda.rows16 import rows16
from nearfar.compiler.kernels.linear_tile import TileShape
from nearfar.compiler.kernels.projection import Projection
from nearfar.targets import gpu_variants
from nearfar.targets.context import Context
from nearfar.targets.gpu_attention import AttentionNumbers
from nearfar.targets.gpu_variants import GpuNumbers, tile_variant
from nearfar.targets.variant import Variant, kernel

from .arch import max_dynamic_bytes
from .nvrtc import DEFAULT_ARCH
from .source import MAX_SHARED_BYTES
from .tuning import FEW_ROW_COUNTS, Tuning, few_shapes, tensor_core_shapes, tuning_for, vector_shape

ATTENTION = AttentionNumbers(
    max_shared_bytes=MAX_SHARED_BYTES,
    splits=(256,),
    decode_threads=((128, 256), (128, 128), (64, 64), (256, 256)),
    tiles=tuple(TileOptions(rows, 32) for rows in (32, 16, 8)),
    max_tiles=1,
    # A tile processes its sequences one after the other, so it suits long runs of rows.
    min_tile_rows=32,
)
NUMBERS = GpuNumbers(
    # Above this, tensor cores read the weights once for a tile of rows.
    max_vector_rows=2,
    # A kernel's parameters have no such limit.
    max_buffers=64,
    attention=ATTENTION,
    max_fused_rows=64,
)
TILE = TileShape(64, 64, 16, 256)


def variants_of(step: Step, context: Context, arch: str = DEFAULT_ARCH) -> tuple[Variant, ...]:
    """The variants of one step on GPUs of an architecture, in the order in which a runtime tries them."""
    numbers = replace(NUMBERS, attention=attention_numbers(arch))
    return gpu_variants.variants_of(step, context, numbers, partial(projection_variants, tuning=tuning_for(arch)))


def attention_numbers(arch: str = DEFAULT_ARCH) -> AttentionNumbers:
    return replace(
        ATTENTION, tensor_core_bytes=max_dynamic_bytes(arch), multiprocessors=tuning_for(arch).multiprocessors
    )


def projection_variants(facts: Projection, activation: str, tuning: Tuning) -> list[Variant]:
    """The kernels of one projection: 16-bit activations use tensor cores; float32 activations use float32
    throughout.
    """
    if activation == "float32" or not supports(facts):
        return [*vector_variants(facts, tuning), tile_variant(facts, TILE)]
    return [
        *(few_variants(facts, tuning) or vector_variants(facts, tuning)),
        *(
            tensor_core_variant(facts, activation, shape, batch)
            for shape, batch in tensor_core_shapes(facts, tuning, activation)
        ),
    ]


def vector_variants(facts: Projection, tuning: Tuning) -> list[Variant]:
    """Matrix-vector kernels whose copies are asynchronous."""
    return [
        Variant(
            (kernel(linear_async, facts=facts, shape=vector_shape(facts, tuning, x_rows)),),
            when=["<=", facts.batch, x_rows],
        )
        for x_rows in range(1, NUMBERS.max_vector_rows + 1)
    ]


def few_variants(facts: Projection, tuning: Tuning) -> list[Variant]:
    """Kernels for one, two and four rows on tensor cores. They replace `vector_variants`, because they execute half of
    the instructions; no GPU has timed them yet. None if the projection loads more than they compute, or does not fit.
    """
    shapes = [few_shapes(facts, tuning, x_rows) for x_rows in FEW_ROW_COUNTS]
    if not all(shapes[: NUMBERS.max_vector_rows]):
        return []
    return [
        Variant((kernel(linear_few, facts=facts, shape=best),), when=["<=", facts.batch, best.x_rows])
        for best, *_ in filter(None, shapes)
    ]


def tensor_core_variant(facts: Projection, activation: str, shape: MmaShape | WgmmaShape, batch: int | None) -> Variant:
    """A tensor-core kernel for up to ``batch`` rows, and the kernel that rounds its input."""
    before = kernel(
        rows16,
        batch=facts.batch,
        columns=facts.columns,
        x_dtype=facts.x_dtype,
        load=facts.load,
        dtype=activation,
        split=shape.splits > 1,
        swizzled=isinstance(shape, WgmmaShape),
    )
    facts = replace(facts, load=())
    when: Condition = None if batch is None else ["<=", facts.batch, batch]
    main = (
        kernel(linear_mma, facts=facts, shape=shape)
        if isinstance(shape, MmaShape)
        else kernel(linear_wgmma, facts=facts, shape=shape)
    )
    return Variant((before, main), when=when)
