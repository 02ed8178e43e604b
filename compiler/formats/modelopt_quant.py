"""Reads checkpoints of NVIDIA's Model Optimizer with weights of FP8 or NVFP4 (NVIDIA/Model-Optimizer,
modelopt/torch/export/quant_utils.py and convert_hf_config.py): `quant_method: "modelopt"` in config.json.

The tensors of a quantized module X with a weight (N, K):

    FP8     X.weight (N, K) float8 and X.weight_scale, as of the other FP8 checkpoints
    NVFP4   X.weight (N, K / 2) uint8: pairs of FP4, the lower half first; X.weight_scale (N, K / 16) float8, and
            X.weight_scale_2, one float32: a weight is its value times both scales
    X.input_scale, and attention's k_scale and v_scale: rounding of activations, keys and values, which is not computed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..quant import Codes
from ..runtime.errors import UnsupportedModel
from .checkpoint import QuantizedTensors, Tensor
from .config import ConfigReader
from .fp4_blocks import fp4_matrix
from .fp8_quant import DEFAULT_BLOCK, Fp8Quantization
from .packed_columns import part, require
from .safetensors_file import SafetensorsTensor
from .scale_grid import FLOAT8, FLOATS, ScaleGrid

METHODS = ("modelopt", "modelopt_fp4")
ALGORITHMS = ("FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION", "NVFP4", "W4A16_NVFP4")
GROUP = 16
OF_NVFP4 = ("weight", "weight_scale", "weight_scale_2")


@dataclass(frozen=True, slots=True)
class ModelOptQuantization:
    where: str

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:
        """Raises CheckpointError if tensors do not fit together, UnsupportedModel for inputs that are multiplied."""
        found: dict[str, Tensor] = {}
        rest: dict[str, SafetensorsTensor] = {}
        packed = {name.removesuffix(".weight_scale_2") for name in tensors if name.endswith(".weight_scale_2")}
        for name, tensor in tensors.items():
            module, _, kind = name.rpartition(".")
            if kind == "pre_quant_scale":
                raise UnsupportedModel(
                    f"{tensor.path}: tensor {name} multiplies the module's input (AWQ of Model Optimizer), which is "
                    "not supported; pass the unquantized checkpoint that it was made from",
                    tensor=name,
                )
            if module in packed and kind in OF_NVFP4:
                if kind == "weight":
                    found[name] = self._nvfp4(module, tensors)
            else:
                rest[name] = tensor
        # Keys and values have scales beside the projections, as in other FP8 checkpoints.
        read = Fp8Quantization(self.where, DEFAULT_BLOCK).read_tensors(rest, tied=tied)
        note = f"{self.where}: activations are not rounded to 4 bits, which is more exact than the checkpoint's scheme"
        return QuantizedTensors({**found, **read.tensors}, notes=(*([note] if found else []), *read.notes))

    def _nvfp4(self, module: str, tensors: Mapping[str, SafetensorsTensor]) -> Tensor:
        weight, scale, whole = (part(module, kind, tensors, self.where) for kind in OF_NVFP4)
        require(weight, (weight.shape[0], weight.shape[-1]), ("U8",), self.where)
        shape = weight.shape[0], 2 * weight.shape[1]
        grid = ScaleGrid.of(scale, shape, (1, GROUP), (FLOAT8,), self.where)
        factor = ScaleGrid.of(whole, (1, 1), (1, 1), FLOATS, self.where).rows(0, 1)[0, 0]
        return fp4_matrix(
            weight.name, weight.integers, lambda start, stop: grid.rows(start, stop) * factor, shape, Codes(5, GROUP)
        )


def read_quantization(config: ConfigReader) -> ModelOptQuantization:
    """The section ``quantization_config``. Raises UnsupportedModel for another algorithm or an unknown key."""
    config.expect("quant_method", *METHODS)
    config.expect("quant_algo", *ALGORITHMS)
    config.expect("group_size", GROUP, 128, None)
    # The types of the weights determine which modules are quantized.
    config.ignore(
        "config_groups", "exclude_modules", "ignore", "kv_cache_quant_algo", "kv_cache_scheme", "producer",
        "quantized_layers",
    )  # fmt: skip
    config.finish()
    return ModelOptQuantization(config.where)
