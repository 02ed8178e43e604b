"""Pages of keys and values as an argument of kernels.

Pages are (P, 2, K, page, D). A page holds its keys, then its values; within each, the kv heads are consecutive, so that
a workgroup reads one contiguous piece of a page. Kernels read and write vectors of 4 elements, or of 2 if D is not a
multiple of 4. Pages of 8-bit integers hold a word for each vector of 4, and after the words of all rows of a page and
kv head their scales: see `ops.kv_pages`.
"""

from __future__ import annotations

from functools import reduce

from .builder import (
    KernelBuilder,
    Scalar,
    cast,
    extern,
    lane_of,
    magnitude,
    maximum,
    number,
    reinterpret,
    select,
    splat,
    vector,
)
from .heads import Heads as AttentionHeads
from .packed import float_bits, halves, spread_bytes
from .scores import LOWEST as LOWEST


class Pages:
    """A layer's keys (plane 0) and values (plane 1) as the argument "kv".

    ``blocks`` binds them as blocks of `Heads.block_vectors` vectors, up to 16 bytes, for kernels that read and write
    whole blocks; else a block is one vector. ``in_page`` is a token's row within its page.
    """

    def __init__(self, kernel: KernelBuilder, heads: AttentionHeads, *, write: bool, blocks: bool = False) -> None:
        self._kernel, self._heads = kernel, heads
        self._quantized = heads.kv == "q8"
        self._block_vectors = heads.block_vectors if blocks else 1
        shape: tuple[int, ...]
        if self._quantized:
            # Codes of all rows of a page, then their scales.
            shape = (heads.page_size * (heads.vectors + 1) // self._block_vectors,)
            dtype = vector_of("uint32", self._block_vectors)
        elif self._block_vectors > 1:
            shape, dtype = (
                (heads.page_size * heads.vectors // self._block_vectors,),
                vector_of("uint32", 2 * self._block_vectors),
            )
        else:
            shape, dtype = (heads.page_size * heads.vectors,), heads.stored_dtype
        self._kv = kernel.buffer("kv", ("P", 2, heads.num_kv_heads, *shape), dtype, write=write)
        self._block_dtype = dtype

    @property
    def quantized(self) -> bool:
        """Whether rows have scales."""
        return self._quantized

    @property
    def block_dtype(self) -> str:
        return self._block_dtype

    def load(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, in_page: Scalar, vector: Scalar) -> Scalar:
        """A vector as float32."""
        (stored,) = self.vectors_of(self.block(page, plane, kv_head, in_page, vector))
        return stored * splat(self.scale(page, plane, kv_head, in_page)) if self._quantized else stored

    def block(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, in_page: Scalar, block: Scalar) -> Scalar:
        """A block of a row as it is stored."""
        return self._kv[page, plane, kv_head, in_page * (self._heads.vectors // self._block_vectors) + block]

    def vectors_of(self, block: Scalar) -> list[Scalar]:
        """The vectors of a loaded block as float32; if pages are quantized, `scale` is not applied yet."""
        if self._quantized:
            words = (
                [block] if self._block_vectors == 1 else [lane_of(block, lane) for lane in range(self._block_vectors)]
            )
            return [float_codes(word) for word in words]
        if self._block_vectors == 1:
            return [cast(block, self._heads.vector_dtype)]
        return list(halves(block))

    def scale(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, in_page: Scalar) -> Scalar:
        """The factor of a row's vectors. Quantized pages only."""
        index = self._heads.page_size * self._heads.vectors + in_page
        if self._block_vectors == 1:
            return reinterpret(self._kv[page, plane, kv_head, index], "float32")
        lanes = self._block_vectors
        words = self._kernel.let("scales", self._kv[page, plane, kv_head, index // lanes])
        word = lane_of(words, lanes - 1)
        for lane in reversed(range(lanes - 1)):
            word = select(index % lanes == lane, lane_of(words, lane), word)
        return reinterpret(word, "float32")

    def pack(self, vectors: list[Scalar], largest: Scalar) -> Scalar:
        """A block of these vectors. Quantized pages need the largest magnitude of the whole row."""
        assert len(vectors) == self._block_vectors, vectors
        if self._quantized:
            words = [
                extern("uint32", "pack4x8snorm", codes(each, largest) * splat(number(1 / 127, "float32")))
                for each in vectors
            ]
        elif self._block_vectors == 1:
            return cast(vectors[0], self._heads.stored_dtype)
        else:
            words = [packed_halves(each, lane) for each in vectors for lane in (0, 2)]
        return vector(*words) if len(words) > 1 else words[0]

    def rounded(self, vectors: list[Scalar], largest: Scalar) -> list[Scalar]:
        """Vectors as a later read of the page returns them."""
        scale = splat(scale_of(largest), self._heads.lanes) if self._quantized else None
        return [each * scale if self._quantized else each for each in self.vectors_of(self.pack(vectors, largest))]

    def store(
        self,
        page: Scalar,
        plane: Scalar | int,
        kv_head: Scalar,
        in_page: Scalar,
        block: Scalar,
        vectors: list[Scalar],
        largest: Scalar,
    ) -> None:
        """Write a block of vectors. If pages are quantized, the thread of block 0 writes the row's scale too.
        ``largest`` as in `pack`.
        """
        heads, lanes = self._heads, self._block_vectors
        self._kv[page, plane, kv_head, in_page * (heads.vectors // lanes) + block] = self.pack(vectors, largest)
        if not self._quantized:
            return
        with self._kernel.when(block == 0):
            index = heads.page_size * heads.vectors + in_page
            scale = reinterpret(scale_of(largest), "uint32")
            if lanes > 1:
                # The scales of rows before this one are in the same block.
                kept = self._kernel.let("scales", self._kv[page, plane, kv_head, index // lanes])
                scale = vector(*(select(index % lanes == lane, scale, lane_of(kept, lane)) for lane in range(lanes)))
            self._kv[page, plane, kv_head, index // lanes] = scale


def scale_of(largest: Scalar) -> Scalar:
    return largest / number(127, "float32")


def codes(value: Scalar, largest: Scalar) -> Scalar:
    """-127 to 127, as float32."""
    factor = select(largest > 0, number(127, "float32") / largest, number(0, "float32"))
    return extern("float32x4", "round", value * splat(factor))


def largest_lane(value: Scalar, lanes: int) -> Scalar:
    """The largest magnitude in a vector."""
    return reduce(maximum, (magnitude(lane_of(value, lane)) for lane in range(lanes)))


def float_codes(word: Scalar) -> Scalar:
    """The four int8 codes of a word, as float32."""
    # With its highest bit inverted, a code is an unsigned byte, 128 larger; `float_bits` adds 256.
    return float_bits(spread_bytes(word ^ number(0x80808080, "uint32")), 0, 8) - number(384, "float32x4")


def packed_halves(value: Scalar, lane: int) -> Scalar:
    """Two lanes of a vector, from ``lane`` on, as float16 in a word."""
    return extern("uint32", "pack2x16float", vector(lane_of(value, lane), lane_of(value, lane + 1)))


def vector_of(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
