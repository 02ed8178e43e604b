"""Weights for `linear_few`: a thread's chunks of several weight rows as pairs of float16, and the factors of the groups
of two chunks.

Codes become float16 by their bits, without their scale: the sum of a group is multiplied by its scale in float32, once.
What the pairs hold beyond the value of a code (`Remainders`) is subtracted from the sums of all weight rows at once.
"""

from __future__ import annotations

from typing import NamedTuple

from ...quant.base import GROUP
from ...quant.codes import HALF_GROUP
from ...quant.kernel_format import WeightFormat
from ..builder import KernelBuilder, Scalar, address_of, minimum, number, size_bytes
from ..packed import PackedMatrix, part_of_words
from ..vectors import lane_of
from .functions import copy_element, halves_of_word, unknown, unpack_codes, unpack_raised_nibbles


class Remainders(NamedTuple):
    """What the first two pairs of an octet hold beyond the values of its codes, and what the last two hold."""

    first: int
    last: int


def remainders_of(fmt: WeightFormat) -> Remainders:
    """The value of a code is the code less 2^(bits - 1); `GroupFactors` adds the offsets of formats that have them."""
    if fmt.high_bits:
        # Codes of two planes are assembled in bytes and unpacked as those of 8 bits, less 128.
        return Remainders(fmt.zero - 128, fmt.zero - 128)
    return Remainders(0, 72) if fmt.kind == "q4" else Remainders(0, 0)


class ChunkCodes:
    """Codes of a thread's chunk of several weight rows: slots in shared memory for ``stages`` rounds of copies, and
    registers for one chunk of each row.
    """

    def __init__(
        self,
        kernel: KernelBuilder,
        weight: PackedMatrix,
        fmt: WeightFormat,
        rows: list[Scalar],
        stages: int,
        threads: int,
        thread: Scalar,
    ) -> None:
        self._kernel, self._weight, self._fmt, self._rows, self._thread = kernel, weight, fmt, rows, thread
        self._loads = GROUP // fmt.block_columns
        count, high = len(rows) * self._loads, len(rows) * fmt.high_bits
        self._slots = kernel.shared("slots", (stages, count, threads), fmt.block_dtype)
        self._codes = kernel.local("codes", count, fmt.block_dtype)
        self._high_slots = kernel.shared("high_slots", (stages, high, threads), "uint32") if high else None
        self._high = kernel.local("high", high, "uint32") if high else None
        self._masks = kernel.local("masks", 2, "uint32") if fmt.kind == "q4" else None
        if self._masks is not None:
            # Otherwise the compiler sets a register to a mask for each use.
            for i, mask in enumerate((0x000F000F, 0x00F000F0)):
                self._masks[i] = unknown(number(mask, "uint32"))

    def start_copies(self, slot: Scalar, chunk: Scalar) -> None:
        for i, row in enumerate(self._rows):
            for j in range(self._loads):
                shared = address_of(self._slots, slot, i * self._loads + j, self._thread)
                source = self._weight.block_address(row, chunk * self._loads + j)
                copy_element(shared, source, size_bytes(self._fmt.block_dtype))
            if self._high_slots is None:
                continue
            for j in range(self._fmt.high_bits):
                shared = address_of(self._high_slots, slot, i * self._fmt.high_bits + j, self._thread)
                copy_element(shared, self._weight.high_address(row, chunk, j), 4)

    def load(self, slot: Scalar) -> None:
        """Read chunks whose copies have arrived."""
        for i in range(len(self._rows) * self._loads):
            self._codes[i] = self._slots[slot, i, self._thread]
        if self._high is not None and self._high_slots is not None:
            for i in range(len(self._rows) * self._fmt.high_bits):
                self._high[i] = self._high_slots[slot, i, self._thread]

    def unpack(self, row: int, octet: int, pairs: Scalar) -> None:
        """Write an octet of a row's chunk as four pairs, in the order of `rows16`."""
        fmt, first = self._fmt, row * self._loads
        if self._masks is not None:
            unpack_raised_nibbles(pairs, lane_of(self._codes[first], octet), [self._masks[0], self._masks[1]])
            return
        if fmt.kind == "q2":
            words = [lane_of(self._codes[first], octet // 2) >> number(octet % 2 * 4, "uint32")]
        elif self._high is not None:
            words = [self._bytes_of(row, quad) for quad in (2 * octet, 2 * octet + 1)]
        else:
            start = octet * self._loads
            words = [lane_of(self._codes[first + i // 4], i % 4) for i in range(start, start + self._loads)]
        unpack_codes("q8" if fmt.high_bits else fmt.kind, pairs, words)

    def _bytes_of(self, row: int, quad: int) -> Scalar:
        """Four codes of two planes in the bytes of a word."""
        fmt, high = self._fmt, self._high
        assert high is not None
        low = [lane_of(self._codes[row], lane) for lane in range(2 if fmt.low_bits == 2 else 4)]
        top = [high[row * fmt.high_bits + j] for j in range(fmt.high_bits)]
        code = part_of_words(top, quad, fmt.high_bits) << number(fmt.low_bits, "uint32")
        return self._kernel.let("code", part_of_words(low, quad, fmt.low_bits) | code)


class GroupFactors:
    """Scales, zero points and biases of the groups of two chunks, 2 i and 2 i + 1, of several weight rows."""

    def __init__(
        self,
        kernel: KernelBuilder,
        weight: PackedMatrix,
        fmt: WeightFormat,
        columns: int,
        rows: list[Scalar],
        stages: int,
        threads: int,
        thread: Scalar,
        whole: bool,
    ) -> None:
        """``whole``: no chunk is beyond the last one."""
        self._whole = whole
        self._kernel, self._weight, self._fmt, self._rows, self._thread = kernel, weight, fmt, rows, thread
        self._words, self._shares = factor_words(fmt, columns), shares_words(fmt, columns)
        planes = (["scale_slots"] + ["offset_slots"] * bool(fmt.offset)) if self._words else []
        shape = (stages, len(rows) * len(self._words), threads)
        self._planes = [kernel.shared(name, shape, weight.raw_scale_dtype) for name in planes]

    def start_copies(self, slot: Scalar, pair: Scalar) -> None:
        """``pair``: the index of a pair of chunks, of which there may be fewer."""
        for i, row in enumerate(self._rows):
            for j, (chunk, half) in enumerate(self._words):
                for plane, slots in enumerate(self._planes):
                    source = (self._weight.offset_address if plane else self._weight.scale_address)(
                        row, self._chunk(pair, chunk), half
                    )[0]
                    copy_element(address_of(slots, slot, i * len(self._words) + j, self._thread), source, 4)

    def load(self, slot: Scalar, row: int, pair: Scalar) -> list[list[tuple[Scalar, ...]]]:
        """For each of the two chunks and each group of it, the scale and the offset of a weight row; () without
        scales.
        """
        halves = range(self._fmt.scales_a_chunk)
        if not self._words:
            return [[() for _ in halves] for _ in range(2)]
        words = [
            [self._kernel.let("word", slots[slot, row * len(self._words) + j, self._thread]) for slots in self._planes]
            for j in range(len(self._words))
        ]
        if self._shares:
            lanes = [[lane for word in words for lane in halves_of_word(word[plane])] for plane in range(len(words[0]))]
            values = [tuple(plane[i] for plane in lanes) for i in range(2 * len(halves))]
        else:
            values = [
                tuple(self._weight.scale_in(raw, self._index(row, pair, place)) for raw in word)
                for word, place in zip(words, self._words, strict=True)
            ]
            values = values * 2 if len(values) == 1 else values
        named = [tuple(self._kernel.let("factor", each) for each in value) for value in values]
        return [[named[chunk * len(halves) + half] for half in halves] for chunk in range(2)]

    def weighted(self, factors: tuple[Scalar, ...], dot: Scalar, inputs: Scalar | None) -> Scalar:
        """The sum of a group's weights times inputs, from that of its codes, less 2^(bits - 1), and of its inputs."""
        if not factors:
            return dot
        scale, *offset = factors
        if not offset or inputs is None:
            return dot * scale
        zero = number(self._fmt.zero, "float32")
        if self._fmt.offset == "b":
            return dot * scale + (offset[0] + scale * zero) * inputs
        return (dot + (zero - offset[0]) * inputs) * scale

    def _index(self, row: int, pair: Scalar, place: tuple[int, int]) -> Scalar:
        return self._weight.scale_address(self._rows[row], self._chunk(pair, place[0]), place[1])[1]

    def _chunk(self, pair: Scalar, chunk: int) -> Scalar:
        """A chunk of a pair, or the last one."""
        if self._whole:
            return pair * 2 + chunk
        most = self._weight.chunks - 1
        if self._shares and self._fmt.group == GROUP:
            # A row has whole pairs.
            return minimum(pair, most // 2) * 2
        return minimum(pair * 2 + chunk, most)


def factor_words(fmt: WeightFormat, columns: int) -> list[tuple[int, int]]:
    """The words with the scales of two chunks, each by the chunk, and the half of it, that its first scale is for."""
    if not fmt.scale_dtype or fmt.per_row:
        return []
    if fmt.group % (2 * GROUP) == 0:
        return [(0, 0)]
    if fmt.group == HALF_GROUP:
        return [(0, 0), (1, 0)] if shares_words(fmt, columns) else [(0, 0), (0, 1), (1, 0), (1, 1)]
    return [(0, 0)] if shares_words(fmt, columns) else [(0, 0), (1, 0)]


def shares_words(fmt: WeightFormat, columns: int) -> bool:
    """Whether the float16 scales of two adjacent groups are always in one word."""
    return (
        fmt.group in (GROUP, HALF_GROUP)
        and fmt.scale_dtype == "float16"
        and not fmt.per_row
        and fmt.scales_of(columns) % 2 == 0
    )


def slot_bytes(fmt: WeightFormat, columns: int) -> int:
    """The shared memory of a thread's chunk of one weight row, and of the factors of two."""
    codes = GROUP // fmt.block_columns * size_bytes(fmt.block_dtype) + 4 * fmt.high_bits
    return codes + 4 * len(factor_words(fmt, columns)) * fmt.factors_a_group
