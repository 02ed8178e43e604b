"""Pages of keys and values as an argument of kernels.

Pages are (P, 2, K, page, D). A page holds its keys, then its values; within each, the kv heads are consecutive, so that
a workgroup reads one contiguous piece of a page. Kernels read and write vectors of 4 elements, or of 2 if D is not a
multiple of 4. Pages of codes hold words of one or two vectors, and after the words of all rows of a page and kv head
their scales: see `ir.kv_format` and `ops.kv_pages`.
"""

from __future__ import annotations

from functools import reduce

from ..ir.heads import Heads as AttentionHeads
from ..ir.kv_format import KvFormat
from .builder import KernelBuilder, Scalar, cast, extern, magnitude, maximum, minimum, number, reinterpret, select
from .packed import float_bits, four_halves, spread_bytes
from .scores import LOWEST as LOWEST
from .vectors import lane_of, lanes_of, part_of, splat, vector


class Pages:
    """A layer's keys (plane 0) and values (plane 1) as the argument "kv".

    ``blocks`` binds them as blocks of `Heads.block_vectors` vectors, up to 16 bytes, for kernels that read and write
    whole blocks; else a block is one vector, or one word of integers. ``in_page`` is a token's row within its page.
    Keys are read and written as they are stored, which may be rotated.
    """

    def __init__(self, kernel: KernelBuilder, heads: AttentionHeads, *, write: bool, blocks: bool = False) -> None:
        self._kernel, self._heads, self._form = kernel, heads, heads.form
        word_vectors = 1 if self._form is None else self._form.vectors
        self.block_vectors = heads.block_vectors if blocks else word_vectors
        self._block_words = self.block_vectors // word_vectors
        shape: tuple[int, ...]
        if self._form is not None:
            # Codes of all rows of a page, then their scales.
            shape = (heads.page_size * self._form.words(heads.head_dim) // self._block_words,)
            dtype = vector_of("uint32", self._block_words)
        elif self.block_vectors > 1:
            shape, dtype = (
                (heads.page_size * heads.vectors // self.block_vectors,),
                vector_of("uint32", 2 * self.block_vectors),
            )
        else:
            shape, dtype = (heads.page_size * heads.vectors,), heads.stored_dtype
        self._kv = kernel.buffer("kv", ("P", 2, heads.num_kv_heads, *shape), dtype, write=write)
        self._block_dtype = dtype

    @property
    def quantized(self) -> bool:
        """Whether rows have scales."""
        return self._form is not None

    @property
    def block_dtype(self) -> str:
        return self._block_dtype

    def load(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, in_page: Scalar, vector: Scalar) -> Scalar:
        """A vector as float32. Only without ``blocks``."""
        assert self._block_words == 1, self._heads
        stored = self.block(page, plane, kv_head, in_page, vector // self.block_vectors)
        if self._form is None:
            return cast(stored, self._heads.vector_dtype)
        if self._form.vectors > 1:
            stored = stored >> cast(vector % self._form.vectors * self._form.bits, "uint32")
        return float_codes(self._form, stored, 0) * splat(self.scale(page, plane, kv_head, in_page))

    def block(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, in_page: Scalar, block: Scalar) -> Scalar:
        """A block of a row as it is stored."""
        return self._kv[page, plane, kv_head, in_page * (self._heads.vectors // self.block_vectors) + block]

    def vectors_of(self, block: Scalar) -> list[Scalar]:
        """The vectors of a loaded block as float32; if pages are quantized, `scale` is not applied yet."""
        if self._form is None and self.block_vectors == 1:
            return [cast(block, self._heads.vector_dtype)]
        return self._unpacked(self._words(block))

    def part_of(self, block: Scalar, part: Scalar, size: int) -> list[Scalar]:
        """Those of a loaded block's vectors that thread ``part`` uses: ``size`` vectors, of which a block has one part
        or several. Only these are unpacked.
        """
        form, words = self._form, self._words(block)
        if size == self.block_vectors:
            return self.vectors_of(block)
        if form is None:
            return self._unpacked(part_of(words, part, 2 * size))
        if size >= form.vectors:
            return self._unpacked(part_of(words, part, size // form.vectors))
        assert size == 1, (form, size)
        (word,) = part_of(words, part // form.vectors, 1)
        return [float_codes(form, word >> cast(part % form.vectors * form.bits, "uint32"), 0)]

    def _words(self, block: Scalar) -> list[Scalar]:
        lanes = lanes_of(block)
        return [block] if lanes == 1 else [lane_of(block, lane) for lane in range(lanes)]

    def _unpacked(self, words: list[Scalar]) -> list[Scalar]:
        """The vectors of some words of a block."""
        form = self._form
        if form is not None:
            return [float_codes(form, word, vector) for word in words for vector in range(form.vectors)]
        return [four_halves(*words[first : first + 2]) for first in range(0, len(words), 2)]

    def scale(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, in_page: Scalar) -> Scalar:
        """The factor of a row's vectors. Quantized pages only."""
        index, lanes = self._scale_index(in_page), self._block_words
        if lanes == 1:
            return reinterpret(self._kv[page, plane, kv_head, index], "float32")
        words = self._kernel.let("scales", self._kv[page, plane, kv_head, index // lanes])
        word = lane_of(words, lanes - 1)
        for lane in reversed(range(lanes - 1)):
            word = select(index % lanes == lane, lane_of(words, lane), word)
        return reinterpret(word, "float32")

    def pack(self, vectors: list[Scalar], extreme: Scalar | None) -> Scalar:
        """A block of these vectors. Quantized pages need the row's element of largest magnitude."""
        assert len(vectors) == self.block_vectors, vectors
        form = self._form
        if form is not None:
            assert extreme is not None
            groups = [vectors[first : first + form.vectors] for first in range(0, len(vectors), form.vectors)]
            words = [packed_word(form, group, extreme) for group in groups]
        elif self.block_vectors == 1:
            return cast(vectors[0], self._heads.stored_dtype)
        else:
            words = [packed_halves(each, lane) for each in vectors for lane in (0, 2)]
        return vector(*words) if len(words) > 1 else words[0]

    def rounded(self, vectors: list[Scalar], extreme: Scalar | None) -> list[Scalar]:
        """Vectors as a later read of the page returns them."""
        read = self.vectors_of(self._kernel.let("packed", self.pack(vectors, extreme)))
        if self._form is None or extreme is None:
            return read
        scale = splat(scale_of(self._form, extreme), self._heads.lanes)
        return [each * scale for each in read]

    def store(
        self,
        page: Scalar,
        plane: Scalar | int,
        kv_head: Scalar,
        in_page: Scalar,
        block: Scalar,
        vectors: list[Scalar],
        extreme: Scalar | None,
    ) -> None:
        """Write a block of vectors. If pages are quantized, the thread of block 0 writes the row's scale too.
        ``extreme`` as in `pack`.
        """
        lanes = self._block_words
        self._kv[page, plane, kv_head, in_page * (self._heads.vectors // self.block_vectors) + block] = self.pack(
            vectors, extreme
        )
        if self._form is None or extreme is None:
            return
        with self._kernel.when(block == 0):
            index = self._scale_index(in_page)
            scale = reinterpret(scale_of(self._form, extreme), "uint32")
            if lanes > 1:
                # The scales of rows before this one are in the same block.
                kept = self._kernel.let("scales", self._kv[page, plane, kv_head, index // lanes])
                scale = vector(*(select(index % lanes == lane, scale, lane_of(kept, lane)) for lane in range(lanes)))
            self._kv[page, plane, kv_head, index // lanes] = scale

    def _scale_index(self, in_page: Scalar) -> Scalar:
        """The word that holds a row's scale, counted from the page's first."""
        assert self._form is not None
        return self._heads.page_size * (self._form.words(self._heads.head_dim) - 1) + in_page


def scale_of(form: KvFormat, extreme: Scalar) -> Scalar:
    """The scale of a row whose element of largest magnitude is ``extreme``."""
    return extreme / number(-form.steps, "float32")


def packed_word(form: KvFormat, vectors: list[Scalar], extreme: Scalar) -> Scalar:
    """The codes of a word's vectors."""
    parts = [packed_codes(form, each, extreme) for each in vectors]
    shifted = [part << number(i * form.bits, "uint32") if i else part for i, part in enumerate(parts)]
    return reduce(lambda one, other: one | other, shifted)


def packed_codes(form: KvFormat, value: Scalar, extreme: Scalar) -> Scalar:
    """The codes of a vector, each in the lowest bits of a byte of a word."""
    factor = select(extreme != 0, number(-form.steps, "float32") / extreme, number(0, "float32"))
    if form.floats:
        return extern("uint32", "pack4xe4m3", value * splat(factor))
    codes = extern("float32x4", "round", value * splat(factor))
    if form.largest_code < form.steps:
        codes = minimum(codes, number(form.largest_code, "float32x4"))
    if form.zero:
        codes = codes + number(form.zero, "float32x4")
    return extern("uint32", "pack4x8snorm", codes * splat(number(1 / 127, "float32")))


def extreme_of(one: Scalar, other: Scalar) -> Scalar:
    """The value of larger magnitude, and the positive one of two; both may be evaluated several times."""
    one_size, other_size = magnitude(one), magnitude(other)
    return select(one_size == other_size, maximum(one, other), select(one_size > other_size, one, other))


def extreme_lane(value: Scalar, lanes: int) -> Scalar:
    """`extreme_of` the lanes of a vector."""
    highest, lowest = (reduce(each, (lane_of(value, lane) for lane in range(lanes))) for each in (maximum, minimum))
    return select(highest >= -lowest, highest, lowest)


def float_codes(form: KvFormat, word: Scalar, vector: int) -> Scalar:
    """The codes of a word's vector as float32."""
    if form.floats:
        return extern("float32x4", "unpack4xe4m3", word)
    # `float_bits` adds a power of two. With its highest bit inverted, an int8 is an unsigned byte, 128 larger.
    start = vector * form.bits
    if form.bits == 8:
        return float_bits(spread_bytes(word ^ number(0x80808080, "uint32")), 0, 8) - number(256 + 128, "float32x4")
    return float_bits(spread_bytes(word), start, form.bits) - number((256 >> start) + form.zero, "float32x4")


def packed_halves(value: Scalar, lane: int) -> Scalar:
    """Two lanes of a vector, from ``lane`` on, as float16 in a word."""
    return extern("uint32", "pack2x16float", vector(lane_of(value, lane), lane_of(value, lane + 1)))


def vector_of(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
