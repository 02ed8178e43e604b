"""Dot products of 8-bit integers, four at a time in every 32-bit lane, with the instructions that a level of the CPU has.

Codes of weights (unsigned) times codes of activations (signed, -127 to 127) are summed exactly, so every level gives the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from ..builder import KernelBuilder, Scalar, cast, number, reinterpret, splat
from ..packed import WeightFormat
from .builder import Isa
from .math import intrinsic

# What is multiplied with the same four activations: a word of codes a lane, or two where codes are multiplied in halves.
Operand: TypeAlias = tuple[Scalar, ...]
# A sum on its way: a vector of int32, and what is to be added to it.
State: TypeAlias = tuple[Scalar, ...]


class IntegerDot(Protocol):
    """Dot products of at most eight words of four codes."""

    def operands(self, word: Scalar) -> list[Operand]:
        """The operands in a vector of words as they are stored, for one word of activations each."""

    def add(self, state: State, operand: Operand, x: Scalar) -> State:
        """Add products with the four activations in the word ``x``. A state begins as a vector of int32 alone."""

    def finish(self, state: State) -> Scalar:
        """The whole sum as a vector of int32."""


def integer_dot(kernel: KernelBuilder, isa: Isa, fmt: WeightFormat) -> IntegerDot:
    """The way of this level."""
    ways: dict[str, Callable[[KernelBuilder, Isa, WeightFormat], IntegerDot]]
    ways = {"vnni": VnniDot, "avx512": PairDot, "avx2": PairDot, "dotprod": NeonDot}
    return ways.get(isa.name, PlainDot)(kernel, isa, fmt)


def zero_of(isa: Isa, fmt: WeightFormat) -> int:
    """The code that means 0 as this level multiplies it: `NeonDot` makes 8-bit codes signed."""
    return 0 if isa.name == "dotprod" and fmt.kind == "q8" else fmt.zero


class Dot:
    """What the ways have in common."""

    def __init__(self, kernel: KernelBuilder, isa: Isa, fmt: WeightFormat) -> None:
        self._kernel, self._lanes, self._four_bits = kernel, isa.lanes, fmt.kind == "q4"
        self._word, self._integer = f"uint32x{isa.lanes}", f"int32x{isa.lanes}"

    def operands(self, word: Scalar) -> list[Operand]:
        loaded = self._kernel.let("word", word)
        return [(half,) for half in self._halves(loaded)] if self._four_bits else [(loaded,)]

    def finish(self, state: State) -> Scalar:
        return state[0]

    def _halves(self, word: Scalar) -> list[Scalar]:
        """The low and the high four bits of all bytes."""
        mask = number(0x0F0F0F0F, self._word)
        return [self._kernel.let("low", word & mask), self._kernel.let("high", (word >> number(4, self._word)) & mask)]

    def _bytes(self, word: Scalar, dtype: str = "int8") -> Scalar:
        return reinterpret(word, f"{dtype}x{4 * self._lanes}")

    def _everywhere(self, x: Scalar) -> Scalar:
        """The word ``x`` in every lane, as bytes."""
        return self._bytes(splat(x, self._lanes))


class VnniDot(Dot):
    """AVX-512 VNNI: one instruction multiplies 64 bytes and adds four products to each of 16 lanes."""

    def add(self, state: State, operand: Operand, x: Scalar) -> State:
        arguments = state[0], self._bytes(operand[0], "uint8"), self._everywhere(x)
        return (self._kernel.let("dot", intrinsic(self._integer, "x86.avx512.vpdpbusd.512", *arguments)),)


class NeonDot(Dot):
    """Arm's dot product extension, which takes signed bytes: 8-bit codes are made signed by their highest bit."""

    def operands(self, word: Scalar) -> list[Operand]:
        if self._four_bits:
            return super().operands(word)
        return [(self._kernel.let("word", word ^ number(0x80808080, self._word)),)]

    def add(self, state: State, operand: Operand, x: Scalar) -> State:
        arguments = state[0], self._bytes(operand[0]), self._everywhere(x)
        return (self._kernel.let("dot", intrinsic(self._integer, "aarch64.neon.sdot.v4i32.v16i8", *arguments)),)


class PairDot(Dot):
    """AVX2 and AVX-512 without VNNI: products are added in pairs to 16 bits, and the pairs to 32 bits at the end.

    A code of four bits times 127 is at most 1,905, and a sum of 16 of those, 30,480, fits 16 bits. So codes of 8 bits are multiplied in
    halves.
    """

    def __init__(self, kernel: KernelBuilder, isa: Isa, fmt: WeightFormat) -> None:
        super().__init__(kernel, isa, fmt)
        self._shorts = f"int16x{2 * isa.lanes}"
        names = {8: ("avx2.pmadd.ub.sw", "avx2.pmadd.wd"), 16: ("avx512.pmaddubs.w.512", "avx512.pmaddw.d.512")}
        self._multiply, self._add_pairs = (f"x86.{name}" for name in names[isa.lanes])

    def operands(self, word: Scalar) -> list[Operand]:
        return super().operands(word) if self._four_bits else [tuple(self._halves(self._kernel.let("word", word)))]

    def add(self, state: State, operand: Operand, x: Scalar) -> State:
        activations = self._kernel.let("x", self._everywhere(x))
        total, *pairs = state
        products = [intrinsic(self._shorts, self._multiply, self._bytes(codes), activations) for codes in operand]
        sums = [pair + product for pair, product in zip(pairs, products, strict=True)] if pairs else products
        return (total, *(self._kernel.let("pairs", each) for each in sums))

    def finish(self, state: State) -> Scalar:
        total, *sums = state
        for factor, pairs in zip((1, 16), sums, strict=False):
            total = total + intrinsic(self._integer, self._add_pairs, pairs, number(factor, self._shorts))
        return total


class PlainDot(Dot):
    """Multiplications of 32 bits, which every CPU has."""

    def add(self, state: State, operand: Operand, x: Scalar) -> State:
        (total,), (word,) = state, operand
        for bits in (0, 8, 16, 24):
            codes = cast((word >> number(bits, self._word)) & number(255, self._word), self._integer)
            total = total + codes * splat((x << (24 - bits)) >> 24, self._lanes)
        return (self._kernel.let("dot", total),)
