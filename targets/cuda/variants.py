"""The variants of every op on CUDA: its numbers, and the rows of projections.

Sizes are rules of thumb from publications on other kernels: none has been timed yet.
"""

from __future__ import annotations

from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.cuda.linear_mma import MmaShape, linear_mma, supports
from nearfar.compiler.kernels.cuda.rows16 import rows16
from nearfar.compiler.kernels.linear_tile import TileShape
from nearfar.compiler.kernels.projection import Projection
from nearfar.targets import gpu_variants
from nearfar.targets.context import Context
from nearfar.targets.gpu_attention import AttentionNumbers
from nearfar.targets.gpu_variants import GpuNumbers, tile_row, vector_row, vector_shape
from nearfar.targets.variant import Variant, kernel

from .source import MAX_SHARED_BYTES

ATTENTION = AttentionNumbers(
    max_shared_bytes=MAX_SHARED_BYTES,
    splits=(256,),
    decode_threads=((128, 256), (128, 128), (64, 64), (256, 256)),
    tiles=((32, 32), (16, 32), (8, 32)),
    max_tiles=1,
    # A tile processes its sequences one after the other, so it suits long runs of rows.
    min_tile_rows=32,
    tensor_cores=True,
)
NUMBERS = GpuNumbers(
    # Above this, tensor cores read the weights once for 16 or 64 rows.
    max_vector_rows=2,
    min_tall_rows=32768,
    # A kernel's parameters have no such limit.
    max_buffers=64,
    attention=ATTENTION,
)
# Up to this many rows, use workgroups with few outputs whose warps share the columns, so that every multiprocessor has
# one.
MAX_NARROW_ROWS = 32
TILE = TileShape(64, 64, 16, 256)


def variants_of(step: Step, context: Context) -> tuple[Variant, ...]:
    """The rows of one step, in the order in which a runtime tries them."""
    return gpu_variants.variants_of(step, context, NUMBERS, projection_rows)


def projection_rows(facts: Projection, activation: str) -> list[Variant]:
    """The kernels of one projection: 16-bit activations use tensor cores; float32 activations use float32
    throughout.
    """
    vector = vector_row(facts, vector_shape(facts, NUMBERS), NUMBERS)
    if activation == "float32" or not supports(facts):
        return [vector, tile_row(facts, TILE)]
    before = kernel(
        rows16,
        batch=facts.batch,
        columns=facts.columns,
        x_dtype=facts.x_dtype,
        norm_eps=facts.norm_eps,
        dtype=activation,
        x_step=facts.x_step,
    )
    return [
        vector,
        *(
            Variant((before, kernel(linear_mma, facts=facts, shape=shape)), when=when)
            for shape, when in mma_shapes(facts, activation)
        ),
    ]


def mma_shapes(facts: Projection, dtype: str) -> list[tuple[MmaShape, Condition]]:
    """Narrow workgroups for few rows, wide ones for many. The registers for a chunk grow with the weights' bits."""
    narrow = MmaShape(16, 1 if facts.gated else 2, 1, 4, dtype)
    heavy = facts.gated or facts.weight.kind == "f16"
    wide = MmaShape(64, 2 if heavy else 4, 4, 1, dtype)
    return [(narrow, ["<=", facts.batch, MAX_NARROW_ROWS]), (wide, None)]
