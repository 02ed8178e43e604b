"""Reading packed weights inside a kernel: 32 weights of a row are a chunk, 8 an octet, 4 a quad (one float32x4).

A block is one load of 16 bytes: 32 weights of 4 bits, 16 of q8, 8 of f16, 4 of f32; and of 8 bytes for q2, 32 weights.
Codes of 3, 5 and 6 bits have more bits in other words, in the layout of `quant/codes.py`.

A weight is (code - zero) * scale, or code * scale + bias; quads hold the codes, so that a kernel can fold everything
else in once a block. If all weights of a row share a scale, kernels apply it to the dot product instead.
float16 planes are bound as uint32 and unpacked two by two, which every WebGPU device can do, with or without f16
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..quant.base import GROUP, ROW
from ..quant.codes import UNIT_COLUMNS, units_of
from ..quant.kernel_format import WeightFormat as WeightFormat
from .builder import Array, KernelBuilder, Scalar, address_of, cast, extern, minimum, number, reinterpret, select
from .vectors import join, lane_of, shifted, splat, vector

# The weights of a quad of float16 codes: two bytes of a word are a pair.
HALF_ORDER = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """The words of 32 codes in registers: those of their low bits, and of their high bits if there are any."""

    low: Sequence[Scalar]
    high: Sequence[Scalar]


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
                else kernel.buffer(f"{role}.q", (rows, chunks * fmt.low_bits), "uint32")
            )
            if fmt.high_bits:
                self._high = kernel.buffer(f"{role}.h", (rows, chunks * fmt.high_bits), "uint32")
        elif kind == "f16":
            self._codes = kernel.buffer(f"{role}.w", (rows, chunks * 4), "uint32x4")
        else:
            self._codes = kernel.buffer(f"{role}.w", (rows, chunks * 8), "float32x4")
        self._masks: dict[int, Array] = {}
        self._scales_of_row = scales = fmt.scales_of(columns)
        self._scales = self._offsets = self._units = None
        if fmt.has_units:
            self._units_of_row = units_of(columns)
            integers, units = (rows * each * fmt.factors_a_group for each in (scales, self._units_of_row))
            self._scales = kernel.buffer(f"{role}.s", (-(-integers // 4),), "uint32")
            self._units = kernel.buffer(f"{role}.su", (-(-units // 2),), "uint32")
            return
        # Pairs of float16 numbers are words.
        count = -(-rows * scales // 2) if fmt.scale_dtype == "float16" else rows * scales
        if fmt.scale_dtype:
            self._scales = kernel.buffer(f"{role}.s", (count,), self.raw_scale_dtype)
        if fmt.offset:
            self._offsets = kernel.buffer(f"{role}.{fmt.offset}", (count,), self.raw_scale_dtype)

    def octet(self, row: Scalar, chunk: Scalar, j: Scalar | int) -> tuple[Scalar, Scalar]:
        """Codes 8j to 8j + 7 of a chunk as two quads."""
        kind, codes = self._format.kind, self._codes
        if self._format.high_bits:
            return self.quad(row, chunk, j * 2), self.quad(row, chunk, j * 2 + 1)
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
        if kind == "q8":
            return bytes_of(self._kernel.let("word", codes[row, chunk * 8 + q]))
        if self._format.bits is not None:
            word = self._kernel.local("word", 1, "uint32")
            word[0] = parts_of_quad(codes, row, chunk, q, self._format.low_bits)
            if self._format.high_bits:
                high = parts_of_quad(self._high, row, chunk, q, self._format.high_bits)
                word[0] = word[0] | high << number(self._format.low_bits, "uint32")
            return bytes_of(word[0])
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

    def high_word(self, row: Scalar, block: Scalar, i: int) -> Scalar:
        """Word ``i`` of the high bits of a block's codes; a block has `WeightFormat.high_bits` of them."""
        return self._high[row, block * self._format.high_bits + i]

    def block_quads(self, block: Scalar, high: Sequence[Scalar] = ()) -> list[Scalar]:
        """The quads of a loaded block and its words of high bits; the weight 0 is `WeightFormat.block_zeros`."""
        return list(self.each_quad(block, high))

    def each_quad(self, block: Scalar, high: Sequence[Scalar] = ()) -> Iterator[Scalar]:
        """The same, each unpacked when it is asked for."""
        kind = self._format.kind
        if kind == "f32":
            yield block
            return
        if kind == "f16":
            yield from halves(block)
            return
        bits = self._format.low_bits
        words = 2 if bits == 2 else 4
        if high:
            yield from self._quads_of_parts([lane_of(block, j) for j in range(words)], high)
            return
        parts = self._kernel.local("bytes", words, "uint32x4")
        for j in range(words):
            parts[j] = spread_bytes(lane_of(block, j))
            for start in range(0, 8, bits):
                yield float_bits(parts[j], start, bits, self._masks.get(start))

    def half_quads(self, block: Scalar, high: Sequence[Scalar] = ()) -> Iterator[Scalar]:
        """As `block_quads`, for codes without offsets: code - zero as float16, exactly, in the order `HALF_ORDER`. A
        quad is valid until the next one.
        """
        bits, zero = self._format.low_bits, self._format.zero
        words = [lane_of(block, j) for j in range(2 if bits == 2 else 4)]
        code_bytes = self._kernel.local("code_bytes", 1, "uint32")
        pairs = self._kernel.local("pairs", 2, "float32x2")
        if high:
            for q in range(GROUP // 4):
                code_bytes[0] = self._code_bytes(words, high, q)
                yield half_codes(pairs, code_bytes[0], 0, 8, zero)
            return
        for word in words:
            code_bytes[0] = word
            for start in range(0, 8, bits):
                yield half_codes(pairs, code_bytes[0], start, bits, zero)

    def _quads_of_parts(self, low: Sequence[Scalar], high: Sequence[Scalar]) -> Iterator[Scalar]:
        """The quads of codes whose bits are in two planes."""
        word = self._kernel.local("code_bytes", 1, "uint32")
        spread = self._kernel.local("bytes", 1, "uint32x4")
        for q in range(GROUP // 4):
            word[0] = self._code_bytes(low, high, q)
            spread[0] = spread_bytes(word[0])
            yield self._kernel.let("codes", float_bits(spread[0], 0, 8))

    def _code_bytes(self, low: Sequence[Scalar], high: Sequence[Scalar], q: int) -> Scalar:
        """A word with the codes of a quad, one in each byte."""
        top = part_of_words(high, q, self._format.high_bits) << number(self._format.low_bits, "uint32")
        return part_of_words(low, q, self._format.low_bits) | top

    def load_chunk(self, row: Scalar, chunk: Scalar) -> LoadedChunk:
        """The codes of a chunk, as stored in memory. Only with ``blocks``."""
        kernel, fmt = self._kernel, self._format
        blocks = self.blocks // self.chunks
        words = 2 if fmt.low_bits == 2 else 4
        low = [kernel.let("block", self._codes[row, chunk * blocks + i]) for i in range(blocks)]
        high = [kernel.let("high", self._high[row, chunk * fmt.high_bits + i]) for i in range(fmt.high_bits)]
        return LoadedChunk([lane_of(block, j) for block in low for j in range(words)], high)

    def words_of_chunk(self, chunk: LoadedChunk) -> list[Scalar]:
        """The eight words of a chunk's codes, one in each byte, in the order of columns."""
        fmt = self._format
        words = []
        for q in range(GROUP // 4):
            word = part_of_words(chunk.low, q, fmt.low_bits)
            if fmt.high_bits:
                word = word | part_of_words(chunk.high, q, fmt.high_bits) << number(fmt.low_bits, "uint32")
            words.append(self._kernel.let("codes", word))
        return words

    def hold_masks(self, held: Callable[[Scalar], Scalar]) -> None:
        """Let `block_quads` read its masks from registers, set once to ``held`` of each mask: a value that the compiler
        does not know, so that it does not load the constant again for each use.
        """
        for start in range(0, 8, self._format.bits or 8):
            mask = self._kernel.local("mask", 1, "uint32")
            mask[0] = held(number(mask_of(start, self._format.bits or 8), "uint32"))
            self._masks[start] = mask

    def raw_scale(self, row: Scalar, chunk: Scalar, half: Scalar | int = 0) -> tuple[Scalar, Scalar]:
        """The word that holds a chunk's scale, as loaded, and the scale's index. Only for formats with scales.
        ``half`` of a chunk has a scale in groups of 16. With units, the scale itself.
        """
        assert self._scales is not None
        if self._units is not None:
            return self._product(row, chunk, half, 0)
        word, index = self._scale_location(row, chunk, half)
        return self._scales[word], index

    def raw_offset(self, row: Scalar, chunk: Scalar, half: Scalar | int = 0) -> Scalar:
        """The word that holds a chunk's zero point or bias, whose index is that of the scale. With units, the bias
        itself.
        """
        if self._units is not None:
            return self._product(row, chunk, half, 1)[0]
        assert self._offsets is not None
        return self._offsets[self._scale_location(row, chunk, half)[0]]

    def high_address(self, row: Scalar, block: Scalar, i: int) -> Scalar:
        """A pointer to `high_word`."""
        return address_of(self._high, row, block * self._format.high_bits + i)

    def scale_address(self, row: Scalar, chunk: Scalar, half: Scalar | int = 0) -> tuple[Scalar, Scalar]:
        """As `raw_scale`, with a pointer to the word."""
        assert self._scales is not None
        word, index = self._scale_location(row, chunk, half)
        return address_of(self._scales, word), index

    def offset_address(self, row: Scalar, chunk: Scalar, half: Scalar | int = 0) -> tuple[Scalar, Scalar]:
        """As `scale_address`, for the zero point or bias."""
        assert self._offsets is not None
        word, index = self._scale_location(row, chunk, half)
        return address_of(self._offsets, word), index

    def _product(self, row: Scalar, chunk: Scalar, half: Scalar | int, place: int) -> tuple[Scalar, Scalar]:
        """An int8 scale (``place`` 0) or bias (1) times its unit, and the index of the scale."""
        assert self._scales is not None
        assert self._units is not None
        factors, groups = self._format.factors_a_group, UNIT_COLUMNS // self._format.group
        column = self._scale_column(chunk, half)
        index = (row * self._scales_of_row + column) * factors + place
        byte = self._scales[index // 4] >> cast(index % 4 * 8, "uint32") & number(255, "uint32")
        # A signed byte plus 128.
        integer = cast(byte ^ number(128, "uint32"), "float32") - number(128, "float32")
        unit = (row * self._units_of_row + column // groups) * factors + place
        pair = self._kernel.let("units", extern("float32x2", "unpack2x16float", self._units[unit // 2]))
        return integer * select(unit % 2 == 0, lane_of(pair, 0), lane_of(pair, 1)), index

    def _scale_location(self, row: Scalar, chunk: Scalar, half: Scalar | int) -> tuple[Scalar, Scalar]:
        index = row * self._scales_of_row + self._scale_column(chunk, half)
        return (index if self._format.scale_dtype == "float32" else index // 2), index

    def _scale_column(self, chunk: Scalar, half: Scalar | int) -> Scalar | int:
        group, scales = self._format.group, self._scales_of_row
        if self._format.scales_a_chunk == 2:
            # A row may end in the first half of a chunk.
            return minimum(chunk * 2 + half, scales - 1) if scales % 2 else chunk * 2 + half
        return 0 if group == ROW else chunk if group == GROUP else chunk // (group // GROUP)

    def scale_in(self, raw: Scalar, index: Scalar) -> Scalar:
        """The scale at ``index`` in the word that `raw_scale` returned."""
        if self.raw_scale_dtype == "float32":
            return raw
        pair = self._kernel.let("scales", extern("float32x2", "unpack2x16float", raw))
        return select(index % 2 == 0, lane_of(pair, 0), lane_of(pair, 1))

    @property
    def raw_scale_dtype(self) -> str:
        return "float32" if self._format.scale_dtype == "float32" or self._format.has_units else "uint32"

    def scale(self, row: Scalar, chunk: Scalar, half: Scalar | int = 0) -> Scalar:
        """The scale of a chunk: 1 if the format has no scales."""
        return number(1, "float32") if self._scales is None else self.scale_in(*self.raw_scale(row, chunk, half))

    def weights(self, codes: Scalar, row: Scalar, chunk: Scalar, half: Scalar | int) -> Scalar:
        """The weights of a quad of codes; without the scale, if all weights of the row share it."""
        if self._scales is None:
            return codes
        word, index = self.raw_scale(row, chunk, half)
        scale = splat(number(1, "float32") if self._format.per_row else self.scale_in(word, index))
        if not self._format.offset:
            value = codes - number(self._format.zero, "float32x4")
            return value if self._format.per_row else value * scale
        offset = splat(self.scale_in(self.raw_offset(row, chunk, half), index))
        return codes * scale + offset if self._format.offset == "b" else (codes - offset) * scale


def parts_of_quad(plane: Array, row: Scalar, chunk: Scalar, q: Scalar, bits: int) -> Scalar:
    """The parts of codes 4q to 4q + 3 of a chunk that a plane holds, one in each byte."""
    quads = 8 // bits
    word = plane[row, chunk * bits + q // quads] >> cast(q % quads * bits, "uint32")
    return word & number(((1 << bits) - 1) * 0x01010101, "uint32")


def part_of_words(words: Sequence[Scalar], q: int, bits: int) -> Scalar:
    """`parts_of_quad` of a block's loaded words."""
    if bits == 8:
        return words[q]
    word, shift = words[q * bits // 8], q * bits % 8
    return (word >> number(shift, "uint32") if shift else word) & number(((1 << bits) - 1) * 0x01010101, "uint32")


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


def half_codes(pairs: Array, word: Scalar, start: int, bits: int, zero: int) -> Scalar:
    """Code - ``zero`` as float16x4, of the codes in the ``bits`` bits of each byte from ``start`` on, in the order
    `HALF_ORDER`; through two registers of float32x2.

    A half of a word gets the exponent at which its bit ``start`` counts 1, so it is 2^(10 - start) + code, and the
    difference is exact. WGSL's function unpacks halves to float32, which compilers cancel with the conversion to
    float16: wgpu's compiler does not convert bits to float16.
    """
    mask = number((((1 << bits) - 1) << start) * 0x00010001, "uint32")
    exponent = number((25 - start << 10) * 0x00010001, "uint32")
    for i, each in enumerate((word, word >> number(8, "uint32"))):
        pairs[i] = extern("float32x2", "unpack2x16float", each & mask | exponent)
    halves = cast(join(pairs[0], pairs[1], lanes=range(4)), "float16x4")
    return halves - number((1 << 10 - start) + zero, "float16x4")


def mask_of(start: int, bits: int) -> int:
    """The mask of a code in a spread byte."""
    return ((1 << bits) - 1) << (15 + start)


def fraction(bits: Scalar, mask: Scalar, exponent: int) -> Scalar:
    """Floats with the masked bits as fraction and 2^exponent."""
    return reinterpret((bits & mask) | number(127 + exponent << 23, "uint32x4"), "float32x4")


def halves(words: Scalar) -> tuple[Scalar, Scalar]:
    """Eight float16 numbers of four words."""
    first, second, third, fourth = (lane_of(words, lane) for lane in range(4))
    return four_halves(first, second), four_halves(third, fourth)


def four_halves(*words: Scalar) -> Scalar:
    """Four float16 numbers of two words."""
    pairs = [extern("float32x2", "unpack2x16float", word) for word in words]
    return vector(*(lane_of(pair, lane) for pair in pairs for lane in range(2)))
