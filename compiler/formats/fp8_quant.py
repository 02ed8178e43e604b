"""Reads checkpoints whose weights are 8-bit floats (E4M3) with scales: `quant_method: "fp8"`, which transformers, vLLM
and AutoFP8 write (transformers, integrations/finegrained_fp8.py), and "fbgemm_fp8". No kernel reads such weights, so
they become wider floats.

The tensors of a quantized module X with a weight (N, K):

    X.weight            (N, K) float8
    X.weight_scale_inv or X.weight_scale   one value, one for each row, or one for each block of ``weight_block_size``;
                        despite the first name, it is a factor of the weights. uint8 and E8M0 are powers of two
    X.activation_scale, X.input_scale, X.act_scale   scales of activations, which are not rounded here
    X.k_scale, X.v_scale, X.kv_scale   scales of 8-bit keys and values, which are not rounded with them here
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..runtime.errors import CheckpointError
from .checkpoint import QuantizedTensors, Tensor
from .config import ConfigReader
from .packed_columns import part
from .safetensors_file import SafetensorsTensor
from .scale_grid import EXPONENTS, FLOAT8, FLOATS, WHOLE, ScaleGrid, float8_matrix, float8_note

METHODS = ("fp8", "fbgemm_fp8")
DEFAULT_BLOCK = 128, 128
SCALES = ("weight_scale_inv", "weight_scale")
OF_ACTIVATIONS = ("activation_scale", "input_scale", "input_scale_ub", "act_scale")
OF_CACHE = ("k_scale", "v_scale", "kv_scale")


@dataclass(frozen=True, slots=True)
class Fp8Quantization:
    """``block``: the rows and columns that share a scale, unless a complete row or the matrix shares one."""

    where: str
    block: tuple[int, int]

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:  # noqa: ARG002
        """Replace the tensors of each quantized module by a matrix. Raises CheckpointError if they do not match the
        configuration.
        """
        quantized = {
            module
            for name, tensor in tensors.items()
            if tensor.dtype == FLOAT8 and (module := name.removesuffix(".weight")) != name
        }
        found: dict[str, Tensor] = {f"{module}.weight": self._matrix(module, tensors) for module in sorted(quantized)}
        rounds_cache = False
        for name, tensor in tensors.items():
            module, _, kind = name.rpartition(".")
            if kind in OF_CACHE:
                rounds_cache = True
            elif kind in SCALES and module not in quantized:
                raise CheckpointError(
                    f"{tensor.path}: tensor {name} is a scale, but {module}.weight has no 8-bit floats ({self.where}); "
                    "download the checkpoint again",
                    tensor=name,
                )
            elif kind not in OF_ACTIVATIONS and not (module in quantized and kind in ("weight", *SCALES)):
                found[name] = tensor
        notes = [
            float8_note(self.where, len(quantized)),
            f"{self.where}: activations are not rounded to 8 bits, which is more exact than the checkpoint's scheme",
        ]
        if rounds_cache:
            notes.append(
                f"{self.where}: keys and values are not rounded with the checkpoint's scales; --kv q8 rounds them"
            )
        return QuantizedTensors(found, notes=tuple(notes) if quantized else ())

    def _matrix(self, module: str, tensors: Mapping[str, SafetensorsTensor]) -> Tensor:
        weight = tensors[f"{module}.weight"]
        kind = next((kind for kind in SCALES if f"{module}.{kind}" in tensors), SCALES[0])
        scale = part(module, kind, tensors, self.where)
        if len(weight.shape) != 2:
            raise CheckpointError(
                f"{weight.path}: tensor {weight.name} has shape {list(weight.shape)}; expected a matrix ({self.where})",
                tensor=weight.name,
            )
        rows, columns = weight.shape
        block = self.block
        if math.prod(scale.shape) == 1:
            block = WHOLE, WHOLE
        elif scale.shape in ((rows,), (rows, 1)):
            block = 1, WHOLE
        grid = ScaleGrid.of(scale, (rows, columns), block, (*FLOATS, *EXPONENTS), self.where)
        return float8_matrix(weight.name, weight, grid)


def read_quantization(config: ConfigReader) -> Fp8Quantization:
    """The section ``quantization_config``. Raises CheckpointError for a damaged one, UnsupportedModel for an unknown
    key.
    """
    config.expect("quant_method", *METHODS)
    config.expect("activation_scheme", "dynamic", "static")
    config.expect("fmt", "e4m3", "float8_e4m3fn", None)
    config.expect("scale_fmt", "float", "ue8m0", None)
    config.expect("expert_dtype", "fp8", None)
    block = config.integers("weight_block_size")
    if block is not None and (len(block) != 2 or min(block) < 1):
        raise config.contradiction("weight_block_size", f"'weight_block_size' is {list(block)}, expected two sizes")
    # The types of the weights determine which modules are quantized.
    config.ignore(
        "activation_scale_ub", "activation_scheme", "dequantize", "expert_dtype", "fmt", "ignored_layers",
        "modules_to_convert", "modules_to_not_convert", "quant_method", "scale_fmt",
    )  # fmt: skip
    config.finish()
    return Fp8Quantization(config.where, DEFAULT_BLOCK if block is None else (block[0], block[1]))
