"""Weights for `linear_mma` in the formats that have more than one plane of codes, offsets, or scales that float16 does
not hold: 3, 5 and 6 bits, zero points and biases, two scales in a chunk of 32 columns, float32 scales.

A thread computes its weights in float32, code * scale + offset, and rounds them to 16 bits once for all input rows. The
plain formats (`linear_mma.Weights`) multiply codes in 16 bits, which takes half as many instructions.
"""

from __future__ import annotations

from ...quant.base import GROUP
from ...quant.kernel_format import WeightFormat
from ..builder import Array, KernelBuilder, Scalar, address_of, number, size_bytes
from ..packed import part_of_words
from ..projection import ProjectionArguments
from ..vectors import lane_of
from .functions import copy_element, scale_codes


class CodedWeights:
    """A thread's chunks of several weight rows, as `linear_mma.Weights` has them: ``slots`` in shared memory for the
    blocks in flight, and registers for one block, and for ``buffers`` octets of each row as 16-bit floats of ``dtype``.
    """

    def __init__(
        self,
        kernel: KernelBuilder,
        arguments: ProjectionArguments,
        dtype: str,
        slots: int,
        threads: int,
        thread: Scalar,
        rows: list[Scalar],
        buffers: int = 1,
    ) -> None:
        fmt = arguments.facts.weight
        self._kernel, self._weight, self._fmt, self._dtype = kernel, arguments.weight, fmt, dtype
        self._thread, self._rows, self._num_slots = thread, rows, slots
        self._loads = GROUP // fmt.block_columns
        count = len(rows)
        self._blocks = kernel.shared("slots", (slots, count * self._loads, threads), fmt.block_dtype)
        self._codes = kernel.local("codes", count * self._loads, fmt.block_dtype)
        if fmt.high_bits:
            self._high_slots = kernel.shared("high_slots", (slots, count * fmt.high_bits, threads), "uint32")
            self._high = kernel.local("high", count * fmt.high_bits, "uint32")
        factors = count * fmt.scales_a_chunk
        planes = [] if fmt.per_row else ["scale_slots", *(["offset_slots"] if fmt.offset else [])]
        raw = self._weight.raw_scale_dtype
        self._factor_slots = [kernel.shared(name, (slots, factors, threads), raw) for name in planes]
        self._scales = kernel.local("scales", factors, "float32", fill=1)
        self._offsets = kernel.local("offsets", factors, "float32", fill=-fmt.zero)
        self.octets: Array = kernel.local("b", buffers * 4 * count, "uint32")

    def start_copies(self, block: Scalar, chunk: Scalar) -> None:
        slot, weight, fmt = block % self._num_slots, self._weight, self._fmt
        for i, row in enumerate(self._rows):
            for j in range(self._loads):
                shared = address_of(self._blocks, slot, i * self._loads + j, self._thread)
                copy_element(shared, weight.block_address(row, chunk * self._loads + j), size_bytes(fmt.block_dtype))
            for j in range(fmt.high_bits):
                shared = address_of(self._high_slots, slot, i * fmt.high_bits + j, self._thread)
                copy_element(shared, weight.high_address(row, chunk, j), 4)
            for half in range(fmt.scales_a_chunk):
                for plane, slots in enumerate(self._factor_slots):
                    address = (weight.offset_address if plane else weight.scale_address)(row, chunk, half)[0]
                    copy_element(address_of(slots, slot, i * fmt.scales_a_chunk + half, self._thread), address, 4)

    def load(self, block: Scalar, chunk: Scalar) -> None:
        """Start to use a block whose copies have arrived."""
        slot, weight, fmt = block % self._num_slots, self._weight, self._fmt
        for i in range(len(self._rows) * self._loads):
            self._codes[i] = self._blocks[slot, i, self._thread]
        for i in range(len(self._rows) * fmt.high_bits):
            self._high[i] = self._high_slots[slot, i, self._thread]
        if fmt.per_row:
            return
        for i, row in enumerate(self._rows):
            for half in range(fmt.scales_a_chunk):
                _, index = weight.scale_address(row, chunk, half)
                at = i * fmt.scales_a_chunk + half
                raws = [slots[slot, at, self._thread] for slots in self._factor_slots]
                scale, *offset = (self._kernel.let("factor", weight.scale_in(raw, index)) for raw in raws)
                self._scales[at] = scale
                zero = offset[0] if offset else number(fmt.zero, "float32")
                self._offsets[at] = zero if fmt.offset == "b" else number(0, "float32") - zero * scale

    def unpack(self, octet: int, buffer: int = 0) -> None:
        """Set a buffer of ``octets`` to one of the four octets of each row's chunk, in the order of rows16."""
        fmt, loads, high_bits = self._fmt, self._loads, self._fmt.high_bits
        words = [(j, lane) for j in range(loads) for lane in range(2 if fmt.low_bits == 2 else 4)]
        half, start = octet * fmt.scales_a_chunk // 4, buffer * 4 * len(self._rows)
        for i in range(len(self._rows)):
            low = [lane_of(self._codes[i * loads + j], lane) for j, lane in words]
            high = [self._high[i * high_bits + j] for j in range(high_bits)]
            codes = []
            for quad in (2 * octet, 2 * octet + 1):
                code = part_of_words(low, quad, fmt.low_bits)
                if high:
                    code = code | part_of_words(high, quad, high_bits) << number(fmt.low_bits, "uint32")
                codes.append(self._kernel.let("code", code))
            at = i * fmt.scales_a_chunk + half
            scale_codes(self._dtype, address_of(self.octets, start + 4 * i), codes, self._scales[at], self._offsets[at])


def bytes_of_row(fmt: WeightFormat) -> int:
    """The shared memory of a chunk of one row of weights."""
    factors = 0 if fmt.per_row else fmt.scales_a_chunk * (2 if fmt.offset else 1)
    return GROUP // fmt.block_columns * size_bytes(fmt.block_dtype) + 4 * (fmt.high_bits + factors)
