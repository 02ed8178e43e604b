"""Packing: convert a parameter to its MLX tensors, row by row.

Rows of a float32 matrix become the input of MLX's `quantized_matmul`: for each group of g weights along a row,
w = code * scale + bias. Codes and scales are those of `quant/`. There, w = (code - zero) * scale makes the bias
-zero * scale, and codes of checkpoints may have biases already.

    <name>.weight  (N, K * bits / 32) uint32: a row is one stream of bits, the lowest first
    <name>.scales, <name>.biases  (N, K / g), in the activations' dtype, as are norms, biases and dense matrices
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.ir.graph import Parameter
from nearfar.compiler.quant import GROUPS, Codes, Quantization, WeightForm, by_name, form_of
from nearfar.compiler.quant.base import FloatArray, require_finite
from nearfar.compiler.quant.codes import block_of
from nearfar.compiler.quant.q4 import Q4
from nearfar.compiler.quant.q8 import Q8
from nearfar.compiler.runtime.errors import QuantizationError, RequestError

Array = npt.NDArray[Any]

# The safetensors names of the dtypes of activations.
SAFETENSORS_DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
# The vectors that stay float32: the logarithms of decays, and what decides between close scores of experts.
FLOAT32 = (".A_log", ".expert_bias")
# The bounds of projections of Gemma 4's towers, of which some are infinite: one beyond a dtype's largest number is.
BOUNDS = (".input_min", ".input_max", ".output_min", ".output_max")
ITEM_BYTES = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class Packing:
    """The storage of every parameter of a folder. ``activation`` is the dtype of everything except codes and the
    vectors in FLOAT32.
    """

    quantization: Quantization
    activation: str

    @property
    def group(self) -> tuple[int, int] | None:
        """Weights per group and bits per weight; None if matrices are not quantized."""
        return group_of_form(self.quantization)

    def keeps_codes(self, parameter: Parameter) -> bool:
        """Whether the integers of a parameter are the checkpoint's own."""
        return parameter.form is not None and isinstance(form_of(parameter.form, self.quantization), Codes)

    def group_of(self, parameter: Parameter) -> tuple[int, int] | None:
        """`group` of one parameter, None for a vector or a matrix that must not be rounded. Raises QuantizationError
        for a width that is not a multiple of the group size, because MLX's kernels do not pad.
        """
        if parameter.columns is None:
            return None
        form = form_of(parameter.form, self.quantization)
        if isinstance(form, Codes):
            group = min(form.group, max(GROUPS)) or block_of(parameter.columns)
            if parameter.columns % group or group not in GROUPS or form.group % group:
                raise QuantizationError(
                    f"{parameter.name} has {parameter.columns} columns with scales of {form.name}, and MLX needs a "
                    f"multiple of {', '.join(map(str, GROUPS))}; use --target webgpu, cpu or cuda, or add "
                    "--requantize to convert the weights",
                    tensor=parameter.name,
                )
            return group, form.bits
        own = group_of_form(form)
        if own is not None and parameter.columns % own[0]:
            smallest = own[0] == min(GROUPS)
            advice = "--quantization f16" if smallest else "a smaller --group-size, or --quantization f16"
            raise QuantizationError(
                f"{parameter.name} has {parameter.columns} columns, not a multiple of the group size {own[0]}, "
                f"which MLX needs; "
                f"use {advice}",
                tensor=parameter.name,
            )
        return own

    def tensors(self, parameter: Parameter) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Names of a parameter's tensors with their safetensors dtype and shape. Raises the error of `group_of`."""
        dtype = SAFETENSORS_DTYPES[self._dtype_of(parameter)]
        of_parameter = self.group_of(parameter)
        if of_parameter is None or parameter.columns is None:
            return {parameter.name: (dtype, parameter.shape)}
        group, bits = of_parameter
        rows, module = parameter.rows, parameter.name.removesuffix(".weight")
        groups = (rows, parameter.columns // group)
        return {
            parameter.name: ("U32", (rows, parameter.columns * bits // 32)),
            f"{module}.scales": (dtype, groups),
            f"{module}.biases": (dtype, groups),
        }

    def pack(self, parameter: Parameter, rows: FloatArray) -> list[Array]:
        """Rows (n, K) or (n,) of a parameter as rows of each of its `tensors`. Raises QuantizationError if a value is
        out of range.
        """
        if parameter.columns is None:
            if parameter.name.endswith(BOUNDS):
                return [self._bounds(rows)]
            require_finite(rows)
            return [self._stored(rows, self._dtype_of(parameter))]
        form = self.quantization if parameter.form is None else by_name(parameter.form)
        planes, of_parameter = form.pack(rows), self.group_of(parameter)
        if of_parameter is None:
            return [self._stored(form.unpack(planes, parameter.columns))]
        _, bits = of_parameter
        codes = planes["q"].astype(np.uint32, copy=False)
        return self._quantized(
            in_order(codes) if bits == 4 else codes, planes["s"].astype(np.float32), np.float32(1 << (bits - 1))
        )

    def pack_planes(self, parameter: Parameter, planes: Mapping[str, Array]) -> list[Array]:
        """Rows of a checkpoint's own integers as rows of each of the parameter's `tensors`."""
        of_parameter = self.group_of(parameter)
        assert of_parameter is not None
        assert parameter.columns is not None
        group, bits = of_parameter
        form = form_of(parameter.form, self.quantization)
        assert isinstance(form, Codes)
        words = pack_stream(form.codes(planes)[:, : parameter.columns], bits)
        # A scale may belong to several groups of MLX's.
        groups = parameter.columns // group
        scales, *offsets = (
            np.repeat(planes[name].astype(np.float32), groups // planes[name].shape[1], axis=1)
            for name in ("s", *form.offset)
        )
        if form.offset == "b":
            return [words, self._stored(scales), self._stored(offsets[0])]
        return self._quantized(words, scales, offsets[0] if offsets else np.float32(form.zero))

    def _quantized(self, words: Array, scales: FloatArray, zero: FloatArray | np.float32) -> list[Array]:
        return [words, self._stored(scales), self._stored(scales * -zero)]

    def _bounds(self, values: FloatArray) -> Array:
        if self.activation != "float16":
            return self._stored(values)
        with np.errstate(over="ignore"):
            return values.astype(np.float16)

    def _dtype_of(self, parameter: Parameter) -> str:
        return "float32" if parameter.name.endswith(FLOAT32) else self.activation

    def _stored(self, values: FloatArray, dtype: str | None = None) -> Array:
        """Values in a dtype, by default the activations'; bfloat16 as its bits, uint16."""
        dtype = dtype or self.activation
        if dtype == "float32":
            return values
        if dtype == "bfloat16":
            bits = values.view(np.uint32)
            # Rounded to nearest, ties to even.
            return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        if np.abs(values).max(initial=0) > np.finfo(np.float16).max:
            raise QuantizationError("values exceed float16's largest, 65504; use --activations bfloat16 or float32")
        return values.astype(np.float16)


def group_of_form(form: WeightForm) -> tuple[int, int] | None:
    """Weights per group and bits per weight of a format of ours; None if it does not quantize."""
    if isinstance(form, Q4 | Q8):
        return form.group, 4 if isinstance(form, Q4) else 8
    return None


def kv_group(head_dim: int) -> int:
    """The number of elements of a key that share a scale if keys and values are 8-bit integers. Raises RequestError if
    no group size fits.
    """
    for group in (64, 32):
        if head_dim % group == 0:
            return group
    raise RequestError(
        f"--kv q8: the model's head size of {head_dim} is not a multiple of 32, which MLX needs; leave it out"
    )


def pack_stream(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """Rows of codes (n, K), K a multiple of 32, as streams of bits (n, K * bits / 32), the lowest first."""
    single = np.unpackbits(codes[..., None], axis=2, count=bits, bitorder="little")
    return np.packbits(single.reshape(len(codes), -1), axis=1, bitorder="little").view(np.uint32)


def in_order(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Words of 8 codes as `q4.py` packs them (element b in the low half of byte b, element b + 4 in the high one) with
    element i in bits [4 i, 4 i + 4).
    """
    low, high = words & np.uint32(0x0F0F0F0F), words >> np.uint32(4) & np.uint32(0x0F0F0F0F)
    return together(low) | together(high) << np.uint32(16)


def together(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Four codes, one in each byte, moved into the low 16 bits."""
    pairs = (words | words >> np.uint32(4)) & np.uint32(0x00FF00FF)
    return (pairs | pairs >> np.uint32(8)) & np.uint32(0xFFFF)
