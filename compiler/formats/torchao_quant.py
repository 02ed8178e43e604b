"""Reads the weights of torchao's checkpoints in safetensors files: `quant_method: "torchao"` (pytorch/ao,
prototype/safetensors and quantization/quantize_/workflows). The metadata of a file name the class of each weight.

The tensors of a quantized weight X.weight (N, K):

    Int4Tensor               X._weight_qdata (N, K / 2) uint8: pairs of integers from -8, the lower half first;
                             X._weight_scale and X._weight_zero_point (K / group, N): a weight is integer * scale + zero
                             point
    IntxUnpackedToInt8Tensor X._weight_qdata (N, K) int8 of `target_dtype`; X._weight_scale and X._weight_zero_point
                             (N, K / group): a weight is (integer - zero point) * scale
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..quant import ROW, Codes
from ..quant.base import Array
from ..quant.codes import WIDTHS
from ..runtime.errors import CheckpointError, QuantizationError, UnsupportedModel
from .checkpoint import QuantizedTensors, StoredMatrix, Tensor
from .config import ConfigReader
from .packed_columns import codes_of, part, require
from .safetensors_file import SafetensorsTensor, read_metadata
from .scale_grid import FLOATS

METHOD = "torchao"
INT4, INTX = "Int4Tensor", "IntxUnpackedToInt8Tensor"
PART = re.compile(r"(.*\.)_weight_(qdata|scale|zero_point|\w+)")
_TARGET = re.compile(r'"int([1-8])"')


@dataclass(frozen=True, slots=True)
class TorchAoQuantization:
    where: str

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:  # noqa: ARG002
        """Raises CheckpointError if tensors do not fit together, UnsupportedModel for another class of tensors."""
        described = {
            name: value
            for path in sorted({tensor.path for tensor in tensors.values()})
            for name, value in read_metadata(path).items()
        }
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            match = PART.fullmatch(name)
            if match is None:
                found[name] = tensor
            elif match[2] == "qdata":
                module = match[1][:-1]
                found[f"{module}.weight"] = self._matrix(module, tensors, described)
        return QuantizedTensors(found)

    def _matrix(
        self, module: str, tensors: Mapping[str, SafetensorsTensor], described: Mapping[str, str]
    ) -> StoredMatrix:
        name = f"{module}.weight"
        parts = [part(module, f"_weight_{kind}", tensors, self.where) for kind in ("qdata", "scale", "zero_point")]
        kind, data = self._described(parts[0].path, name, described)
        scaled = f"{module}._weight_act_pre_scale" in tensors
        if kind not in (INT4, INTX) or scaled:
            raise UnsupportedModel(
                f"{parts[0].path}: {name} is of torchao's class {kind}{' with act_pre_scale' if scaled else ''}, which "
                f"is not supported; supported: {INT4}, {INTX}; pass the unquantized checkpoint that it was made from",
                tensor=name,
            )
        return self._int4(name, parts) if kind == INT4 else self._intx(name, parts, data)

    def _described(self, path: Path, name: str, described: Mapping[str, str]) -> tuple[str, Mapping[str, Any]]:
        try:
            value = json.loads(described[name])
            return str(value["_type"]), dict(value["_data"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path}: the file's metadata do not describe {name} as torchao does; download it again", tensor=name
            ) from error

    def _int4(self, name: str, parts: Sequence[SafetensorsTensor]) -> StoredMatrix:
        qdata, scale, zero = parts
        rows, columns = qdata.shape[0], 2 * qdata.shape[-1]
        groups = scale.shape[0]
        require(qdata, (rows, columns // 2), ("U8",), self.where)
        for each in (scale, zero):
            require(each, (groups, rows), FLOATS, self.where)
        form = self._form(name, 4, columns, groups, "b")

        def planes(start: int, stop: int) -> dict[str, Array]:
            pairs = qdata.integers(start, stop)
            # A nibble of two's complement plus 8.
            codes = (np.stack((pairs & 15, pairs >> 4), axis=-1) ^ np.uint8(8)).reshape(len(pairs), -1)
            scales = scale.columns(start, stop).T.astype(np.float32)
            return form.store(codes, scales, zero.columns(start, stop).T.astype(np.float32) - 8 * scales)

        return StoredMatrix(name, (rows, columns), form, planes)

    def _intx(self, name: str, parts: Sequence[SafetensorsTensor], data: Mapping[str, Any]) -> StoredMatrix:
        qdata, scale, zero = parts
        rows, columns = qdata.shape[0], qdata.shape[-1]
        match = _TARGET.search(json.dumps(data.get("target_dtype")))
        if match is None:
            raise CheckpointError(f"{qdata.path}: {name}: 'target_dtype' is {data.get('target_dtype')!r}", tensor=name)
        groups = scale.shape[-1]
        require(qdata, (rows, columns), ("I8",), self.where)
        require(scale, (rows, groups), FLOATS, self.where)
        require(zero, (rows, groups), (*FLOATS, "I8", "I32"), self.where)
        bits = next(width for width in WIDTHS if width >= int(match[1]))
        form = self._form(name, bits, columns, groups, "z")
        return StoredMatrix(name, (rows, columns), form, partial(_intx_planes, qdata, scale, zero, form))

    def _form(self, name: str, bits: int, columns: int, groups: int, offset: str) -> Codes:
        if groups < 1 or columns % groups:
            raise UnsupportedModel(
                f"{self.where}: {name}: {groups} groups do not divide {columns} columns", tensor=name
            )
        return codes_of(bits, ROW if groups == 1 else columns // groups, offset, where=self.where, module=name)


def read_quantization(config: ConfigReader) -> TorchAoQuantization:
    """The section ``quantization_config``. The tensors say how they are stored. Raises UnsupportedModel for an unknown
    key.
    """
    config.expect("quant_method", METHOD)
    config.ignore(
        "include_input_output_embeddings", "modules_to_not_convert", "quant_type", "quant_type_kwargs",
        "untie_embedding_weights",
    )  # fmt: skip
    config.finish()
    return TorchAoQuantization(config.where)


def _intx_planes(
    qdata: SafetensorsTensor, scale: SafetensorsTensor, zero: SafetensorsTensor, form: Codes, start: int, stop: int
) -> dict[str, Array]:
    stored = qdata.integers(start, stop).astype(np.int16) + form.zero
    if stored.size and (stored.min() < 0 or stored.max() >= 1 << form.bits):
        raise QuantizationError(
            f"{qdata.path}: tensor {qdata.name} has integers of more than {form.bits} bits; download it again",
            tensor=qdata.name,
        )
    points = zero.rows(start, stop) if zero.dtype in FLOATS else zero.integers(start, stop).astype(np.float32)
    return form.store(stored.astype(np.uint8), scale.rows(start, stop), points + np.float32(form.zero))
