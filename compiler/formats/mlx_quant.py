"""Reads the weights of folders that mlx-lm quantized with its mode "affine": codes of 2 to 8 bits with a scale and a
bias for 32, 64 or 128 columns (mlx.core.quantize; mlx_lm, utils.py, load_model).

config.json has "quantization": {"group_size", "bits", "mode"}, and for some modules other values of these, or false.
The tensors of a quantized module X:

    X.weight   (N, K * bits / 32) uint32: a row is one stream of bits, the lowest first, in which a code may begin in
               one word and end in the next
    X.scales, X.biases   (N, K / group_size) float16, bfloat16 or float32; a weight is code * scale + bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import CheckpointError
from ..quant import Codes
from ..quant.base import Array
from .checkpoint import QuantizedTensors, StoredMatrix, Tensor
from .config import ConfigReader
from .packed_columns import unpack_stream
from .safetensors_file import SafetensorsTensor

# The key of config.json.
SECTION = "quantization"
GROUPS = (32, 64, 128)
WIDTHS = (2, 3, 4, 5, 6, 8)
# The dtypes of scales, with those of planes that hold them exactly.
_FACTORS = {"F16": "float16", "BF16": "float32", "F32": "float32"}


@dataclass(frozen=True, slots=True)
class Affine:
    bits: int
    group: int


@dataclass(frozen=True, slots=True)
class MlxQuantization:
    """``modules``: the settings of modules that differ from ``default``; None: the module stays floats."""

    where: str
    default: Affine
    modules: Mapping[str, Affine | None]

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

    def _matrix(self, module: str, tensors: Mapping[str, SafetensorsTensor]) -> StoredMatrix:
        weight, scales, biases = (tensors.get(f"{module}.{kind}") for kind in ("weight", "scales", "biases"))
        assert weight is not None
        assert scales is not None
        affine = self.modules.get(module, self.default)
        if affine is None:
            raise self._wrong(scales, f"is a scale, but {module} is not quantized by {SECTION!r}")
        if biases is None:
            raise self._wrong(scales, f"has no {module}.biases beside it")
        if weight.dtype != "U32" or len(weight.shape) != 2 or weight.shape[1] * 32 % affine.bits:
            raise self._wrong(
                weight,
                f"has dtype {weight.dtype} and shape {list(weight.shape)}; {affine.bits} bits are a matrix of U32",
            )
        rows, columns = weight.shape[0], weight.shape[1] * 32 // affine.bits
        expected = (rows, columns // affine.group)
        for factors in (scales, biases):
            if factors.shape != expected or columns % affine.group or factors.dtype not in _FACTORS:
                raise self._wrong(
                    factors,
                    f"has dtype {factors.dtype} and shape {list(factors.shape)}; expected floats of {list(expected)} "
                    f"for {affine.bits} bits in groups of {affine.group}",
                )
        widest = "float32" if "float32" in (_FACTORS[scales.dtype], _FACTORS[biases.dtype]) else "float16"
        form = Codes(affine.bits, affine.group, "b", widest)
        planes = partial(_read_planes, weight, scales, biases, form)
        return StoredMatrix(f"{module}.weight", (rows, columns), form, planes)

    def _wrong(self, tensor: SafetensorsTensor, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{tensor.path}: tensor {tensor.name} {problem} ({self.where}); download the checkpoint again",
            tensor=tensor.name,
        )


def read_quantization(section: Mapping[str, Any], where: str) -> MlxQuantization:
    """Raises CheckpointError for a section that is damaged, UnsupportedModel for a mode, a width or a group that MLX's
    affine mode does not have.
    """
    where = f"{where}: {SECTION}"
    modules = {key: value for key, value in section.items() if isinstance(value, dict | bool)}
    default = _affine(ConfigReader({key: value for key, value in section.items() if key not in modules}, where))
    read: dict[str, Affine | None] = {}
    for module, value in modules.items():
        if isinstance(value, bool):
            read[module] = default if value else None
        else:
            inherited = {"group_size": default.group, "bits": default.bits}
            read[module] = _affine(ConfigReader({**inherited, **value}, f"{where}: {module}"))
    return MlxQuantization(where, default, read)


def _affine(config: ConfigReader) -> Affine:
    config.expect("mode", "affine")
    config.expect("quant_method", None, "mlx")
    config.expect("bits", *WIDTHS)
    config.expect("group_size", *GROUPS)
    affine = Affine(config.integer("bits"), config.integer("group_size"))
    config.ignore("mode", "quant_method")
    config.finish()
    return affine


def _read_planes(
    weight: SafetensorsTensor, scales: SafetensorsTensor, biases: SafetensorsTensor, form: Codes, start: int, stop: int
) -> dict[str, Array]:
    codes = unpack_stream(weight.integers(start, stop), form.bits)
    return form.store(codes, scales.rows(start, stop), biases.rows(start, stop))
