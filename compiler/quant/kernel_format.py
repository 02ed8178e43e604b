"""A weight format as kernels see it: what templates need to know to read the planes of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

from .base import GROUP, ROW, WeightForm


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A quantization as kernels see it: ``kind`` "q2", "q4", "q8", "f16" or "f32", the dtype of its scales ("" if it
    has none), and the number of columns that share a scale, a multiple of 32, or ROW.
    """

    kind: str
    scale_dtype: str
    group: int = GROUP

    @property
    def bits(self) -> int | None:
        """Bits of a code; None for floats."""
        return {"q2": 2, "q4": 4, "q8": 8}.get(self.kind)

    @property
    def zero(self) -> int:
        """The code that means 0."""
        return 0 if self.bits is None else 1 << (self.bits - 1)

    @property
    def per_row(self) -> bool:
        """Whether all weights of a row share a scale."""
        return bool(self.scale_dtype) and self.group == ROW

    def scales_of(self, columns: int) -> int:
        """The number of scales of a row."""
        return 1 if self.group == ROW else -(-columns // self.group)

    @property
    def block_columns(self) -> int:
        """Weights in a block."""
        return {"q2": 32, "q4": 32, "q8": 16, "f16": 8, "f32": 4}[self.kind]

    @property
    def block_dtype(self) -> str:
        """The dtype of a block as it is loaded."""
        return {"q2": "uint32x2", "f32": "float32x4"}.get(self.kind, "uint32x4")

    @property
    def block_zeros(self) -> list[int]:
        """The value that `PackedMatrix.block_quads` returns for the weight 0, for each quad of a block;
        `packed.float_bits` explains the 256 and the others.
        """
        if self.bits is None:
            return [0] * (self.block_columns // 4)
        byte = [(256 >> start) + self.zero for start in range(0, 8, self.bits)]
        return byte * (self.block_columns // 4 // len(byte))


def weight_format(form: WeightForm) -> WeightFormat:
    scales = [plane.dtype for plane in form.planes(GROUP) if plane.name == "s"]
    return WeightFormat(form.kind, scales[0] if scales else "", GROUP if form.group is None else form.group)
