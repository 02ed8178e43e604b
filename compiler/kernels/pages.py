"""What attention kernels have in common: the facts of one attention, its pages as an argument, and places of a running softmax.

Pages are (P, 2, K, page, D): of a page first the keys, then the values; of each the kv heads one after the other, so that what one
workgroup reads of a page is one piece. Kernels read and write them in vectors of 4 elements, or of 2 where D is no multiple of 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from .builder import KernelBuilder, Scalar, cast

# Stands for minus infinity, which WGSL may not be asked to compute with. exp(LOWEST - x) is 0 for every x that a score can have.
LOWEST = -3.0e38


@dataclass(frozen=True, slots=True)
class Heads:
    """H query heads and K kv heads of D elements, of ``activation`` dtype, on pages of ``page_size`` tokens.

    ``positions`` is the length of the rotation table; ``norm_eps`` None means that q and k are not normed.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    positions: int
    activation: str
    norm_eps: float | None

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
        self._heads = heads
        shape = ("P", 2, heads.num_kv_heads, heads.page_size, heads.vectors)
        self._kv = kernel.buffer("kv", shape, heads.stored_dtype, write=write)

    def load(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, place: Scalar, vector: Scalar) -> Scalar:
        """A vector as float32."""
        return cast(self._kv[page, plane, kv_head, place, vector], self._heads.vector_dtype)

    def store(self, page: Scalar, plane: Scalar | int, kv_head: Scalar, place: Scalar, vector: Scalar, value: Scalar) -> None:
        self._kv[page, plane, kv_head, place, vector] = cast(value, self._heads.stored_dtype)
