"""Reads the weights of `quant_method: "bitsandbytes"`: NF4 and FP4 with nested scales or without, and 8 bits
(bitsandbytes, functional.py and backends/default/ops.py; transformers, quantizer_bnb_4bit.py).

The tensors of a module X with a weight (N, K) of 4 bits:

    X.weight              (N * K / 2, 1) uint8: the rows one after another, the first of two elements in the high half
    X.weight.quant_map    (16,) float32: the value of each half
    X.weight.absmax       the scale of each block of consecutive elements, in float32; a block may end in another row.
                          Nested scales are uint8: nested_quant_map[absmax] * nested_absmax of 256 of them + an offset
    X.weight.quant_state.bitsandbytes__nf4 (or __fp4)   bytes of a JSON object with the shape and the sizes of blocks

Unlike in our formats, the values of NF4 and FP4 are not multiples of one number. As codes of 8 bits, they are rounded
by less than 0.5 % of the weights' size, which is a twentieth of NF4's own rounding; the compiler measures it.

A module with a weight of 8 bits has an int8 weight (N, K) and X.SCB (N,) float32: a weight is code * SCB / 127.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ..quant import ROW, Codes
from ..quant.base import GROUP, Array
from ..runtime.errors import CheckpointError, UnsupportedModel
from .checkpoint import DequantizedMatrix, QuantizedTensors, StoredMatrix, Tensor
from .config import ConfigReader
from .json_file import parse_json_object
from .packed_columns import modules_of, part, require
from .safetensors_file import SafetensorsTensor

METHOD = "bitsandbytes"
# The 8-bit code of the value 1, chosen for the smallest error with normally distributed weights.
STEPS = {"nf4": 124.115, "fp4": 120.0}
STATE = "weight.quant_state.bitsandbytes__"
NESTED_BLOCK = 256
# Keys about kernels and about the conversion, which a converted checkpoint no longer needs.
IGNORED = (
    "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules", "llm_int8_threshold", "load_in_4bit", "load_in_8bit",
)  # fmt: skip
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BitsAndBytesQuantization:
    where: str

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:  # noqa: ARG002
        """Replace the tensors of each quantized module by a matrix. Raises CheckpointError if they do not match."""
        found: dict[str, Tensor] = {}
        used: set[str] = set()
        for kind in STEPS:
            for module in sorted(modules_of(tensors, STATE + kind)):
                found[f"{module}.weight"] = self._four_bits(module, kind, tensors)
                used |= {name for name in tensors if name.startswith(f"{module}.weight.")}
        for module in sorted(modules_of(tensors, "SCB")):
            found[f"{module}.weight"] = self._eight_bits(module, tensors)
            used |= {f"{module}.{kind}" for kind in ("weight", "SCB", "weight_format")}
        return QuantizedTensors({**{name: each for name, each in tensors.items() if name not in used}, **found})

    def _four_bits(self, module: str, kind: str, tensors: Mapping[str, SafetensorsTensor]) -> Tensor:
        name = f"{module}.weight"
        weight, absmax, table, state = (
            part(module, each, tensors, self.where)
            for each in ("weight", "weight.absmax", "weight.quant_map", STATE + kind)
        )
        require(state, (state.shape[0] if state.shape else 0,), ("U8",), self.where)
        where = f"{state.path}: {state.name}"
        values = parse_json_object(state.integers(0, state.shape[0]).tobytes(), where)
        config = ConfigReader(values, where)
        config.expect("quant_type", kind)
        shape, block = config.integers("shape") or (), config.integer("blocksize")
        if len(shape) != 2 or min(shape) < 1 or math.prod(shape) >= 2**48:
            raise config.contradiction("shape", f"'shape' is {list(shape)}, expected two sizes")
        rows, columns = shape
        elements = rows * columns
        blocks = -(-elements // block)
        require(weight, (-(-elements // 2), 1), ("U8",), self.where)
        require(table, (16,), ("F32",), self.where)
        nested = None
        if absmax.dtype == "U8":
            require(absmax, (blocks,), ("U8",), self.where)
            config.expect("nested_blocksize", NESTED_BLOCK)
            scales, steps = (
                part(module, f"weight.nested_{each}", tensors, self.where) for each in ("absmax", "quant_map")
            )
            require(scales, (-(-blocks // NESTED_BLOCK),), ("F32",), self.where)
            require(steps, (256,), ("F32",), self.where)
            offset = values.get("nested_offset")
            if not isinstance(offset, float):
                raise config.contradiction("nested_offset", f"'nested_offset' is {offset!r}, expected a number")
            nested = Nested(scales.rows(0, scales.shape[0]), steps.rows(0, 256), offset)
        else:
            require(absmax, (blocks,), ("F32",), self.where)
        stored = FourBits(weight, absmax, nested, table.rows(0, 16), columns, block)
        if not np.abs(stored.table).max() <= 1:
            raise CheckpointError(
                f"{table.path}: tensor {table.name} has values outside of -1 to 1; download the checkpoint again",
                tensor=table.name,
            )
        group = math.gcd(columns, block)
        if group % GROUP:
            return DequantizedMatrix(name, (rows, columns), kind, stored.floats)
        form = Codes(8, group)
        planes = partial(stored.planes, form, STEPS[kind])
        return StoredMatrix(name, (rows, columns), form, planes, source=kind, exact=stored.floats)

    def _eight_bits(self, module: str, tensors: Mapping[str, SafetensorsTensor]) -> StoredMatrix:
        weight, scales = (part(module, kind, tensors, self.where) for kind in ("weight", "SCB"))
        order = tensors.get(f"{module}.weight_format")
        if order is not None and (order.dtype != "U8" or order.integers(0, 1).any()):
            raise UnsupportedModel(
                f"{order.path}: tensor {order.name} names an order of elements for a kernel; save the model again with "
                "bitsandbytes 0.45 or later, which stores rows",
                tensor=order.name,
            )
        require(weight, weight.shape if len(weight.shape) == 2 else (0, 0), ("I8",), self.where)
        require(scales, weight.shape[:1], ("F32",), self.where)
        form = Codes(8, ROW)
        rows, columns = weight.shape
        return StoredMatrix(f"{module}.weight", (rows, columns), form, partial(_eight_planes, weight, scales, form))


@dataclass(frozen=True, slots=True)
class Nested:
    """Scales that are themselves quantized: ``values[code] * scales[code's block] + offset``."""

    scales: Floats
    values: Floats
    offset: float


@dataclass(frozen=True, slots=True)
class FourBits:
    """``block`` consecutive elements of all rows share a scale."""

    weight: SafetensorsTensor
    absmax: SafetensorsTensor
    nested: Nested | None
    table: Floats
    columns: int
    block: int

    def planes(self, form: Codes, steps: float, start: int, stop: int) -> dict[str, Array]:
        values = (np.rint(self.table * np.float32(steps)) + form.zero).astype(np.uint8)
        codes = values[self._halves(start, stop)].reshape(stop - start, self.columns)
        # Each group is inside one block.
        scales = self._scales(np.arange(start * self.columns, stop * self.columns, form.group))
        return form.store(codes, scales.reshape(stop - start, -1) / np.float32(steps))

    def floats(self, start: int, stop: int) -> Floats:
        elements = np.arange(start * self.columns, stop * self.columns)
        weights: Floats = self.table[self._halves(start, stop)] * self._scales(elements)
        return weights.reshape(stop - start, self.columns)

    def _halves(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """The codes of rows, one after another."""
        first, last = start * self.columns, stop * self.columns
        data = self.weight.integers(first // 2, -(-last // 2)).reshape(-1)
        halves = np.stack([data >> 4, data & 15], axis=1).reshape(-1)
        return halves[first % 2 : first % 2 + last - first]

    def _scales(self, elements: npt.NDArray[np.int64]) -> Floats:
        """The scales of elements in ascending order."""
        if not len(elements):
            return np.empty(0, np.float32)
        blocks = elements // self.block
        first, last = int(blocks[0]), int(blocks[-1]) + 1
        if self.nested is None:
            return self.absmax.rows(first, last)[blocks - first]
        codes = self.absmax.integers(first, last)
        outer = self.nested.scales[np.arange(first, last) // NESTED_BLOCK]
        scales: Floats = self.nested.values[codes] * outer + np.float32(self.nested.offset)
        return scales[blocks - first]


def _eight_planes(
    weight: SafetensorsTensor, scales: SafetensorsTensor, form: Codes, start: int, stop: int
) -> dict[str, Array]:
    codes = weight.integers(start, stop).view(np.uint8) ^ np.uint8(128)
    # Divided as bitsandbytes does.
    return form.store(codes, scales.rows(start, stop)[:, None] * np.float32(7.874015718698502e-3))


def read_quantization(config: ConfigReader) -> BitsAndBytesQuantization:
    """The section ``quantization_config``. Raises UnsupportedModel for a key that is not known."""
    config.expect("quant_method", METHOD)
    config.ignore(*IGNORED)
    config.finish()
    return BitsAndBytesQuantization(config.where)
