"""A weight format as kernels see it: what templates need to know to read the planes of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

from .base import GROUP, ROW, WeightForm
from .codes import HALF_GROUP, LOW_BITS, Codes


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A quantization as kernels see it: ``kind`` "q2" to "q8", "f16" or "f32", the dtype of its scales ("" if it has
    none), the number of columns that share a scale (16, a multiple of 32, or ROW), and the ``offset`` of its codes: ""
    for 2^(bits - 1), "z" for zero points, "b" for biases; see `codes.py`. CUDA's kernels do not read int8 scales.
    """

    kind: str
    scale_dtype: str
    group: int = GROUP
    offset: str = ""

    @property
    def bits(self) -> int | None:
        """Bits of a code; None for floats."""
        return int(self.kind[1]) if self.kind.startswith("q") else None

    @property
    def low_bits(self) -> int:
        """Bits of a code in plane ``q``; 0 for floats."""
        return 0 if self.bits is None else LOW_BITS[self.bits]

    @property
    def high_bits(self) -> int:
        """Bits of a code in plane ``h``."""
        return (self.bits or 0) - self.low_bits

    @property
    def scales_a_chunk(self) -> int:
        """The number of scales of 32 columns: 2 in groups of 16, else 1."""
        return 2 if self.group == HALF_GROUP else 1

    @property
    def zero(self) -> int:
        """The code that means 0, without an offset."""
        return 0 if self.bits is None else 1 << (self.bits - 1)

    @property
    def per_row(self) -> bool:
        """Whether all weights of a row share a scale and have no offsets, so that kernels may apply the scale to their
        sum.
        """
        return bool(self.scale_dtype) and self.group == ROW and not self.offset

    def scales_of(self, columns: int) -> int:
        """The number of scales of a row."""
        return 1 if self.group == ROW else -(-columns // self.group)

    @property
    def has_units(self) -> bool:
        """Whether scales and biases are integers times the units of blocks of 256 columns."""
        return self.scale_dtype == "int8"

    @property
    def factors_a_group(self) -> int:
        """The numbers of a group besides its codes: the scale, and the zero point or bias if there is one."""
        return 1 + bool(self.offset)

    @property
    def block_columns(self) -> int:
        """Weights in a block."""
        return {"f16": 8, "f32": 4}.get(self.kind, 16 if self.low_bits == 8 else 32)

    @property
    def block_dtype(self) -> str:
        """The dtype of a block as it is loaded; of plane ``q``, if it has several."""
        if self.kind == "f32":
            return "float32x4"
        return "uint32x2" if self.low_bits == 2 else "uint32x4"

    @property
    def scales_a_block(self) -> int:
        return max(1, self.block_columns // self.group) if self.group else 1

    @property
    def block_zeros(self) -> list[int]:
        """The value that `PackedMatrix.block_quads` returns for the weight 0, for each quad of a block;
        `packed.float_bits` explains the 256 and the others.
        """
        if self.bits is None:
            return [0] * (self.block_columns // 4)
        zero = 0 if self.offset else self.zero
        starts = [0] if self.high_bits else range(0, 8, self.bits)
        byte = [(256 >> start) + zero for start in starts]
        return byte * (self.block_columns // 4 // len(byte))


def weight_format(form: WeightForm) -> WeightFormat:
    scales = [plane.dtype for plane in form.planes(GROUP) if plane.name == "s"]
    offset = form.offset if isinstance(form, Codes) else ""
    return WeightFormat(form.kind, scales[0] if scales else "", GROUP if form.group is None else form.group, offset)


def reads_plain(fmt: WeightFormat) -> bool:
    """Whether a matrix consists of floats, or of codes of 2, 4 or 8 bits without offsets and with scales for at least
    32 columns.
    """
    return fmt.bits in (None, 2, 4, 8) and fmt.offset == "" and fmt.group % GROUP == 0
