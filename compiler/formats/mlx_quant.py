"""Reads the weights of folders that mlx-lm quantized (mlx.core.quantize; mlx_lm, utils.py, load_model).

config.json has "quantization": {"group_size", "bits", "mode"}, and for some modules other values of these, or false.
The tensors of a quantized module X:

    X.weight   (N, K * bits / 32) uint32: a row is one stream of bits, the lowest first, in which a code may begin in
               one word and end in the next
    X.scales, X.biases   (N, K / group_size) float16, bfloat16 or float32 in the mode "affine", with codes of 2 to 8
               bits and groups of 32, 64 or 128 columns; a weight is code * scale + bias

In the other modes codes are small floats, E2M1 ("mxfp4", "nvfp4") or E4M3 ("mxfp8"), there are no biases, and scales
are bytes: powers of two for 32 columns, or E4M3 for 16 ("nvfp4"). Twice a float of E2M1 is a whole number, so it
becomes a code of 5 bits; weights of E4M3 become float16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.e4m3 import VALUES as E4M3_VALUES
from ..quant import Codes
from ..quant.base import Array, require_finite
from ..runtime.errors import CheckpointError
from .checkpoint import DequantizedMatrix, QuantizedTensors, StoredMatrix, Tensor
from .config import ConfigReader
from .packed_columns import part, require, unpack_stream
from .safetensors_file import SafetensorsTensor
from .small_floats import FP4_CODES, powers_of_two

# The key of config.json.
SECTION = "quantization"
AFFINE = "affine"
GROUPS = (32, 64, 128)
WIDTHS = (2, 3, 4, 5, 6, 8)
# The bits and the group of the modes of small floats.
FLOATS = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
# The dtypes of scales, with those of planes that hold them exactly.
_FACTORS = {"F16": "float16", "BF16": "float32", "F32": "float32"}


@dataclass(frozen=True, slots=True)
class Packed:
    """``mode``: AFFINE, or one of FLOATS."""

    mode: str
    bits: int
    group: int


@dataclass(frozen=True, slots=True)
class MlxQuantization:
    """``modules``: the settings of modules that differ from ``default``; None: the module stays floats."""

    where: str
    default: Packed
    modules: Mapping[str, Packed | None]

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:  # noqa: ARG002
        """Replace the tensors of quantized modules by a `StoredMatrix` each. A module is quantized if it has scales.

        Raises CheckpointError if the tensors do not match the configuration.
        """
        found: dict[str, Tensor] = {}
        quantized = {name.removesuffix(".scales") for name in tensors if name.endswith(".scales")}
        for name, tensor in tensors.items():
            module, _, kind = name.rpartition(".")
            if module not in quantized:
                found[name] = tensor
            elif kind == "weight":
                found[name] = self._matrix(module, tensors)
            elif kind not in ("scales", "biases"):
                # This is the bias of a projection.
                found[name] = tensor
        return QuantizedTensors(found)

    def _matrix(self, module: str, tensors: Mapping[str, SafetensorsTensor]) -> Tensor:
        found = (tensors.get(f"{module}.{kind}") for kind in ("weight", "scales", "biases"))
        weight, scales, biases = (None if each is None else as_matrix(each) for each in found)
        assert weight is not None
        assert scales is not None
        packed = self.modules.get(module, self.default)
        if packed is None:
            raise self._wrong(scales, f"is a scale, but {module} is not quantized by {SECTION!r}")
        if packed.mode != AFFINE:
            return self._floats(module, packed, tensors)
        if biases is None:
            raise self._wrong(scales, f"has no {module}.biases beside it")
        if weight.dtype != "U32" or len(weight.shape) != 2 or weight.shape[1] * 32 % packed.bits:
            raise self._wrong(
                weight,
                f"has dtype {weight.dtype} and shape {list(weight.shape)}; {packed.bits} bits are a matrix of U32",
            )
        rows, columns = weight.shape[0], weight.shape[1] * 32 // packed.bits
        expected = (rows, columns // packed.group)
        for factors in (scales, biases):
            if factors.shape != expected or columns % packed.group or factors.dtype not in _FACTORS:
                raise self._wrong(
                    factors,
                    f"has dtype {factors.dtype} and shape {list(factors.shape)}; expected floats of {list(expected)} "
                    f"for {packed.bits} bits in groups of {packed.group}",
                )
        widest = "float32" if "float32" in (_FACTORS[scales.dtype], _FACTORS[biases.dtype]) else "float16"
        form = Codes(packed.bits, packed.group, "b", widest)
        planes = partial(_read_planes, weight, scales, biases, form)
        return StoredMatrix(f"{module}.weight", (rows, columns), form, planes)

    def _floats(self, module: str, packed: Packed, tensors: Mapping[str, SafetensorsTensor]) -> Tensor:
        """A matrix of small floats."""
        weight, scales = (as_matrix(part(module, kind, tensors, self.where)) for kind in ("weight", "scales"))
        rows, words = weight.shape if len(weight.shape) == 2 else (0, 0)
        columns = words * 32 // packed.bits
        require(weight, (rows, columns * packed.bits // 32), ("U32",), self.where)
        require(scales, (rows, columns // packed.group), ("U8",), self.where)
        if columns % packed.group or f"{module}.biases" in tensors:
            raise self._wrong(weight, f"has {columns} columns and may have biases, which is not of mode {packed.mode}")
        name = f"{module}.weight"
        if packed.mode == "mxfp8":
            return DequantizedMatrix(name, (rows, columns), packed.mode, partial(_read_eights, weight, scales))
        # Scales of E4M3 are exact in float16.
        form = Codes(5, packed.group, "", "float16" if packed.mode == "nvfp4" else "float32")
        return StoredMatrix(name, (rows, columns), form, partial(_read_fours, weight, scales, form, packed.mode))

    def _wrong(self, tensor: SafetensorsTensor, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{tensor.path}: tensor {tensor.name} {problem} ({self.where}); download the checkpoint again",
            tensor=tensor.name,
        )


def as_matrix(tensor: SafetensorsTensor) -> SafetensorsTensor:
    """The matrices of experts, (E, N, K), one after the other."""
    if len(tensor.shape) != 3:
        return tensor
    return replace(tensor, shape=(tensor.shape[0] * tensor.shape[1], tensor.shape[2]))


def read_quantization(section: Mapping[str, Any], where: str) -> MlxQuantization:
    """Raises CheckpointError for a section that is damaged, UnsupportedModel for a mode, a width or a group that MLX
    does not have.
    """
    where = f"{where}: {SECTION}"
    modules = {key: value for key, value in section.items() if isinstance(value, dict | bool)}
    default = _packed(ConfigReader({key: value for key, value in section.items() if key not in modules}, where))
    read: dict[str, Packed | None] = {}
    for module, value in modules.items():
        if isinstance(value, bool):
            read[module] = default if value else None
        else:
            inherited = {"group_size": default.group, "bits": default.bits, "mode": default.mode}
            if value.get("mode", default.mode) != default.mode:
                inherited = {}
            read[module] = _packed(ConfigReader({**inherited, **value}, f"{where}: {module}"))
    return MlxQuantization(where, default, read)


def _packed(config: ConfigReader) -> Packed:
    config.expect("mode", AFFINE, *FLOATS)
    config.expect("quant_method", None, "mlx")
    mode = config.text("mode", default=AFFINE)
    bits, group = FLOATS.get(mode, (None, None))
    config.expect("bits", *(WIDTHS if bits is None else (bits,)))
    config.expect("group_size", *(GROUPS if group is None else (group,)))
    packed = Packed(mode, config.integer("bits", default=bits), config.integer("group_size", default=group))
    config.ignore("quant_method")
    config.finish()
    return packed


def _read_planes(
    weight: SafetensorsTensor, scales: SafetensorsTensor, biases: SafetensorsTensor, form: Codes, start: int, stop: int
) -> dict[str, Array]:
    codes = unpack_stream(weight.integers(start, stop), form.bits)
    return form.store(codes, scales.rows(start, stop), biases.rows(start, stop))


def _read_fours(
    weight: SafetensorsTensor, scales: SafetensorsTensor, form: Codes, mode: str, start: int, stop: int
) -> dict[str, Array]:
    stored = scales.integers(start, stop)
    values = E4M3_VALUES[stored] if mode == "nvfp4" else powers_of_two(stored)
    # The codes are those of twice the floats.
    return form.store(FP4_CODES[unpack_stream(weight.integers(start, stop), 4)], values / np.float32(2))


def _read_eights(
    weight: SafetensorsTensor, scales: SafetensorsTensor, start: int, stop: int
) -> npt.NDArray[np.float32]:
    values = E4M3_VALUES[unpack_stream(weight.integers(start, stop), 8)]
    factors = powers_of_two(scales.integers(start, stop))
    weights: npt.NDArray[np.float32] = values * np.repeat(factors, values.shape[1] // factors.shape[1], axis=1)
    require_finite(weights)
    return weights
