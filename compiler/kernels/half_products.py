"""Products in float16 of codes and inputs, and of matrix-vector kernels the input's tile and the dot products of blocks
with it.

No sum overflows, whatever the input: parts of a row are scaled by a power of two so that even their largest element
times the largest code, in every column of a sum, stays below float16's largest number. Sums of at most 32 products are
float16, and everything after them is float32. An element loses digits if it is 2^17 times smaller than the largest one
of its part or less.
"""

from __future__ import annotations

from typing import Any

from .builder import Array, KernelBuilder, Scalar, cast, magnitude, maximum, number, reinterpret
from .packed import HALF_ORDER, WeightFormat
from .projection import ProjectionArguments
from .vector_parts import InputTile, LoadedBlocks
from .vectors import largest_of_lanes, splat, sum_lanes, take_lanes

# Half of float16's largest power of two, because rounding may lift every term of a sum.
LARGEST_SUM = 1 << 15


def multiplies_halves(fmt: WeightFormat) -> bool:
    """Whether kernels multiply weights of a format in float16: integers that are centred, so that they are small."""
    return fmt.bits is not None and not fmt.offset


def largest_exponent(fmt: WeightFormat, terms: int) -> int:
    """The exponent k such that sums of ``terms`` products stay within `LARGEST_SUM` for inputs up to 2^k."""
    return (LARGEST_SUM // (terms * fmt.zero)).bit_length() - 1


def factor_and_unit(largest: Scalar, exponent: int) -> tuple[Scalar, Scalar]:
    """Powers of two: the factor that lifts or lowers the magnitude ``largest`` to between 2^(exponent - 1) and
    2^exponent, and its reciprocal. Both are float32 numbers, with as many lanes as ``largest``, whose bits are used
    twice.
    """
    dtype = str(largest.ty).replace("float", "uint")
    # A magnitude below 2^(exponent - 127) needs a larger factor than float32 has, and becomes almost 0.
    biased = maximum(reinterpret(largest, dtype) >> number(23, dtype), number(exponent, dtype))
    return power_of_two(number(253 + exponent, dtype) - biased), power_of_two(biased - number(exponent - 1, dtype))


def power_of_two(biased_exponent: Scalar) -> Scalar:
    """2^(biased_exponent - 127)."""
    dtype = str(biased_exponent.ty)
    return reinterpret(biased_exponent << number(23, dtype), dtype.replace("uint", "float"))


class HalfTile(InputTile):
    """The tile as float16; each block times the power of two that `unit` takes back."""

    dtype = "float16"

    def __init__(self, kernel: KernelBuilder, arguments: ProjectionArguments, *rest: Any) -> None:
        super().__init__(kernel, arguments, *rest)
        # Some threads share a block, and each of them has quads of one block only.
        self._own = max(self._blocks * self.quads // self._threads, 1)
        self._parts = self.quads // self._own
        assert self._parts * self._own == self.quads, "a block is not that of whole threads"
        self._held = kernel.local("x_held", self._own, "float32x4")
        self._most = kernel.local("x_most", 1, "float32x4")
        self._largest = kernel.shared("x_largest", (self._blocks, self._parts), "float32")
        self._units = kernel.shared("x_units", (self._blocks,), "float32")
        self._factor = kernel.local("x_factor", 1, "float32")

    def fill(self, step: Scalar) -> None:
        """Read the step-th tile of the row, all threads together, after they have used the one before. The caller adds
        the barrier after it.
        """
        kernel, count = self._kernel, self._blocks * self.quads
        first = self._thread * self._own
        block, part = first // self.quads, self._thread % self._parts
        is_busy = True if count == self._threads * self._own else first < count
        with kernel.when(is_busy):
            for i in range(self._own):
                self._read(step * count + first + i)
                self._held[i] = self._quad[0]
                size = magnitude(self._held[i])
                self._most[0] = size if i == 0 else maximum(self._most[0], size)
            self._largest[block, part] = largest_of_lanes(self._most[0])
        kernel.barrier()
        with kernel.when(is_busy):
            self._factor[0] = self._largest[block, 0]
            for each in range(1, self._parts):
                self._factor[0] = maximum(self._factor[0], self._largest[block, each])
            # A lane of a sum has a term of each quad.
            exponent = largest_exponent(self._arguments.facts.weight, self.quads)
            factor, unit = factor_and_unit(self._factor[0], exponent)
            with kernel.when(part == 0):
                self._units[block] = unit
            self._factor[0] = factor
            for i in range(self._own):
                quad = take_lanes(self._held[i], HALF_ORDER) * splat(self._factor[0])
                self._tile[first % self.quads + i, block] = cast(quad, "float16x4")

    def unit(self, block: Scalar) -> Scalar:
        """The factor of the sums of a block's products."""
        return self._units[block]


def half_products(
    kernel: KernelBuilder,
    arguments: ProjectionArguments,
    tile: HalfTile,
    block_index: Scalar,
    weights: LoadedBlocks,
    sums: Array,
) -> None:
    """Add to each row's sum the dot product of its loaded block with the block of the input at ``block_index``."""
    fmt, weight = arguments.facts.weight, arguments.weight
    parts = fmt.scales_a_block if weights.scales is not None else 1
    quads = tile.quads // parts
    x = kernel.local("x_quads", tile.quads, "float16x4")
    dot = kernel.local("dot", 1, "float16x4")
    wide = kernel.local("wide_dot", 1, "float32x4")
    unit = kernel.local("unit", 1, "float32")
    for j in range(tile.quads):
        x[j] = tile.quad(block_index, j)
    unit[0] = tile.unit(block_index)
    for i in range(weights.words.buffer.shape[0].value):
        high = [] if weights.high is None else [weights.high[i * fmt.high_bits + j] for j in range(fmt.high_bits)]
        for j, codes in enumerate(weight.half_quads(weights.words[i], high)):
            product = codes * x[j]
            dot[0] = product if j % quads == 0 else dot[0] + product
            if j % quads == quads - 1:
                wide[0] = cast(dot[0], "float32x4")
                factor = unit[0]
                if weights.scales is not None:
                    place = i * parts + j // quads
                    factor = factor * weight.scale_in(weights.scales[place], weights.scale_indices[place])
                sums[i] = sums[i] + sum_lanes(wide[0]) * factor
