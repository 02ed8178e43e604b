"""What attention kernels have in common: the facts of one attention, its pages as an argument, and places of a running softmax.

Pages are (P, 2, K, page, D): of a page first the keys, then the values; of each the kv heads one after the other, so that what one
workgroup reads of a page is one piece. Kernels read and write them in vectors of 4 elements, or of 2 where D is no multiple of 4. Pages of
8-bit integers hold a word for a vector of 4, and behind the words of a row its scale: see `ops.quantize_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from .builder import KernelBuilder, Scalar, cast, extern, lane_of, magnitude, maximum, number, reinterpret, select, splat

# Stands for minus infinity, which WGSL may not be asked to compute with. exp(LOWEST - x) is 0 for every x that a score can have.
LOWEST = -3.0e38


@dataclass(frozen=True, slots=True)
class Heads:
    """H query heads and K kv heads of D elements, of ``activation`` dtype, on pages of ``page_size`` tokens.

    ``positions`` is the length of the rotation table; ``norm_eps`` None means that q and k are not normed. ``kv`` is the format of pages,
    "activation" or "q8".
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    positions: int
    activation: str
    norm_eps: float | None
    kv: str = "activation"

    @property
    def group(self) -> int:
        """Query heads of one kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return 4 if self.head_dim % 4 == 0 else 2

    @property
    def vectors(self) -> int:
        """Vectors of a head."""
        return self.head_dim // self.lanes

    @property
    def vector_dtype(self) -> str:
        return f"float32x{self.lanes}"

    @property
    def stored_dtype(self) -> str:
        return f"{self.activation}x{self.lanes}"


class Pages:
    """A layer's keys (plane 0) and values (plane 1) as the argument "kv"."""

    def __init__(self, kernel: KernelBuilder, heads: Heads, *, write: bool) -> None:
        self._kernel, self._heads = kernel, heads
        self._quantized = heads.kv == "q8"
        last, dtype = (heads.vectors + 1, "uint32") if self._quantized else (heads.vectors, heads.stored_dtype)
        self._kv = kernel.buffer("kv", ("P", 2, heads.num_kv_heads, heads.page_size, last), dtype, write=write)

    @property
    def quantized(self) -> bool:
        """Whether rows have scales."""
        return self._quantized

    def load(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, place: Scalar, vector: Scalar) -> Scalar:
        """A vector as float32."""
        unscaled = self.load_unscaled(page, plane, kv_head, place, vector)
        return unscaled * splat(self.scale(page, plane, kv_head, place)) if self._quantized else unscaled

    def load_unscaled(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, place: Scalar, vector: Scalar) -> Scalar:
        """A vector that `scale` makes right where pages are quantized, as float32."""
        stored = self._kv[page, plane, kv_head, place, vector]
        return extern("float32x4", "unpack4x8snorm", stored) if self._quantized else cast(stored, self._heads.vector_dtype)

    def scale(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, place: Scalar) -> Scalar:
        """What to multiply a row's vectors with. Only of quantized pages."""
        # unpack4x8snorm has divided the codes by 127.
        return reinterpret(self._kv[page, plane, kv_head, place, self._heads.vectors], "float32") * number(127, "float32")

    def quantize(self, value: Scalar, largest: Scalar) -> Scalar:
        """A vector as the page gives it back: of quantized pages by its row's largest magnitude, of others rounded to their dtype."""
        if not self._quantized:
            return cast(cast(value, self._heads.stored_dtype), self._heads.vector_dtype)
        return codes(value, largest) * splat(largest / number(127, "float32"))

    def store(
        self, page: Scalar, plane: Scalar | int, kv_head: Scalar, place: Scalar, vector: Scalar, value: Scalar, largest: Scalar
    ) -> None:
        """Write a vector; of quantized pages, the thread of the first one writes the row's scale. ``largest`` as in `quantize`."""
        if not self._quantized:
            self._kv[page, plane, kv_head, place, vector] = cast(value, self._heads.stored_dtype)
            return
        packed = extern("uint32", "pack4x8snorm", codes(value, largest) * splat(number(1 / 127, "float32")))
        self._kv[page, plane, kv_head, place, vector] = packed
        with self._kernel.when(vector == 0):
            scale = reinterpret(largest / number(127, "float32"), "uint32")
            self._kv[page, plane, kv_head, place, self._heads.vectors] = scale


def codes(value: Scalar, largest: Scalar) -> Scalar:
    """-127 to 127, as float32."""
    factor = select(largest > 0, number(127, "float32") / largest, number(0, "float32"))
    return extern("float32x4", "round", value * splat(factor))


def largest_lane(value: Scalar, lanes: int) -> Scalar:
    """The largest magnitude in a vector."""
    return reduce(maximum, (magnitude(lane_of(value, lane)) for lane in range(lanes)))
