"""The first kernel of a projection: write the rows of its input, normalized if required, to scratch in the form that
the second kernel reads.

x (batch, K), the norm's weight and bias (K,) -> for quantized weights, integers: a code for every element, and one
scale for every block of columns (128 for 16-bit codes, 32 for 8-bit codes):
  codes (batch, groups + 1, words): words of two codes; the first two words hold columns 0 and 2, and 1 and 3, which is
    the order in which `integer_dot.py` unpacks weights. Levels that multiply bytes use words of four columns: for
    16-bit codes 8 words of high bytes, then 8 of low bytes; a code is high * 256 + low, both signed. The last
    group is not used: without it, rows of 2,048 columns would all compete for the same few lines of a cache
  scales (batch, blocks): largest magnitude / largest code; for a row with an RMS norm times 1 / rms, so that codes are
    of x * norm alone
  offsets (batch, groups) int32: the negated contribution of the code for 0 to a group's dot product; for weights with
    zero points or biases, the sum of a group's codes as float32. In groups of 16, there are two
For other weights: x (batch, K), each row padded with zeros to complete groups, and a vector that is not used.
For AMX: planes (batch / 16, groups, planes, 16, 16): each row as sums of bfloat16 (`bf16_planes.py`), two in a word, 16
rows and 32 columns together, as an instruction reads them.

A projection that keeps its LayerNorm has it as another result, normed (batch, K).

One task: one row. All levels of instruction sets compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from ...ir.expr import Expr
from ...ir.ops.parts import Part
from ...quant.base import GROUP
from ..builder import Array, Kernel, Scalar, cast, maximum, number, reinterpret, select
from ..vectors import join, ramp, splat, vector, with_lanes
from .bf16_planes import halves_of
from .builder import CpuKernelBuilder, Isa, each_vector, pieces
from .integer_dot import LOW_BITS, RowLayout
from .math import codes_of, fake_quantized, intrinsic, rounded
from .rows import LANES, norm_row, rms_factor, row_mean

# The columns of a row from a start on, as many as there are lanes.
Load: TypeAlias = Callable[[Scalar, int], Scalar]
# Up to this many rows the calling thread prepares alone, which takes less time than to wake the others.
ROWS_ALONE = 16
# The order of every four columns in pairs.
PAIRS = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
class InputRows:
    """A projection's input and its converted form: x (batch, columns) of ``dtype``, of which ``load`` is a norm, a
    rounding or nothing. If it is kept, the normalized rows are also the result load0 (batch, columns).

    ``layout`` is that of the codes that quantized weights multiply, whose code for 0 is ``zero``. None leaves the rows
    as floats, or makes them sums of ``planes`` bfloat16 if that is not 0. ``sums``: offsets are sums of codes.
    ``halves``: 16 columns have an offset. ``step``: elements are multiples of it, -128 to 127 times, which are exact as
    8-bit codes; None for others.
    """

    batch: Expr
    columns: int
    dtype: str
    load: Sequence[Part] = ()
    layout: RowLayout | None = None
    planes: int = 0
    zero: int = 0
    sums: bool = False
    halves: bool = False
    step: float | None = None

    @property
    def norm(self) -> Part | None:
        return self.load[0] if self.load and self.load[0]["op"] == "rms_norm" else None


def prepare_rows(name: str, *, isa: Isa, rows: InputRows) -> Kernel:  # noqa: ARG001
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (rows.batch, rows.columns), rows.dtype)
    norm = None if rows.norm is None else NormArguments(kernel, rows, rows.norm)
    work: FloatRows | IntegerRows | PlaneRows
    if rows.planes:
        work = PlaneRows(kernel, rows, x, norm)
    elif rows.layout is None:
        work = FloatRows(kernel, rows, x, norm)
    else:
        work = IntegerRows(kernel, rows, rows.layout, x, norm)
    with kernel.when(kernel.size(rows.batch) <= ROWS_ALONE), kernel.loop("row", kernel.size(rows.batch)) as row:
        work.prepare(row)
    with kernel.when(kernel.size(rows.batch) > ROWS_ALONE), kernel.tasks("row", rows.batch) as row:
        work.prepare(row)
    return kernel.finish()


def num_scales(columns: int, layout: RowLayout) -> int:
    return -(-columns // (GROUP * layout.scale_groups))


class NormArguments:
    """The buffers of a norm ``part``: its weights, its ``bias`` if it has one, and the array in which its results are
    ``kept``, if they are.
    """

    def __init__(self, kernel: CpuKernelBuilder, rows: InputRows, part: Part) -> None:
        self.part, self._first = part, (part["row"] or 0) * rows.columns
        self._weight = kernel.buffer("load0_weight", (self._first + rows.columns,), "float32")
        self.bias = kernel.buffer("load0_bias", (rows.columns,), "float32") if part["bias"] else None
        shape = rows.batch, rows.columns
        self.kept = kernel.buffer("load0", shape, "float32", write=True) if part["keep"] else None

    def at(self, start: Scalar, lanes: int) -> Scalar:
        return self._weight[ramp(self._first + start, lanes)]


class ConvertedRows:
    """The base of rows that are not stored as floats."""

    def __init__(self, kernel: CpuKernelBuilder, facts: InputRows, x: Array, norm: NormArguments | None) -> None:
        self._kernel, self._facts, self._x, self._norm = kernel, facts, x, norm

    def _normed(self, row: Scalar) -> tuple[Load, Scalar | None]:
        """Columns of a row, normalized except for a factor, and that factor if there is one."""
        kernel, facts, norm = self._kernel, self._facts, self._norm

        def stored(start: Scalar, lanes: int) -> Scalar:
            return cast(self._x[row, ramp(start, lanes)], with_lanes("float32", lanes))

        if norm is None:
            return stored, None
        eps = norm.part["eps"]
        if not norm.part["centered"]:
            factor = rms_factor(kernel, stored, facts.columns, eps)
            return lambda start, lanes: stored(start, lanes) * norm.at(start, lanes), factor
        mean = row_mean(kernel, stored, facts.columns)

        def deviation(start: Scalar, lanes: int) -> Scalar:
            return stored(start, lanes) - splat(mean, lanes)

        inverse = rms_factor(kernel, deviation, facts.columns, eps)

        def complete(start: Scalar, lanes: int) -> Scalar:
            value = deviation(start, lanes) * splat(inverse, lanes) * norm.at(start, lanes)
            if norm.bias is not None:
                value = value + norm.bias[ramp(start, lanes)]
            if norm.kept is not None:
                value = kernel.let("kept", value)
                norm.kept[row, ramp(start, lanes)] = value
            return value

        return complete, None

    def _padded(self, normed: Load, start: int) -> Scalar:
        """A vector of columns, zeros beyond the last."""
        if start + LANES <= self._facts.columns:
            return normed(start, LANES)
        columns = [
            normed(start + i, 1) if start + i < self._facts.columns else number(0, "float32") for i in range(LANES)
        ]
        return vector(*columns)


class IntegerRows(ConvertedRows):
    """Rows as codes and scales: codes are rounded to nearest, ties to even."""

    def __init__(
        self, kernel: CpuKernelBuilder, facts: InputRows, layout: RowLayout, x: Array, norm: NormArguments | None
    ) -> None:
        super().__init__(kernel, facts, x, norm)
        self._layout = layout
        groups = -(-facts.columns // GROUP)
        self._codes = kernel.scratch("codes", (facts.batch, groups + 1, layout.words), "float32", write=True)
        self._scales = kernel.scratch("scales", (facts.batch, num_scales(facts.columns, layout)), "float32", write=True)
        offsets = groups * (2 if facts.halves else 1)
        self._offsets = kernel.scratch("offsets", (facts.batch, offsets), "float32", write=True)

    def prepare(self, row: Scalar) -> None:
        facts, block = self._facts, GROUP * self._layout.scale_groups
        normed, factor = self._normed(row)
        whole = facts.columns // block
        with self._kernel.loop("block", whole) as number_of:
            parts = [normed(number_of * block + start, LANES) for start in range(0, block, LANES)]
            self._quantize(row, number_of, parts, factor)
        if facts.columns % block:
            starts = range(whole * block, -(-facts.columns // GROUP) * GROUP, LANES)
            self._quantize(row, whole, [self._padded(normed, start) for start in starts], factor)

    def _quantize(self, row: Scalar, block: Scalar | int, parts: list[Scalar], factor: Scalar | None) -> None:
        """A block of columns that share a scale."""
        kernel, words = self._kernel, with_lanes("uint32", LANES)
        parts = [kernel.let("x", part) for part in parts]
        # Magnitudes are in the order of their bits; NaN is above all of them, so the scale becomes NaN, and so does
        # every sum.
        bits = reduce(maximum, [reinterpret(part, words) & number(0x7FFFFFFF, words) for part in parts])
        highest = kernel.let("highest", intrinsic("uint32", "vector.reduce.umax", bits))
        largest = kernel.let("largest", reinterpret(highest, "float32"))
        if self._facts.step is not None:
            scale = select(largest < number(float("inf"), "float32"), number(self._facts.step, "float32"), largest)
            self._scales[row, block] = scale
            self._store(row, block, [codes_of(part, self._facts.step) for part in parts])
            return
        inverse = kernel.let(
            "inverse", select(largest > 0, number(self._layout.largest, "float32") / largest, number(0, "float32"))
        )
        scale = largest * number(1 / self._layout.largest, "float32")
        self._scales[row, block] = scale if factor is None else scale * factor
        self._store(row, block, [rounded(part * splat(inverse, LANES)) for part in parts])

    def _store(self, row: Scalar, block: Scalar | int, parts: list[Scalar]) -> None:
        """Store the codes of a block, which are rounded floats, and their groups' offsets."""
        kernel, integers = self._kernel, with_lanes("int32", LANES)
        for index in range(len(parts) * LANES // GROUP):
            vectors = parts[index * GROUP // LANES : (index + 1) * GROUP // LANES]
            codes = [kernel.let("codes", cast(part, integers)) for part in vectors]
            group = block * self._layout.scale_groups + index
            (self._store_bytes if self._layout.as_bytes else self._store_pairs)(row, group, codes)
            if self._facts.halves:
                self._store_offset(row, group * 2, codes[0])
                self._store_offset(row, group * 2 + 1, codes[1])
            else:
                self._store_offset(row, group, codes[0] + codes[1])

    def _store_offset(self, row: Scalar, index: Scalar, codes: Scalar) -> None:
        total = intrinsic("int32", "vector.reduce.add", codes)
        offset = cast(total, "float32") if self._facts.sums else reinterpret(total * -self._facts.zero, "float32")
        self._offsets[row, index] = offset

    def _store_pairs(self, row: Scalar, group: Scalar, codes: list[Scalar]) -> None:
        order = [quad + column for quad in range(0, GROUP, 4) for column in PAIRS]
        pairs = join(*(cast(each, with_lanes("int16", LANES)) for each in codes), lanes=order)
        self._codes[row, group, ramp(0, GROUP // 2)] = reinterpret(pairs, with_lanes("float32", GROUP // 2))

    def _store_bytes(self, row: Scalar, group: Scalar, codes: list[Scalar]) -> None:
        integers, quads = with_lanes("int32", LANES), LANES // 4
        for index, each in enumerate(codes):
            stored_bytes = [each]
            if self._layout.parts == 2:
                high = self._kernel.let(
                    "high", (each + number(1 << (LOW_BITS - 1), integers)) >> number(LOW_BITS, integers)
                )
                stored_bytes = [high, each - (high << number(LOW_BITS, integers))]
            for byte, values in enumerate(stored_bytes):
                stored = reinterpret(cast(values, with_lanes("int8", LANES)), with_lanes("float32", quads))
                self._codes[row, group, ramp(byte * (GROUP // 4) + index * quads, quads)] = stored


class PlaneRows(ConvertedRows):
    """Rows as sums of bfloat16."""

    def __init__(self, kernel: CpuKernelBuilder, facts: InputRows, x: Array, norm: NormArguments | None) -> None:
        super().__init__(kernel, facts, x, norm)
        groups = -(-facts.columns // GROUP)
        blocks: Expr = ["mul", ["ceildiv", facts.batch, 2 * LANES], 2]
        shape = (blocks, groups, facts.planes, LANES, GROUP // 2)
        self._planes = kernel.scratch("planes", shape, "float32", write=True)

    def prepare(self, row: Scalar) -> None:
        kernel, columns = self._kernel, self._facts.columns
        normed, factor = self._normed(row)
        place = kernel.split(row, LANES, ("row_block", "row_of_block"))
        with kernel.loop("group", columns // GROUP) as group:
            parts = [normed(group * GROUP + start, LANES) for start in range(0, GROUP, LANES)]
            self._store(place, group, parts, factor)
        if columns % GROUP:
            starts = range(columns // GROUP * GROUP, -(-columns // GROUP) * GROUP, LANES)
            self._store(place, columns // GROUP, [self._padded(normed, start) for start in starts], factor)

    def _store(
        self, place: tuple[Scalar, Scalar], group: Scalar | int, parts: list[Scalar], factor: Scalar | None
    ) -> None:
        kernel, (row_block, row_of_block) = self._kernel, place
        for index, part in enumerate(parts):
            value = kernel.let("x", part if factor is None else part * splat(factor, LANES))
            for plane, halves in enumerate(halves_of(kernel, value, self._facts.planes)):
                words = ramp(index * LANES // 2, LANES // 2)
                self._planes[row_block, group, plane, row_of_block, words] = reinterpret(
                    halves, with_lanes("float32", LANES // 2)
                )


class FloatRows:
    """Rows as they are, or normed."""

    def __init__(self, kernel: CpuKernelBuilder, facts: InputRows, x: Array, norm: NormArguments | None) -> None:
        self._kernel, self._facts, self._x, self._norm = kernel, facts, x, norm
        self._padded = -(-facts.columns // GROUP) * GROUP
        self._rows = kernel.scratch("x", (facts.batch, self._padded + LANES), "float32", write=True)

    def prepare(self, row: Scalar) -> None:
        kernel, facts = self._kernel, self._facts
        for start, lanes in pieces(self._padded - facts.columns, LANES):
            self._rows[row, ramp(facts.columns + start, lanes)] = number(0, with_lanes("float32", lanes))
        if (norm := self._norm) is not None:
            norm_row(
                kernel, self._x, row, norm.at, facts.columns, norm.part, self._rows, bias=norm.bias, copy=norm.kept
            )
        else:

            def copy(start: Scalar, lanes: int) -> None:
                x = cast(self._x[row, ramp(start, lanes)], with_lanes("float32", lanes))
                self._rows[row, ramp(start, lanes)] = x if facts.step is None else fake_quantized(kernel, x, facts.step)

            each_vector(kernel, facts.columns, LANES, copy)
