"""The green list of a watermark in kernels: the words of a token's list, and which tokens are in it. `ir/watermark.py`
defines both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.watermark import FACTORS, KEY_WORDS, ROUNDS, SHIFTS
from .builder import Array, KernelBuilder, Scalar, cast, maximum, number, reinterpret, select
from .vectors import lanes_of, like, splat, with_lanes

Binary = Callable[[Scalar, Scalar], Scalar]


def wrapped(operation: Binary) -> Binary:
    """An operation on uint32 whose result wraps around. TVM tells LLVM that none does, so CPU kernels compute with 64
    bits, which LLVM narrows again.
    """

    def in_64_bits(a: Scalar, b: Scalar) -> Scalar:
        wide, narrow = (with_lanes(dtype, lanes_of(a)) for dtype in ("uint64", "uint32"))
        return cast(operation(cast(a, wide), cast(b, wide)), narrow)

    return in_64_bits


@dataclass(frozen=True, slots=True)
class GreenList:
    """``first`` and ``second`` are the list's words, ``limit`` that of the watermark; all are uint32."""

    first: Scalar
    second: Scalar
    limit: Scalar
    multiply: Binary

    def has(self, column: Scalar | int) -> Scalar:
        """Whether a token, or each of a vector of tokens, is in the list. ``column`` is int32."""
        column = number(column, "int32") if isinstance(column, int) else column
        lanes = lanes_of(column)
        x = self._mixed(cast(column, with_lanes("uint32", lanes)) ^ splat(self.first, lanes))
        return self._mixed(x ^ splat(self.second, lanes)) < splat(self.limit, lanes)

    def _mixed(self, x: Scalar) -> Scalar:
        for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
            x = x ^ (x >> like(x, shift))
            x = x if factor == 1 else self.multiply(x, like(x, factor))
        return x


def green_list(kernel: KernelBuilder, watermark: Array, before: Scalar, *, wraps: bool) -> GreenList:
    """The list of the token ``before``, int32. ``watermark`` is (1, 6); ``wraps``: whether uint32 wrap around."""
    add, multiply = (each if wraps else wrapped(each) for each in (operator.add, operator.mul))
    words = [kernel.let(f"key_{i}", reinterpret(watermark[0, i], "uint32")) for i in range(KEY_WORDS)]
    v = kernel.local("block", KEY_WORDS, "uint32")
    v[0] = cast(before, "uint32") ^ words[0]
    for i, word in enumerate(words[1:], 1):
        v[i] = word
    with kernel.loop("round", ROUNDS):
        for half in (((0, 1, 5), (2, 3, 8), 0), ((2, 1, 7), (0, 3, 13), 2)):
            *pairs, last = half
            add_and_turn(v, pairs, add)
            v[last] = turned(v[last], 16)
    limit = kernel.let("limit", reinterpret(watermark[0, KEY_WORDS], "uint32"))
    return GreenList(
        kernel.let("first_word", v[0] ^ words[0]), kernel.let("second_word", v[1] ^ words[1]), limit, multiply
    )


def add_and_turn(v: Array, pairs: Sequence[tuple[int, int, int]], add: Binary) -> None:
    """Of each pair (a, b, bits): a += b, and b becomes itself, rotated to the left, xor a."""
    for a, b, bits in pairs:
        v[a] = add(v[a], v[b])
        v[b] = turned(v[b], bits) ^ v[a]


def turned(x: Scalar, bits: int) -> Scalar:
    """Rotated to the left."""
    return (x << number(bits, "uint32")) | (x >> number(32 - bits, "uint32"))


def token_before(kernel: KernelBuilder, token_ids: Array, rows: Array, sampled: Array, row: Scalar) -> Scalar:
    """The token whose logits a row has, which may be known by its slot only."""
    token_id = kernel.let("token_id", token_ids[rows[row]])
    last = sampled[maximum(-1 - token_id, number(0, "int32"))]
    return kernel.let("before", select(token_id < 0, last, token_id))
