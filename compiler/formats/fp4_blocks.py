"""Matrices of FP4 (E2M1) with a scale for each block of columns, as codes of 5 bits, which is exact; and the reader of
transformers' `quant_method: "mxfp4"` (integrations/mxfp4.py), which stores a matrix X (N, K) as

    X_blocks  (N, K / 32, 16) uint8: pairs, the lower half first
    X_scales  (N, K / 32) uint8: powers of two

A stack of experts has one more dimension, before the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..quant import Codes
from ..quant.base import Array, FloatArray
from .checkpoint import QuantizedTensors, StoredMatrix, Tensor
from .config import ConfigReader
from .packed_columns import part, require
from .safetensors_file import SafetensorsTensor
from .small_floats import FP4_CODES, powers_of_two

METHOD = "mxfp4"
BLOCK, BLOCKS, SCALES = 32, "_blocks", "_scales"


def fp4_matrix(
    name: str,
    pairs: Callable[[int, int], npt.NDArray[np.uint8]],
    scales: Callable[[int, int], FloatArray],
    shape: tuple[int, int],
    form: Codes,
) -> StoredMatrix:
    """``pairs(start, stop)`` reads rows (n, K / 2) of pairs, ``scales(start, stop)`` their scales (n, groups).
    ``form``: 5 bits, in the same groups.
    """

    def planes(start: int, stop: int) -> dict[str, Array]:
        stored = pairs(start, stop)
        codes = FP4_CODES[np.stack((stored & 15, stored >> 4), axis=-1)].reshape(len(stored), -1)
        # The codes are twice the values of FP4.
        return form.store(codes, scales(start, stop) / 2)

    return StoredMatrix(name, shape, form, planes)


@dataclass(frozen=True, slots=True)
class Mxfp4Quantization:
    where: str

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:  # noqa: ARG002
        """Raises CheckpointError if tensors do not fit together."""
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if name.endswith(BLOCKS):
                matrix = name.removesuffix(BLOCKS)
                found[matrix] = self._matrix(matrix, tensor, tensors)
            elif not (name.endswith(SCALES) and f"{name.removesuffix(SCALES)}{BLOCKS}" in tensors):
                found[name] = tensor
        return QuantizedTensors(found)

    def _matrix(self, name: str, blocks: SafetensorsTensor, tensors: Mapping[str, SafetensorsTensor]) -> Tensor:
        *stack, groups, _ = blocks.shape if len(blocks.shape) in (3, 4) else (0, 0, 0)
        require(blocks, (*stack, groups, BLOCK // 2), ("U8",), self.where)
        module, _, kind = name.rpartition(".")
        scales = part(module, f"{kind}{SCALES}", tensors, self.where)
        require(scales, (*stack, groups), ("U8",), self.where)
        # The rows of all experts, one after the other.
        rows = math.prod(stack)
        blocks, scales = replace(blocks, shape=(rows, groups, BLOCK // 2)), replace(scales, shape=(rows, groups))
        return fp4_matrix(
            name,
            lambda start, stop: blocks.integers(start, stop).reshape(stop - start, -1),
            lambda start, stop: powers_of_two(scales.integers(start, stop)),
            (rows, groups * BLOCK),
            Codes(5, BLOCK),
        )


def read_quantization(config: ConfigReader) -> Mxfp4Quantization:
    """The section ``quantization_config``. Raises UnsupportedModel for an unknown key."""
    config.expect("quant_method", METHOD)
    config.ignore("dequantize", "modules_to_not_convert")
    config.finish()
    return Mxfp4Quantization(config.where)
