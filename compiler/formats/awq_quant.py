"""Reads the weights of AutoAWQ's layout "gemm": 4 bits with zero points (casper-hansen/AutoAWQ,
awq/utils/packing_utils.py; onnxruntime-genai, models/loaders/awq.py).

The tensors of a quantized module X with a weight (N, K):

    X.qweight   (K, N / 8) int32: bits 4 i to 4 i + 3 of word c are the code of row 8 c + ORDER[i]
    X.qzeros    (K / group_size, N / 8) int32, in the same order
    X.scales    (K / group_size, N) float16; a weight is (code - zero point) * scale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..quant import Codes
from ..quant.base import Array
from ..runtime.errors import CheckpointError
from .checkpoint import QuantizedTensors, StoredMatrix, Tensor
from .config import ConfigReader
from .packed_columns import Codes8, modules_of, part, require
from .safetensors_file import SafetensorsTensor

METHOD = "awq"
BITS = 4
# For each nibble of a word, from the lowest on, its row relative to the word's first row.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
ROWS = len(ORDER)
KINDS = ("qweight", "qzeros", "scales")


@dataclass(frozen=True, slots=True)
class AwqQuantization:
    where: str
    group: int

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:  # noqa: ARG002
        """Replace the tensors of quantized modules by a `StoredMatrix` each. Raises CheckpointError if they do not
        match the configuration.
        """
        modules = modules_of(tensors, "qweight")
        found: dict[str, Tensor] = {f"{module}.weight": self._matrix(module, tensors) for module in sorted(modules)}
        for name, tensor in tensors.items():
            module, _, kind = name.rpartition(".")
            if module not in modules or kind not in KINDS:
                found[name] = tensor
        return QuantizedTensors(found)

    def _matrix(self, module: str, tensors: Mapping[str, SafetensorsTensor]) -> StoredMatrix:
        weight, zeros, scales = (part(module, kind, tensors, self.where) for kind in KINDS)
        columns = weight.shape[0]
        rows = weight.shape[-1] * ROWS
        require(weight, (columns, rows // ROWS), ("I32",), self.where)
        if columns % self.group:
            raise CheckpointError(
                f"{weight.path}: {weight.name} has {columns} columns, which are no groups of {self.group} "
                f"({self.where}: 'group_size'); the weights belong to another config.json, or must be quantized in "
                "groups that divide them",
                tensor=weight.name, key="group_size",
            )  # fmt: skip
        require(zeros, (columns // self.group, rows // ROWS), ("I32",), self.where)
        require(scales, (columns // self.group, rows), ("F16",), self.where)
        form = Codes(BITS, self.group, "z", "float16")
        return StoredMatrix(f"{module}.weight", (rows, columns), form, partial(_planes, weight, zeros, scales, form))


def read_quantization(config: ConfigReader) -> AwqQuantization:
    """The section ``quantization_config``. Raises UnsupportedModel for another layout than "gemm"."""
    config.expect("quant_method", METHOD)
    config.expect("bits", BITS)
    config.expect("w_bit", BITS)
    config.expect("version", "gemm", "GEMM")
    config.expect("zero_point", True)
    config.expect("group_size", 32, 64, 128)
    config.integer("bits", default=BITS)
    # Modules without codes are floats. Keys about the kernels of other libraries are ignored.
    config.ignore(
        "modules_to_not_convert", "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config"
    )
    read = AwqQuantization(config.where, config.integer("group_size", default=128))
    config.finish()
    return read


def _planes(
    weight: SafetensorsTensor, zeros: SafetensorsTensor, scales: SafetensorsTensor, form: Codes, start: int, stop: int
) -> dict[str, Array]:
    codes, points = unpack(weight, start, stop).T, unpack(zeros, start, stop).T
    return form.store(np.ascontiguousarray(codes), scales.columns(start, stop).T, points.astype(np.float32))


def unpack(tensor: SafetensorsTensor, start: int, stop: int) -> Codes8:
    """Codes (R, stop - start) of words (R, N / 8)."""
    first = start // ROWS
    words = tensor.columns(first, -(-stop // ROWS)).view(np.uint32)
    codes = np.empty((*words.shape, ROWS), np.uint8)
    for place, row in enumerate(ORDER):
        codes[..., row] = words >> np.uint32(BITS * place) & np.uint32(15)
    return codes.reshape(len(words), -1)[:, start - first * ROWS : stop - first * ROWS]
