"""The first kernel of a projection: the rows of its input, normed where they are to be, in scratch as the second one wants them.

x (batch, K), norm (K,) -> for quantized weights, integers: a code for every element, one scale for every group of 32 columns.
    codes (batch, groups + 1, 2, 8) words of four signed bytes: an element is (high * 128 + low) * scale, the high parts lie first. The last
        group is not used: without it, rows of 2,048 columns would all compete for the same few lines of a cache
    scales (batch, groups), largest magnitude / 127 / 128; of a normed row times 1 / rms, so that codes are of x * norm alone
    offsets (batch, groups) int32: what the code that means 0 adds to a group's dot product, negated
For other weights: x (batch, K), with zeros behind each row up to whole groups, and a vector that is not used.

One task: one row. All levels of instruction sets compute the same bits.
"""

from __future__ import annotations

from ...quant.base import GROUP
from ..builder import Array, Kernel, Scalar, cast, maximum, number, reinterpret, select, splat, vector
from ..projection import Projection
from .builder import CpuKernelBuilder, Isa, of, pieces, ramp
from .math import intrinsic, rounded
from .rows import each_vector, norm_row, rms_factor

# Up to this many rows the calling thread prepares alone, which takes less time than to wake the others.
ROWS_ALONE = 16
# Elements of a vector, whatever the level has, so that all levels sum squares in the same order.
LANES = 16
WIDE = Isa("any", LANES, 0)
# Of two signed bytes the low one is from -64 to 63. One byte alone, as is usual, takes half the time of large batches; but it was 1.4 % of
# the largest logit off on the demo model, where the self-test allows 0.1 %, and changed tokens.
LOW_BITS = 7
LARGEST = 127 << LOW_BITS


def prepare_rows(name: str, isa: Isa, facts: Projection) -> Kernel:  # noqa: ARG001
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", (facts.batch, facts.columns), facts.x_dtype)
    norm = kernel.buffer("norm", (facts.columns,), "float32") if facts.norm_eps is not None else None
    rows = IntegerRows(kernel, facts, x, norm) if facts.weight.scale_dtype else FloatRows(kernel, facts, x, norm)
    with kernel.when(kernel.size(facts.batch) <= ROWS_ALONE), kernel.loop("row", kernel.size(facts.batch)) as row:
        rows.prepare(row)
    with kernel.when(kernel.size(facts.batch) > ROWS_ALONE), kernel.tasks("row", facts.batch) as row:
        rows.prepare(row)
    return kernel.finish()


def prepared_name(facts: Projection) -> str:
    """A name that all projections share whose input is prepared alike."""
    kind = facts.weight.kind if facts.weight.scale_dtype else "float"
    return f"rows_{kind}_{facts.columns}_{facts.batch.lower()}" + ("_norm" if facts.norm_eps is not None else "") + f"_{facts.x_dtype}"


class IntegerRows:
    """Rows as codes and scales: codes are rounded to nearest, ties to even."""

    def __init__(self, kernel: CpuKernelBuilder, facts: Projection, x: Array, norm: Array | None) -> None:
        self._kernel, self._facts, self._x, self._norm = kernel, facts, x, norm
        groups = -(-facts.columns // GROUP)
        self._codes = kernel.scratch("codes", (facts.batch, groups + 1, GROUP // 2), "float32", write=True)
        self._scales = kernel.scratch("scales", (facts.batch, groups), "float32", write=True)
        self._offsets = kernel.scratch("offsets", (facts.batch, groups), "float32", write=True)

    def prepare(self, row: Scalar) -> None:
        kernel, facts = self._kernel, self._facts
        factor = None
        if facts.norm_eps is not None:
            factor = rms_factor(kernel, WIDE, lambda start, lanes: self._load(row, start, lanes), facts.columns, facts.norm_eps)
        whole = facts.columns // GROUP
        with kernel.loop("group", whole) as group:
            self._quantize(row, group, [self._normed(row, group * GROUP + start, LANES) for start in range(0, GROUP, LANES)], factor)
        if facts.columns % GROUP:
            self._quantize(row, whole, [self._padded(row, whole * GROUP + start) for start in range(0, GROUP, LANES)], factor)

    def _load(self, row: Scalar, start: Scalar, lanes: int) -> Scalar:
        return cast(self._x[row, ramp(start, lanes)], of("float32", lanes))

    def _normed(self, row: Scalar, start: Scalar, lanes: int) -> Scalar:
        """Columns of a row times the norm's weight."""
        x = self._load(row, start, lanes)
        return x if self._norm is None else x * self._norm[ramp(start, lanes)]

    def _padded(self, row: Scalar, start: int) -> Scalar:
        """A vector of columns, zeros beyond the last."""
        columns = [self._normed(row, start + i, 1) if start + i < self._facts.columns else number(0, "float32") for i in range(LANES)]
        return vector(*columns)

    def _quantize(self, row: Scalar, group: Scalar | int, parts: list[Scalar], factor: Scalar | None) -> None:
        kernel, words, integers = self._kernel, of("uint32", LANES), of("int32", LANES)
        parts = [kernel.let("x", part) for part in parts]
        # Magnitudes are in the order of their bits; NaN is above all of them, so the scale becomes NaN, and so does every sum.
        bits = [reinterpret(part, words) & number(0x7FFFFFFF, words) for part in parts]
        highest = kernel.let("highest", intrinsic("uint32", "vector.reduce.umax", maximum(*bits)))
        largest = kernel.let("largest", reinterpret(highest, "float32"))
        inverse = kernel.let("inverse", select(largest > 0, number(LARGEST, "float32") / largest, number(0, "float32")))
        all_codes = []
        for place, part in enumerate(parts):
            codes = kernel.let("codes", cast(rounded(part * splat(inverse, LANES)), integers))
            high = kernel.let("high", (codes + number(1 << (LOW_BITS - 1), integers)) >> number(LOW_BITS, integers))
            for byte, values in enumerate((high, codes - (high << number(LOW_BITS, integers)))):
                stored = reinterpret(cast(values, of("int8", LANES)), of("float32", LANES // 4))
                self._codes[row, group, ramp(byte * (GROUP // 4) + place * (LANES // 4), LANES // 4)] = stored
            all_codes.append(codes)
        scale = largest * number(1 / LARGEST, "float32")
        self._scales[row, group] = scale if factor is None else scale * factor
        total = intrinsic("int32", "vector.reduce.add", all_codes[0] + all_codes[1])
        self._offsets[row, group] = reinterpret(total * -self._facts.weight.zero, "float32")


class FloatRows:
    """Rows as they are, or normed."""

    def __init__(self, kernel: CpuKernelBuilder, facts: Projection, x: Array, norm: Array | None) -> None:
        self._kernel, self._facts, self._x, self._norm = kernel, facts, x, norm
        self._padded = -(-facts.columns // GROUP) * GROUP
        self._rows = kernel.scratch("x", (facts.batch, self._padded + LANES), "float32", write=True)

    def prepare(self, row: Scalar) -> None:
        kernel, facts = self._kernel, self._facts
        for start, lanes in pieces(self._padded - facts.columns, LANES):
            self._rows[row, ramp(facts.columns + start, lanes)] = number(0, of("float32", lanes))
        if self._norm is not None and facts.norm_eps is not None:
            norm_row(kernel, WIDE, self._x, row, self._norm, facts.columns, facts.norm_eps, self._rows)
        else:

            def copy(start: Scalar, lanes: int) -> None:
                self._rows[row, ramp(start, lanes)] = cast(self._x[row, ramp(start, lanes)], of("float32", lanes))

            each_vector(kernel, facts.columns, LANES, copy)
