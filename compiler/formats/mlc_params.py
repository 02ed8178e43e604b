"""Reads the weights of folders that mlc-llm wrote: tensor-cache.json (before 2025 ndarray-cache.json), which lists the
tensors, and params_shard_*.bin, which contain only their bytes (tvm.contrib.tvmjs, dump_tensor_cache).

A float32 tensor with the format "f32-to-bf16" is stored as bfloat16. The tensors of a quantized module X with a weight
(N, K), in groups of ``group`` columns (mlc-llm, quantization/group_quantization.py):

    X.q_weight   (N, ceil(K / group) * words) uint32, with 32 // bits codes in each word, the lowest bits first
    X.q_scale    (N, ceil(K / group)) float16 or float32; a weight is (code - (2^(bits - 1) - 1)) * scale

In the formats named _0, both are transposed, except the embedding's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..quant import Codes
from ..quant.base import GROUP, Array
from ..runtime.errors import CheckpointError, QuantizationError, UnsupportedModel
from .checkpoint import DequantizedMatrix, StoredMatrix, Tensor
from .config import ConfigReader
from .json_file import read_json_object
from .packed_columns import part, require
from .safetensors_file import SafetensorsTensor

INDEX_FILES = ("tensor-cache.json", "ndarray-cache.json")
# The names of dtypes in the index, and in safetensors.
DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "uint32": "U32"}
_BYTES = {"F16": 2, "BF16": 2, "F32": 4, "U32": 4}
AS_BFLOAT16 = "f32-to-bf16"
# A name that contains a folder could lead anywhere on this machine.
_SHARD_NAME = re.compile(r"params_shard_\d{1,6}\.bin")
EMBEDDING = "model.embed_tokens"
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class MlcFormat:
    """``transposes``: matrices are stored as (K, N)."""

    bits: int
    group: int
    transposes: bool

    @property
    def codes_a_word(self) -> int:
        return 32 // self.bits

    @property
    def zero(self) -> int:
        return (1 << (self.bits - 1)) - 1


# The formats by mlc-llm's names; None: floats.
FORMATS = {
    "q0f16": None,
    "q0bf16": None,
    "q0f32": None,
    "q3f16_0": MlcFormat(3, 40, transposes=True),
    "q3f16_1": MlcFormat(3, 40, transposes=False),
    "q4f16_0": MlcFormat(4, 32, transposes=True),
    "q4f16_1": MlcFormat(4, 32, transposes=False),
    "q4f16_2": MlcFormat(4, 32, transposes=False),
    "q4bf16_0": MlcFormat(4, 32, transposes=True),
    "q4bf16_1": MlcFormat(4, 32, transposes=False),
    "q4f32_1": MlcFormat(4, 32, transposes=False),
}


def format_of(chat: ConfigReader) -> MlcFormat | None:
    """Raises UnsupportedModel for a quantization that is not in FORMATS."""
    chat.expect("quantization", *FORMATS)
    return FORMATS[chat.text("quantization")]


def read_records(folder: Path) -> dict[str, SafetensorsTensor]:
    """The tensors of a folder. Raises CheckpointError unless the index and the files agree."""
    index = next((folder / name for name in INDEX_FILES if (folder / name).is_file()), None)
    if index is None:
        raise _bad(folder, f"has neither {' nor '.join(INDEX_FILES)}; download the weights too")
    shards = read_json_object(index).get("records")
    if not isinstance(shards, list) or not all(isinstance(shard, dict) for shard in shards):
        raise _bad(index, "'records' must be a list of files; download it again")
    tensors: dict[str, SafetensorsTensor] = {}
    for shard in shards:
        file, records = shard.get("dataPath"), shard.get("records")
        if not isinstance(file, str) or not _SHARD_NAME.fullmatch(file) or not isinstance(records, list):
            raise _bad(index, f"has a file named {file!r}, expected params_shard_N.bin with its records")
        if not (folder / file).is_file():
            raise _bad(folder, f"{file} is missing, though {index.name} lists it; download it")
        size = (folder / file).stat().st_size
        for record in records:
            tensor = _read_record(record, folder / file, size, index)
            if tensor.name in tensors:
                raise _bad(index, f"tensor {tensor.name!r} appears twice; download it again")
            tensors[tensor.name] = tensor
    return tensors


def _read_record(record: Any, file: Path, file_bytes: int, index: Path) -> SafetensorsTensor:
    keys = ("name", "shape", "dtype", "format", "nbytes", "byteOffset")
    if not isinstance(record, dict) or not all(key in record for key in keys):
        raise _bad(index, f"has a record without {', '.join(keys)}; download it again")
    name, shape, dtype, encoding, size, offset = (record[key] for key in keys)
    counts = shape if isinstance(shape, list) else [None]
    if not isinstance(name, str) or not all(isinstance(each, int) and each >= 0 for each in (*counts, size, offset)):
        raise _bad(index, f"the record of {name!r} has no name, shape and offset; download it again")
    if dtype not in DTYPES or encoding not in ("raw", AS_BFLOAT16):
        raise UnsupportedModel(
            f"{index}: tensor {name!r} has dtype {dtype!r} and format {encoding!r}, which is not supported; supported: "
            f"{', '.join(DTYPES)} with format raw or {AS_BFLOAT16}",
            tensor=name,
        )
    stored = "BF16" if (dtype, encoding) == ("float32", AS_BFLOAT16) else DTYPES[dtype]
    expected = math.prod(shape) * _BYTES[stored]
    if size != expected or offset + size > file_bytes:
        raise _bad(
            file,
            f"tensor {name!r} of {stored} {shape} takes {expected} bytes; {index.name} gives it {size} from byte "
            f"{offset} on, and the file has {file_bytes}; download both again",
        )
    return SafetensorsTensor(name, tuple(shape), stored, file, offset)


def read_matrix(
    module: str,
    records: Mapping[str, SafetensorsTensor],
    quantization: MlcFormat | None,
    columns: int,
    where: Path,
) -> Tensor:
    """The weight (N, ``columns``) of a quantized module: its own codes if one of our formats can hold them, else
    floats.

    Raises CheckpointError if its tensors do not match the quantization.
    """
    weight, scale = (part(module, kind, records, str(where)) for kind in ("q_weight", "q_scale"))
    if quantization is None:
        raise CheckpointError(
            f"{where}: tensor {weight.name} has integers, but 'quantization' says that the weights are floats; "
            "download both again",
            tensor=weight.name,
        )
    transposed = quantization.transposes and module != EMBEDDING
    groups = -(-columns // quantization.group)
    words = groups * (quantization.group // quantization.codes_a_word)
    rows = weight.shape[-1 if transposed else 0] if weight.shape else 0
    require(weight, (words, rows) if transposed else (rows, words), ("U32",), str(where))
    require(scale, (groups, rows) if transposed else (rows, groups), ("F16", "BF16", "F32"), str(where))
    stored = Packed(weight, scale, quantization, columns, transposed)
    name = f"{module}.weight"
    if quantization.group % GROUP:
        label = f"q{quantization.bits}g{quantization.group}"
        return DequantizedMatrix(name, (rows, columns), label, stored.floats)
    form = Codes(quantization.bits, quantization.group, "", "float16" if scale.dtype == "F16" else "float32")
    return StoredMatrix(name, (rows, columns), form, partial(stored.planes, form))


@dataclass(frozen=True, slots=True)
class Packed:
    weight: SafetensorsTensor
    scale: SafetensorsTensor
    format: MlcFormat
    columns: int
    transposed: bool

    def planes(self, form: Codes, start: int, stop: int) -> dict[str, Array]:
        codes, scales = self._read(start, stop)
        if codes.max(initial=0) > 2 * self.format.zero:
            raise QuantizationError(
                f"{self.weight.path}: {self.weight.name} has a code above {2 * self.format.zero}; the file is damaged, "
                "download it again",
                tensor=self.weight.name,
            )
        # There, the code for 0 is lower by one.
        return form.store(codes + np.uint8(form.zero - self.format.zero), scales)

    def floats(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        codes, scales = self._read(start, stop)
        each = np.repeat(scales, self.format.group, axis=1)[:, : self.columns]
        weights: npt.NDArray[np.float32] = (codes - np.float32(self.format.zero)) * each
        return weights

    def _read(self, start: int, stop: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """Codes (n, K) and scales (n, groups) of rows."""
        if self.transposed:
            words, scales = (np.ascontiguousarray(each.columns(start, stop).T) for each in (self.weight, self.scale))
        else:
            words, scales = self.weight.integers(start, stop), self.scale.rows(start, stop)
        shifts = np.arange(self.format.codes_a_word, dtype=np.uint32) * np.uint32(self.format.bits)
        codes = (words[..., None] >> shifts & np.uint32((1 << self.format.bits) - 1)).astype(np.uint8)
        return codes.reshape(stop - start, -1)[:, : self.columns], scales.astype(np.float32)


def rows_of(tensor: Tensor, name: str, start: int, stop: int) -> Tensor:
    """Rows [start, stop) of a tensor, as a separate tensor."""
    rows = stop - start
    if isinstance(tensor, StoredMatrix):
        return replace(tensor, name=name, shape=(rows, tensor.shape[1]), planes=_from_row(start, tensor.planes))
    if isinstance(tensor, DequantizedMatrix):
        return replace(tensor, name=name, shape=(rows, tensor.shape[1]), rows=_from_row(start, tensor.rows))
    assert isinstance(tensor, SafetensorsTensor)
    row_bytes = math.prod(tensor.shape[1:]) * _BYTES[tensor.dtype]
    offset = tensor.offset_bytes + start * row_bytes
    return replace(tensor, name=name, shape=(rows, *tensor.shape[1:]), offset_bytes=offset)


def _from_row(row: int, read: Callable[[int, int], Read]) -> Callable[[int, int], Read]:
    """A reader of rows that counts from ``row``."""
    return lambda start, stop: read(row + start, row + stop)


def _bad(path: Path, message: str) -> CheckpointError:
    return CheckpointError(f"{path}: {message}", file=str(path))
