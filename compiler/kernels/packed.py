"""Reading packed weights inside a kernel: 32 weights of a row are a chunk, 8 an octet, 4 a quad (one float32x4).

A block is one load of 16 bytes: 32 weights of q4, 16 of q8, 8 of f16, 4 of f32; and of 8 bytes for q2, 32 weights.

A weight is (code - zero) * scale; quads hold the codes, so that a kernel can fold zero and scale in once a block. If
all weights of a row share a scale, kernels apply it to the dot product instead.
float16 planes are bound as uint32 and unpacked two by two, which every WebGPU device can do, with or without f16
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

from ..quant.base import GROUP, ROW
from ..quant.kernel_format import WeightFormat as WeightFormat
from .builder import (
    Array,
    KernelBuilder,
    Scalar,
    address_of,
    cast,
    extern,
    lane_of,
    number,
    reinterpret,
    select,
    shifted,
    splat,
    vector,
)


class PackedMatrix:
    """A packed (rows, columns) matrix as arguments of a kernel: its planes, named after ``role``.

    ``blocks`` binds the codes as vectors of 16 bytes, for kernels that read whole blocks (`block`); else a thread may
    read any octet or quad by an index known at run time.
    """

    def __init__(
        self, kernel: KernelBuilder, role: str, rows: int, columns: int, fmt: WeightFormat, *, blocks: bool
    ) -> None:
        self._kernel, self._format = kernel, fmt
        self.chunks = chunks = -(-columns // GROUP)
        self.blocks = chunks * (GROUP // fmt.block_columns)
        kind = fmt.kind
        if fmt.bits is not None:
            self._codes = (
                kernel.buffer(f"{role}.q", (rows, self.blocks), fmt.block_dtype)
                if blocks
                else kernel.buffer(f"{role}.q", (rows, chunks * fmt.bits), "uint32")
            )
        elif kind == "f16":
            self._codes = kernel.buffer(f"{role}.w", (rows, chunks * 4), "uint32x4")
        else:
            self._codes = kernel.buffer(f"{role}.w", (rows, chunks * 8), "float32x4")
        self._masks: dict[int, Array] = {}
        self._scales: Array | None = None
        self._scales_of_row = scales = fmt.scales_of(columns)
        if fmt.scale_dtype == "float16":
            self._scales = kernel.buffer(f"{role}.s", (-(-rows * scales // 2),), "uint32")
        elif fmt.scale_dtype == "float32":
            self._scales = kernel.buffer(f"{role}.s", (rows * scales,), "float32")

    @property
    def zero(self) -> int:
        return self._format.zero

    def octet(self, row: Scalar, chunk: Scalar, j: Scalar | int) -> tuple[Scalar, Scalar]:
        """Codes 8j to 8j + 7 of a chunk as two quads."""
        kind, codes = self._format.kind, self._codes
        if kind == "q2":
            word = self._kernel.let("word", codes[row, chunk * 2 + j // 2] >> cast(j % 2 * 4, "uint32"))
            low, high = (
                word & number(0x03030303, "uint32"),
                word >> number(2, "uint32") & number(0x03030303, "uint32"),
            )
            return bytes_of(low), bytes_of(high)
        if kind == "q4":
            return nibbles(codes[row, chunk * 4 + j])
        if kind == "q8":
            return bytes_of(codes[row, chunk * 8 + j * 2]), bytes_of(codes[row, chunk * 8 + j * 2 + 1])
        if kind == "f16":
            return halves(self._kernel.let("words", codes[row, chunk * 4 + j]))
        return codes[row, chunk * 8 + j * 2], codes[row, chunk * 8 + j * 2 + 1]

    def quad(self, row: Scalar, chunk: Scalar, q: Scalar) -> Scalar:
        """Codes 4q to 4q + 3 of a chunk."""
        kind, codes = self._format.kind, self._codes
        if kind == "q2":
            word = self._kernel.local("word", 1, "uint32")
            word[0] = (codes[row, chunk * 2 + q // 4] >> cast(q % 4 * 2, "uint32")) & number(0x03030303, "uint32")
            return bytes_of(word[0])
        if kind == "q4":
            word = self._kernel.local("word", 1, "uint32")
            word[0] = (codes[row, chunk * 4 + q // 2] >> cast(q % 2 * 4, "uint32")) & number(0x0F0F0F0F, "uint32")
            return bytes_of(word[0])
        if kind == "q8":
            return bytes_of(self._kernel.let("word", codes[row, chunk * 8 + q]))
        if kind == "f16":
            low, high = self.octet(row, chunk, q // 2)
            return select(q % 2 == 0, low, high)
        return codes[row, chunk * 8 + q]

    def block(self, row: Scalar, block: Scalar) -> Scalar:
        """A block as stored in memory. Only with ``blocks``."""
        return self._codes[row, block]

    def block_address(self, row: Scalar, block: Scalar) -> Scalar:
        """A pointer to a block. Only with ``blocks``."""
        return address_of(self._codes, row, block)

    def block_quads(self, block: Scalar) -> list[Scalar]:
        """The quads of a loaded block; the weight 0 is `WeightFormat.block_zeros`, not ``zero``."""
        kind = self._format.kind
        if kind == "f32":
            return [block]
        if kind == "f16":
            return list(halves(block))
        words, bits = (2 if kind == "q2" else 4), self._format.bits
        assert bits is not None
        parts = self._kernel.local("bytes", words, "uint32x4")
        quads = []
        for j in range(words):
            parts[j] = spread_bytes(lane_of(block, j))
            quads += [float_bits(parts[j], start, bits, self._masks.get(start)) for start in range(0, 8, bits)]
        return quads

    def hold_masks(self, held: Callable[[Scalar], Scalar]) -> None:
        """Let `block_quads` read its masks from registers, set once to ``held`` of each mask: a value that the compiler
        does not know, so that it does not load the constant again for each use.
        """
        for start in range(0, 8, self._format.bits or 8):
            mask = self._kernel.local("mask", 1, "uint32")
            mask[0] = held(number(mask_of(start, self._format.bits or 8), "uint32"))
            self._masks[start] = mask

    def raw_scale(self, row: Scalar, chunk: Scalar) -> tuple[Scalar, Scalar]:
        """The word that holds a chunk's scale, as loaded, and the scale's index. Only for formats with scales."""
        assert self._scales is not None
        word, index = self._scale_place(row, chunk)
        return self._scales[word], index

    def scale_address(self, row: Scalar, chunk: Scalar) -> tuple[Scalar, Scalar]:
        """As `raw_scale`, with a pointer to the word."""
        assert self._scales is not None
        word, index = self._scale_place(row, chunk)
        return address_of(self._scales, word), index

    def _scale_place(self, row: Scalar, chunk: Scalar) -> tuple[Scalar, Scalar]:
        group = self._format.group
        index = row * self._scales_of_row + (
            0 if group == ROW else chunk if group == GROUP else chunk // (group // GROUP)
        )
        return (index if self._format.scale_dtype == "float32" else index // 2), index

    def scale_in(self, raw: Scalar, index: Scalar) -> Scalar:
        """The scale at ``index`` in the word that `raw_scale` returned."""
        if self._format.scale_dtype == "float32":
            return raw
        pair = self._kernel.let("scales", extern("float32x2", "unpack2x16float", raw))
        return select(index % 2 == 0, lane_of(pair, 0), lane_of(pair, 1))

    @property
    def raw_scale_dtype(self) -> str:
        return "float32" if self._format.scale_dtype == "float32" else "uint32"

    def scale(self, row: Scalar, chunk: Scalar) -> Scalar:
        """The scale of a chunk: 1 if the format has no scales."""
        return number(1, "float32") if self._scales is None else self.scale_in(*self.raw_scale(row, chunk))


def nibbles(word: Scalar) -> tuple[Scalar, Scalar]:
    """Eight 4-bit codes: low nibbles of the four bytes, then high ones."""
    mask = number(15, "uint32x4")
    return cast(shifted(word, 0, 8, 16, 24) & mask, "float32x4"), cast(shifted(word, 4, 12, 20, 28) & mask, "float32x4")


def bytes_of(word: Scalar) -> Scalar:
    """Four 8-bit codes."""
    return cast(shifted(word, 0, 8, 16, 24) & number(255, "uint32x4"), "float32x4")


def spread_bytes(word: Scalar) -> Scalar:
    """The four bytes of a word, each in the highest eight bits of a float32's fraction; the other bits are
    undefined.
    """
    left = [word << number(bits, "uint32") for bits in (15, 7)]
    return vector(*left, *(word >> number(bits, "uint32") for bits in (1, 9)))


def float_bits(spread: Scalar, start: int, bits: int, mask: Array | None = None) -> Scalar:
    """2^(8 - start) + the code in the ``bits`` bits of a byte from ``start`` on, as floats assembled from bits: a
    fraction of code / 2^(8 - start) with an exponent of 8 - start.

    Converting integers runs at an eighth of the speed of arithmetic on some GPUs; this takes an AND and an OR at full
    speed. Subtracting the 256 costs a few bits of precision: sums of 4,096 products of 4-bit weights were within 1e-5
    of their largest, measured on lavapipe.
    """
    held = number(mask_of(start, bits), "uint32x4") if mask is None else splat(mask[0])
    return fraction(spread, held, 8 - start)


def mask_of(start: int, bits: int) -> int:
    """The mask of a code in a spread byte."""
    return ((1 << bits) - 1) << (15 + start)


def fraction(bits: Scalar, mask: Scalar, exponent: int) -> Scalar:
    """Floats with the masked bits as fraction and 2^exponent."""
    return reinterpret((bits & mask) | number(127 + exponent << 23, "uint32x4"), "float32x4")


def halves(words: Scalar) -> tuple[Scalar, Scalar]:
    """Eight float16 numbers of four words."""
    pairs = [extern("float32x2", "unpack2x16float", lane_of(words, lane)) for lane in range(4)]
    scalars = [lane_of(pair, lane) for pair in pairs for lane in range(2)]
    return vector(*scalars[:4]), vector(*scalars[4:])
