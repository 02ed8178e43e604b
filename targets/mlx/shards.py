"""Shards: the weights' safetensors files, written a block of rows at a time, so that memory does not grow with the
model.

Every file opens with its header, which lists the offset of each tensor; rows are then written at their offsets.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.graph import Parameter
from nearfar.compiler.pipeline.weights import blocks, read_planes, read_rows
from nearfar.compiler.runtime.errors import QuantizationError

from .names import FolderTensors
from .packing import ITEM_BYTES, Packing

# The limit of mlx-lm, which the hub's caches and old file systems support.
SHARD_BYTES = 5 * 10**9
INDEX_FILE = "model.safetensors.index.json"


def write_shards(
    checkpoint: Checkpoint,
    tensors: FolderTensors,
    packing: Packing,
    folder: Path,
    progress: Callable[[int, int], None],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Pack the tensors into safetensors files of at most ``shard_bytes``, or one tensor, and write
    their index.

    Tensors have the structure of `names.py`: fused tensors stay fused, and the reader applies offsets and factors.

    Raises CheckpointError or QuantizationError, naming the tensor.
    """
    shards = lay_out(tensors, packing, shard_bytes)
    total = sum(math.prod(tensor.shape) for shard in shards for tensor in shard.parameters)
    done = 0
    for shard in shards:
        with (folder / shard.file).open("wb") as file:
            file.write(shard.header)
            for parameter in shard.parameters:
                for start, stop in blocks(parameter, "rows"):
                    arrays = pack_rows(checkpoint, parameter, packing, start, stop)
                    for tensor, rows in zip(packing.tensors(parameter), arrays, strict=True):
                        file.seek(len(shard.header) + shard.offsets[tensor] + start * rows[0].nbytes)
                        file.write(rows.tobytes())
                    done += (stop - start) * (parameter.columns or 1)
                    progress(done, total)
    if tensors.file is None:
        (folder / INDEX_FILE).write_text(index_text(shards))


@dataclass(frozen=True, slots=True)
class Shard:
    """A file: its header, and the start of each tensor in the ``data_bytes`` after it."""

    file: str
    parameters: list[Parameter]
    header: bytes
    offsets: dict[str, int]
    data_bytes: int

    @property
    def size_bytes(self) -> int:
        return len(self.header) + self.data_bytes


def lay_out(tensors: FolderTensors, packing: Packing, shard_bytes: int = SHARD_BYTES) -> list[Shard]:
    """The files that `write_shards` writes. Raises QuantizationError."""
    groups = split(tensors.parameters, packing, shard_bytes) if tensors.file is None else [tensors.parameters]
    shards = []
    for number, group in enumerate(groups, 1):
        alone = tensors.file or "model.safetensors"
        name = alone if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        header, offsets = make_header(group, tensors, packing)
        data_bytes = sum(size_of(tensor) for parameter in group for tensor in packing.tensors(parameter).values())
        shards.append(Shard(name, group, header, offsets, data_bytes))
    return shards


def index_text(shards: Sequence[Shard]) -> str:
    weight_map = {tensor: shard.file for shard in shards for tensor in shard.offsets}
    metadata = {"total_size": sum(shard.data_bytes for shard in shards)}
    return json.dumps({"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}, indent=2)


def split(parameters: Sequence[Parameter], packing: Packing, shard_bytes: int) -> list[list[Parameter]]:
    """The parameters of each file, in order; the tensors of one stay together."""
    shards: list[list[Parameter]] = [[]]
    filled = 0
    for parameter in parameters:
        size = sum(size_of(tensor) for tensor in packing.tensors(parameter).values())
        if filled and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(parameter)
        filled += size
    return shards


def make_header(shard: list[Parameter], folder: FolderTensors, packing: Packing) -> tuple[bytes, dict[str, int]]:
    """The header's bytes with its length before it, and the offset of each tensor in the data that follows."""
    tensors = {name: tensor for parameter in shard for name, tensor in packing.tensors(parameter).items()}
    entries: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offsets, end = {}, 0
    # Wide elements first, so that every tensor is aligned to its element size.
    for name, tensor in sorted(tensors.items(), key=lambda item: -ITEM_BYTES[item[1][0]]):
        offsets[name] = end
        end += size_of(tensor)
        shape = folder.shape(name, tensor[1])
        entries[name] = {"dtype": tensor[0], "shape": shape, "data_offsets": [offsets[name], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, offsets


def size_of(tensor: tuple[str, tuple[int, ...]]) -> int:
    """Bytes of a tensor, given its dtype and shape."""
    dtype, shape = tensor
    return math.prod(shape) * ITEM_BYTES[dtype]


def pack_rows(checkpoint: Checkpoint, parameter: Parameter, packing: Packing, start: int, stop: int) -> list[Any]:
    try:
        if packing.keeps_codes(parameter):
            return packing.pack_planes(parameter, read_planes(checkpoint, parameter, start, stop))
        return packing.pack(parameter, read_rows(checkpoint, parameter, start, stop))
    except QuantizationError as error:
        raise QuantizationError(
            f"{checkpoint.path}: {parameter.name}: {error.message}", tensor=parameter.name
        ) from error
