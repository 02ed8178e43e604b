"""Reading packed weights inside a kernel: 32 weights of a row are a chunk, 8 an octet, 4 a quad (one float32x4).

A weight is (code - zero) * scale; quads hold the codes, so that a kernel can fold zero and scale in once a chunk. float16 planes are
bound as uint32 and unpacked two by two, which every WebGPU device can do, with or without f16 arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..quant.base import GROUP
from .builder import Array, KernelBuilder, Scalar, cast, extern, lane_of, number, select, shifted, vector


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A quantization as kernels see it: ``kind`` "q4", "q8", "f16" or "f32", and the dtype of its scales ("" where there are none)."""

    kind: str
    scale_dtype: str

    @property
    def zero(self) -> int:
        """The code that means 0."""
        return {"q4": 8, "q8": 128}.get(self.kind, 0)


class PackedMatrix:
    """A packed (rows, columns) matrix as arguments of a kernel: its planes, named after ``role``.

    ``vectors`` binds the codes as vectors of 16 bytes, for kernels in which one thread reads whole chunks (`octets`); else a thread may
    read any octet by a number known at run time (`octet`).
    """

    def __init__(self, kernel: KernelBuilder, role: str, rows: int, columns: int, fmt: WeightFormat, *, vectors: bool) -> None:
        self._kernel, self._format = kernel, fmt
        self.chunks = chunks = -(-columns // GROUP)
        kind = fmt.kind
        if kind in ("q4", "q8"):
            words = chunks * (4 if kind == "q4" else 8)
            self._codes = (
                kernel.buffer(f"{role}.q", (rows, words // 4), "uint32x4")
                if vectors
                else kernel.buffer(f"{role}.q", (rows, words), "uint32")
            )
        elif kind == "f16":
            self._codes = kernel.buffer(f"{role}.w", (rows, chunks * 4), "uint32x4")
        else:
            self._codes = kernel.buffer(f"{role}.w", (rows, chunks * 8), "float32x4")
        self._scales: Array | None = None
        if fmt.scale_dtype == "float16":
            self._scales = kernel.buffer(f"{role}.s", (-(-rows * chunks // 2),), "uint32")
        elif fmt.scale_dtype == "float32":
            self._scales = kernel.buffer(f"{role}.s", (rows * chunks,), "float32")

    @property
    def zero(self) -> int:
        return self._format.zero

    def octet(self, row: Scalar, chunk: Scalar, j: Scalar | int) -> tuple[Scalar, Scalar]:
        """Codes 8j to 8j + 7 of a chunk as two quads."""
        kind, codes = self._format.kind, self._codes
        if kind == "q4":
            return nibbles(codes[row, chunk * 4 + j])
        if kind == "q8":
            return bytes_of(codes[row, chunk * 8 + j * 2]), bytes_of(codes[row, chunk * 8 + j * 2 + 1])
        if kind == "f16":
            return halves(self._kernel.let("words", codes[row, chunk * 4 + j]))
        return codes[row, chunk * 8 + j * 2], codes[row, chunk * 8 + j * 2 + 1]

    def octets(self, row: Scalar, chunk: Scalar) -> list[tuple[Scalar, ...]]:
        """All four octets of a chunk. Only with ``vectors``."""
        kind, codes = self._format.kind, self._codes
        if kind == "q4":
            words = self._kernel.let("words", codes[row, chunk])
            return [nibbles(lane_of(words, j)) for j in range(4)]
        if kind == "q8":
            both = [self._kernel.let("words", codes[row, chunk * 2 + i]) for i in range(2)]
            return [tuple(bytes_of(lane_of(both[j // 2], j % 2 * 2 + i)) for i in range(2)) for j in range(4)]
        return [self.octet(row, chunk, j) for j in range(4)]

    def scale(self, row: Scalar, chunk: Scalar) -> Scalar:
        """The scale of a chunk: 1 where the format has none."""
        if self._scales is None:
            return number(1, "float32")
        index = self._kernel.let("scale_index", row * self.chunks + chunk)
        if self._format.scale_dtype == "float32":
            return self._scales[index]
        pair = self._kernel.let("scales", extern("float32x2", "unpack2x16float", self._scales[index // 2]))
        return select(index % 2 == 0, lane_of(pair, 0), lane_of(pair, 1))


def nibbles(word: Scalar) -> tuple[Scalar, Scalar]:
    """Eight 4-bit codes: low nibbles of the four bytes, then high ones."""
    mask = number(15, "uint32x4")
    return cast(shifted(word, 0, 8, 16, 24) & mask, "float32x4"), cast(shifted(word, 4, 12, 20, 28) & mask, "float32x4")


def bytes_of(word: Scalar) -> Scalar:
    """Four 8-bit codes."""
    return cast(shifted(word, 0, 8, 16, 24) & number(255, "uint32x4"), "float32x4")


def halves(words: Scalar) -> tuple[Scalar, Scalar]:
    """Eight float16 numbers of four words."""
    pairs = [extern("float32x2", "unpack2x16float", lane_of(words, lane)) for lane in range(4)]
    scalars = [lane_of(pair, lane) for pair in pairs for lane in range(2)]
    return vector(*scalars[:4]), vector(*scalars[4:])
