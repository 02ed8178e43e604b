"""Dot products of the integer codes of weights and activations, with the instructions of a CPU level.

Codes of weights are unsigned and have 2 to 8 bits; codes of activations are signed and have 16 or 8 bits. Products
are summed exactly, so every level gives the same integers. For 16-bit codes, x86-64 multiplies two pairs in every
32-bit lane. This needs as many instructions as multiplying bytes twice, for the high and the low part of an
activation, but half as many sums. Arm's instructions multiply bytes. For 8-bit codes, a lane has four pairs, unless the
level's byte instruction is missing or could overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...quant.base import GROUP
from ..builder import KernelBuilder, Scalar, cast, number, reinterpret
from ..packed import WeightFormat
from ..vectors import splat
from .builder import Isa
from .math import intrinsic

# The number of bits of the low byte, if an activation is split into two signed bytes.
LOW_BITS = 8


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The layout of a prepared row with codes of 16 or 8 ``bits``: four columns per word with ``as_bytes``, otherwise
    two.
    """

    bits: int
    as_bytes: bool

    @property
    def parts(self) -> int:
        """The number of activation words per operand: one, or a high and a low one."""
        return 2 if self.as_bytes and self.bits == 16 else 1

    @property
    def words(self) -> int:
        """The number of 32-bit words of a group."""
        return self.parts * GROUP // (4 if self.as_bytes else 2)

    @property
    def largest(self) -> int:
        """The largest code. With 16 bits, it is reduced so that the high one of two signed bytes stays below 128."""
        return 127 << LOW_BITS if self.bits == 16 else 127

    @property
    def scale_groups(self) -> int:
        """The number of groups of columns that share a scale."""
        return 4 if self.bits == 16 else 1


def row_layout(level: str, fmt: WeightFormat, bits: int) -> RowLayout:
    """The fastest exact multiplication of a level. AVX2's products of byte pairs could overflow with 8-bit codes."""
    of_8_bits = level == "vnni" or (level in ("avx512", "avx2") and fmt.kind != "q8")
    return RowLayout(bits, as_bytes=level == "dotprod" or (bits == 8 and of_8_bits))


class IntegerDot(Protocol):
    """Sums of products. `start`, then `add` for each word of activations, and `finish` for the sum as a vector of
    int32.
    """

    def start(self, offset: Scalar) -> Scalar:
        """The initial sum, which includes ``offset``, a vector of int32."""

    def operands(self, word: Scalar, high: Scalar | None, first: int) -> list[Scalar]:
        """The operands of a stored vector of words, in the order of the activations; see `prepare_rows.py`. ``high``:
        the vector of words with the codes' high bits, and ``first`` their place in it, counted in quads.
        """

    def add(self, total: Scalar, operand: Scalar, x: Scalar) -> Scalar:
        """Add products with the activations in the word ``x``."""

    def finish(self, total: Scalar, offset: Scalar) -> Scalar:
        """The complete sum; ``offset`` is that of `start`."""


def integer_dot(kernel: KernelBuilder, isa: Isa, fmt: WeightFormat, bits: int) -> IntegerDot:
    """The implementation of a level."""
    ways: dict[str, Callable[[KernelBuilder, Isa, WeightFormat], IntegerDot]]
    if row_layout(isa.name, fmt, bits).as_bytes:
        pairs = PairByteDot if fmt.bits in (2, 3, 4) else WidePairByteDot
        ways = {"vnni": VnniByteDot, "avx512": pairs, "avx2": pairs, "dotprod": SignedByteDot}
    else:
        ways = {"vnni": VnniDot, "avx512": PairDot, "avx2": PairDot}
    return ways.get(isa.name, PlainDot)(kernel, isa, fmt)


def zero_of(isa: Isa, fmt: WeightFormat) -> int:
    """The code that means 0 for a level: `SignedByteDot` makes 8-bit codes signed."""
    return 0 if isa.name == "dotprod" and fmt.kind == "q8" else fmt.zero


class Dot:
    """The base of implementations whose operands are two 16-bit codes per lane."""

    def __init__(self, kernel: KernelBuilder, isa: Isa, fmt: WeightFormat) -> None:
        assert fmt.bits is not None
        self._kernel, self._lanes, self._bits, self._high = kernel, isa.lanes, fmt.low_bits, fmt.high_bits
        self._word, self._integer, self._short = f"uint32x{isa.lanes}", f"int32x{isa.lanes}", f"int16x{2 * isa.lanes}"

    def start(self, offset: Scalar) -> Scalar:
        return offset

    def finish(self, total: Scalar, offset: Scalar) -> Scalar:  # noqa: ARG002
        return total

    def operands(self, word: Scalar, high: Scalar | None, first: int) -> list[Scalar]:
        loaded = self._kernel.let("word", word)
        quads = range(8 // self._bits)
        return [self._codes(loaded, high, first, quad, odd, 0x00010001) for quad in quads for odd in (0, 8)]

    def _codes(self, word: Scalar, high: Scalar | None, first: int, quad: int, odd: int, ones: int) -> Scalar:
        """The codes of a quad, one in the lowest bits of each part of a lane that has a 1 in ``ones``."""
        codes = self._field(word, quad * self._bits + odd, ((1 << self._bits) - 1) * ones)
        if high is not None:
            codes = codes | self._field(
                high, (first + quad) * self._high + odd, ((1 << self._high) - 1) * ones
            ) << number(self._bits, self._word)
        return self._kernel.let("codes", codes)

    def _field(self, word: Scalar, bits: int, mask: int) -> Scalar:
        return (word >> number(bits, self._word) if bits else word) & number(mask, self._word)

    def _everywhere(self, x: Scalar, dtype: str) -> Scalar:
        """The word ``x`` in every lane."""
        return reinterpret(splat(x, self._lanes), dtype)


class VnniDot(Dot):
    """AVX-512 VNNI: one instruction multiplies 32 pairs and adds two products to each of 16 lanes."""

    def add(self, total: Scalar, operand: Scalar, x: Scalar) -> Scalar:
        arguments = total, reinterpret(operand, self._short), self._everywhere(x, self._short)
        return self._kernel.let("dot", intrinsic(self._integer, "x86.avx512.vpdpwssd.512", *arguments))


class PairDot(Dot):
    """AVX2 and AVX-512 without VNNI: the same in two instructions."""

    def add(self, total: Scalar, operand: Scalar, x: Scalar) -> Scalar:
        name = {8: "x86.avx2.pmadd.wd", 16: "x86.avx512.pmaddw.d.512"}[self._lanes]
        products = intrinsic(self._integer, name, reinterpret(operand, self._short), self._everywhere(x, self._short))
        return self._kernel.let("dot", total + products)


class ByteDot(Dot):
    """The base of implementations whose operands are four codes per lane."""

    def operands(self, word: Scalar, high: Scalar | None, first: int) -> list[Scalar]:
        loaded = self._kernel.let("word", word)
        if self._bits == 8:
            return [loaded]
        return [self._codes(loaded, high, first, quad, 0, 0x01010101) for quad in range(8 // self._bits)]

    def _bytes(self, operand: Scalar, x: Scalar) -> tuple[Scalar, Scalar]:
        dtype = f"int8x{4 * self._lanes}"
        return reinterpret(operand, dtype), self._everywhere(x, dtype)


class VnniByteDot(ByteDot):
    """AVX-512 VNNI: one instruction multiplies 64 unsigned bytes by signed ones and adds four products to each of 16
    lanes.
    """

    def add(self, total: Scalar, operand: Scalar, x: Scalar) -> Scalar:
        return self._kernel.let(
            "dot", intrinsic(self._integer, "x86.avx512.vpdpbusd.512", total, *self._bytes(operand, x))
        )


class PairByteDot(ByteDot):
    """AVX2 and AVX-512 without VNNI, for codes of 2 to 4 bits: two 16-bit sums per lane, which are added at the end.

    A code times 127 is at most 1,905. A group adds 16 of these to a sum, at most 30,480.
    """

    def start(self, offset: Scalar) -> Scalar:  # noqa: ARG002
        return number(0, self._short)

    def add(self, total: Scalar, operand: Scalar, x: Scalar) -> Scalar:
        name = {8: "x86.avx2.pmadd.ub.sw", 16: "x86.avx512.pmaddubs.w.512"}[self._lanes]
        return self._kernel.let("dot", total + intrinsic(self._short, name, *self._bytes(operand, x)))

    def finish(self, total: Scalar, offset: Scalar) -> Scalar:
        name = {8: "x86.avx2.pmadd.wd", 16: "x86.avx512.pmaddw.d.512"}[self._lanes]
        return offset + intrinsic(self._integer, name, total, number(1, self._short))


class WidePairByteDot(ByteDot):
    """AVX2 and AVX-512 without VNNI, for codes of 5 and 6 bits, whose 16-bit sums could overflow: every product of two
    pairs becomes 32 bits. Two codes times 127 are at most 16,002.
    """

    def add(self, total: Scalar, operand: Scalar, x: Scalar) -> Scalar:
        multiply, widen = {
            8: ("x86.avx2.pmadd.ub.sw", "x86.avx2.pmadd.wd"),
            16: ("x86.avx512.pmaddubs.w.512", "x86.avx512.pmaddw.d.512"),
        }[self._lanes]
        products = intrinsic(self._short, multiply, *self._bytes(operand, x))
        return self._kernel.let("dot", total + intrinsic(self._integer, widen, products, number(1, self._short)))


class SignedByteDot(ByteDot):
    """Arm's dot product extension for signed bytes. Flipping their highest bit makes 8-bit codes signed."""

    def operands(self, word: Scalar, high: Scalar | None, first: int) -> list[Scalar]:
        if self._bits < 8:
            return super().operands(word, high, first)
        return [self._kernel.let("codes", word ^ number(0x80808080, self._word))]

    def add(self, total: Scalar, operand: Scalar, x: Scalar) -> Scalar:
        arguments = total, *self._bytes(operand, x)
        return self._kernel.let("dot", intrinsic(self._integer, "aarch64.neon.sdot.v4i32.v16i8", *arguments))


class PlainDot(Dot):
    """32-bit multiplications, which every CPU supports."""

    def add(self, total: Scalar, operand: Scalar, x: Scalar) -> Scalar:
        for bits in (0, 16):
            codes = cast((operand >> number(bits, self._word)) & number(0xFFFF, self._word), self._integer)
            total = total + codes * splat((x << (16 - bits)) >> 16, self._lanes)
        return self._kernel.let("dot", total)
