"""The rotation of a head, as `ops.kv_pages.rotated` defines it: a fast Walsh-Hadamard transform. Every instruction set
adds the same pairs in the same order, so it computes the same bits.
"""

from __future__ import annotations

from ...ir.kv_format import hadamard_size
from ..builder import Array, KernelBuilder, Scalar, number
from ..vectors import like, ramp, take_lanes, vector
from .builder import Isa, pieces


def rotate(kernel: KernelBuilder, isa: Isa, head_dim: int, row: Array) -> None:
    """Rotate ``row`` (D,) float32 in place."""
    size, step = hadamard_size(head_dim), 1
    vectors = {start: kernel.let("element", row[ramp(start, lanes)]) for start, lanes in pieces(head_dim, isa.lanes)}
    lanes_at = dict(pieces(head_dim, isa.lanes))
    while step < size:
        vectors = {start: kernel.let("element", combined(vectors, start, lanes_at[start], step)) for start in vectors}
        step *= 2
    for start, lanes in lanes_at.items():
        row[ramp(start, lanes)] = vectors[start] * like(vectors[start], size**-0.5)


def combined(vectors: dict[int, Scalar], start: int, lanes: int, step: int) -> Scalar:
    """The sums and differences, for the elements from ``start`` on, of elements that are ``step`` apart."""
    own = vectors[start]
    if step >= lanes:
        other = vectors[start ^ step]
        return other - own if start & step else own + other
    signs = vector(*(number(-1 if lane & step else 1, "float32") for lane in range(lanes)))
    return take_lanes(own, [lane ^ step for lane in range(lanes)]) + own * signs
