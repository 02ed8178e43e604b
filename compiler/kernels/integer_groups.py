"""Integer products of groups of 32 columns: the codes of a group of weights with those of an input row that
`quantize_rows` has written. Their sums are exact.

WGSL multiplies four signed bytes by four signed ones, or unsigned ones by unsigned ones (`dot4I8Packed` and
`dot4U8Packed`); some GPUs have instructions for one of the two only. Unsigned codes of the input are 128 too large, so
128 times the sum of the weights' codes is subtracted. Signed codes of weights of 8 bits are 128 too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..quant.base import GROUP
from .builder import Array, KernelBuilder, Scalar, cast, extern, number, reinterpret, sum_of
from .packed import LoadedChunk, PackedMatrix, WeightFormat
from .quantize_rows import BIAS, SIGNS
from .vectors import lane_of

# What a device's shading language must have for these products (W3C, WGSL, 4.1.2).
FEATURE = "packed_4x8_integer_dot_product"
# The words of a group, each with four codes.
WORDS = GROUP // 4
ONES = 0x01010101


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A group of a weight row in registers, with the raw scales and offsets of its parts, each with the index of its
    number in the word.
    """

    codes: LoadedChunk
    scales: Sequence[tuple[Scalar, Scalar]]
    offsets: Sequence[tuple[Scalar, Scalar]]


@dataclass(frozen=True, slots=True)
class InputGroup:
    """A group of an input row: its words, its scale, and the sum of the codes of each part."""

    words: Sequence[Scalar]
    scale: Scalar
    sums: Sequence[Scalar]


class IntegerGroups:
    """The products of one format of weights. A group has a part for each scale of its 32 columns, one or two."""

    def __init__(self, kernel: KernelBuilder, weight: PackedMatrix, fmt: WeightFormat, *, signed: bool) -> None:
        self._kernel, self._weight, self._format, self._signed = kernel, weight, fmt, signed
        self.parts = fmt.scales_a_chunk
        self._words = WORDS // self.parts
        shift = BIAS if signed and fmt.bits == 8 else 0
        # What a code is too large by.
        self._zero = (0 if fmt.offset else fmt.zero) - shift

    def load(self, row: Scalar, chunk: Scalar) -> LoadedGroup:
        """A group of a weight row, from memory."""
        weight, fmt, kernel = self._weight, self._format, self._kernel
        codes = weight.load_chunk(row, chunk)
        if fmt.per_row:
            return LoadedGroup(codes, (), ())
        raw = [weight.raw_scale(row, chunk, half) for half in range(self.parts)]
        scales = [(kernel.let("scale_word", word), index) for word, index in raw]
        offsets = []
        if fmt.offset:
            words = [weight.raw_offset(row, chunk, half) for half in range(self.parts)]
            offsets = [(kernel.let("offset_word", word), index) for word, (_, index) in zip(words, raw, strict=True)]
        return LoadedGroup(codes, scales, offsets)

    def words(self, codes: LoadedChunk) -> list[Scalar]:
        """The words of a loaded group, as `dot` multiplies them."""
        words = self._weight.words_of_chunk(codes)
        if not self._signed or self._format.bits != 8:
            return words
        return [self._kernel.let("signed", word ^ number(SIGNS, "uint32")) for word in words]

    def numbers(self, raw: Sequence[tuple[Scalar, Scalar]]) -> list[Scalar]:
        """The scales or offsets of the parts of a loaded group."""
        return [self._kernel.let("number", self._weight.scale_in(word, index)) for word, index in raw]

    def of_part(self, words: Sequence[Scalar], part: int) -> Sequence[Scalar]:
        return words[part * self._words : (part + 1) * self._words]

    def dot(self, words: Sequence[Scalar], others: Sequence[Scalar]) -> Scalar:
        """The sum of the products of words, uint32 or int32."""
        name, dtype = ("dot4I8Packed", "int32") if self._signed else ("dot4U8Packed", "uint32")
        return sum_of(extern(dtype, name, one, other) for one, other in zip(words, others, strict=True))

    def correction(self, words: Sequence[Scalar]) -> Scalar | None:
        """What the products of these words of weights are too large by, because input codes are unsigned."""
        if self._signed:
            return None
        # The sum of the largest codes fits into a byte.
        size = max(1, 255 // ((1 << (self._format.bits or 8)) - 1))
        runs = [sum_of(words[start : start + size]) for start in range(0, len(words), size)]
        ones = number(ONES, "uint32")
        return sum_of(extern("uint32", "dot4U8Packed", run, ones) for run in runs) << number(7, "uint32")

    def exact(self, dot: Scalar, correction: Scalar | None) -> Scalar:
        """The sum of products as float32, which is exact: it is below 2^24."""
        return cast(dot if correction is None else reinterpret(dot - correction, "int32"), "float32")

    def of_zero(self, total: Scalar) -> Scalar | None:
        """The contribution of what weights' codes are too large by; ``total`` is the sum of a part's input codes."""
        return total * number(self._zero, "float32") if self._zero else None

    def weighted(self, value: Scalar, of_zero: Scalar | None, total: Scalar, factors: Sequence[Scalar]) -> Scalar:
        """A part's sum of weights times input codes. ``factors``: its scale, if rows have several, and its offset."""
        if of_zero is not None:
            value = value - of_zero
        if not factors:
            return value
        if len(factors) == 1:
            return value * factors[0]
        scale, offset = factors
        return value * scale + offset * total if self._format.offset == "b" else (value - offset * total) * scale


def input_group(
    kernel: KernelBuilder, codes: Array, factors: Array, row: Scalar, chunk: Scalar, parts: int
) -> InputGroup:
    """A group of a row from the buffers of `quantize_rows`, with the sums of ``parts`` parts."""
    loaded = [kernel.let("x_block", codes[row, chunk * 2 + half]) for half in range(2)]
    both = kernel.let("x_factors", factors[row, chunk])
    words = [lane_of(block, j) for block in loaded for j in range(4)]
    return InputGroup(words, lane_of(both, 0), [lane_of(both, 1 + part) for part in range(parts)])
