"""Packs a checkpoint's tensors into a bundle's shards, one block of rows at a time, so memory does not grow with the
model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from .. import quant
from ..arch import encoder_of
from ..bundle.entries import FileEntry, PlaneEntry, WeightEntry
from ..bundle.folder import file_entry
from ..formats.checkpoint import Checkpoint, StoredMatrix
from ..ir.graph import Parameter, Source
from ..ir.spec import ModelSpec
from ..quant import PlaneLayout, Quantization, form_of
from ..quant.base import FloatArray, require_finite
from ..quant.layout import Layout, rows_per_tile, store_rows, stored_shape
from ..runtime.errors import CheckpointError, QuantizationError

# Shards of this size load in parallel and resume in small steps. Planes are not split, so a large plane has its own
# shard.
SHARD_BYTES = 32 << 20
# WebGPU requires buffer offsets to be multiples of 256, in case a runtime binds a part of a shard.
ALIGNMENT = 256
# The number of elements of a tensor that each packing thread holds in memory at once, as float32 and in a few copies.
BLOCK_ELEMENTS = 2 << 20
PACKING_THREADS = 2
# Tensors that some checkpoints contain although their values follow from the configuration.
DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
KEYS_AND_VALUES = re.compile(r"model\.layers\.(\d{1,6})\.self_attn\.(?:[kv]_proj|[kv]_norm)\..*")


def check_tensors(checkpoint: Checkpoint, parameters: Mapping[str, Parameter]) -> None:
    """Raise CheckpointError if a parameter's tensor is missing or has the wrong shape, or if a tensor is unused."""
    expected = tensor_shapes(parameters)
    for name, shape in expected.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} is missing; the weights do not match config.json, "
                "or a file was not downloaded",
                tensor=name,
            )
        fits = tensor.shape == shape or is_filter(checkpoint.spec, tensor.shape, shape)
        if not fits and not (isinstance(tensor, StoredMatrix) and tensor.may_have(shape)):
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} has shape {list(tensor.shape)}, "
                f"but config.json requires {list(shape)}; the weights belong to another model",
                tensor=name, found=list(tensor.shape), expected=list(shape),
            )  # fmt: skip
    # These heads are not read: a copy of the embedding, and the head of a model that makes embeddings.
    unused_head = (
        {"lm_head.weight"} if checkpoint.spec.tie_word_embeddings or checkpoint.embedding is not None else set()
    )
    encoder = encoder_of(checkpoint.spec.model_type)
    unused = [
        name
        for name in checkpoint.tensors
        if name not in expected
        and not (encoder is not None and encoder.OTHER_HEADS.fullmatch(name))
        and name not in unused_head
        and not DERIVED.fullmatch(name)
        and not _is_shared(checkpoint.spec, name)
    ]
    if unused:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {unused[0]} is not part of a {checkpoint.spec.model_type} model "
            f"with this config.json ({len(unused)} such tensors); compiling without it would change the answers",
            tensors=unused,
        )


def is_filter(spec: ModelSpec, stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a tensor holds the weights of a layer's convolution by channel, which are read as a vector: (C, 1, k), or
    (C, k, 1) in folders of MLX.
    """
    taps = 0 if spec.states is None else spec.states.taps
    return stored[1:] in ((1, taps), (taps, 1)) and (math.prod(stored),) == shape


def _is_shared(spec: ModelSpec, name: str) -> bool:
    """Whether a tensor makes keys and values that its layer does not use, because it reads those of another layer."""
    match = KEYS_AND_VALUES.fullmatch(name)
    return match is not None and int(match[1]) < spec.num_layers and spec.kv_layer(int(match[1])) != int(match[1])


def tensor_shapes(parameters: Mapping[str, Parameter]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor that parameters read. Together, the parameters read all rows of a tensor."""
    ranges: dict[str, set[tuple[int, int]]] = {}
    columns: dict[str, int | None] = {}
    for parameter in parameters.values():
        for source in parameter.sources:
            ranges.setdefault(source.tensor, set()).add((source.start, source.stop))
            columns[source.tensor] = parameter.columns
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor, parts in ranges.items():
        rows = 0
        for start, stop in sorted(parts):
            assert start <= rows, f"rows {rows} to {start} of {tensor} are not read"
            rows = max(rows, stop)
        width = columns[tensor]
        shapes[tensor] = (rows,) if width is None else (rows, width)
    return shapes


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight, and the shards and offsets of its planes."""

    parameter: Parameter
    layouts: tuple[PlaneLayout, ...]
    entry: WeightEntry


def lay_out_weights(
    parameters: Mapping[str, Parameter], quantization: Quantization, layout: Layout, host: Collection[str] = ()
) -> list[StoredWeight]:
    """Assign a shard and an offset to every plane, in the order of the parameters.

    The parameters that stay on the ``host`` come last, row after row in shards of their own.
    """
    stored: list[StoredWeight] = []
    shard, end = 0, 0
    for parameter in sorted(parameters.values(), key=lambda parameter: parameter.name in host):
        if parameter.name in host and stored and stored[-1].parameter.name not in host:
            shard, end = shard + 1, 0
        vector = parameter.columns is None
        form = form_of(parameter.form, quantization)
        layouts = (PlaneLayout("w", "float32", 1),) if parameter.columns is None else form.planes(parameter.columns)
        own: Layout = "rows" if vector or parameter.name in host else layout
        planes = []
        for each in layouts:
            shape = [parameter.rows] if vector else stored_shape(own, parameter.rows, each.columns)
            size = math.prod(shape) * np.dtype(each.dtype).itemsize
            if end and end + size > SHARD_BYTES:
                shard, end = shard + 1, 0
            planes.append(PlaneEntry(name=each.name, dtype=each.dtype, shape=shape, shard=shard, offset=end, size=size))  # type: ignore[arg-type]
            end = -(-(end + size) // ALIGNMENT) * ALIGNMENT
        name = None if vector else form.name
        entry = WeightEntry(shape=list(parameter.shape), quantization=name, layout=own, planes=planes)
        stored.append(StoredWeight(parameter, layouts, entry))
    return stored


def write_weights(
    checkpoint: Checkpoint,
    parameters: Mapping[str, Parameter],
    quantization: Quantization,
    folder: Path,
    progress: Callable[[int, int], None],
    layout: Layout = "rows",
    host: Collection[str] = (),
) -> tuple[dict[str, WeightEntry], list[FileEntry]]:
    """Pack all parameters into shards below ``folder``, matrices in ``layout``, except those that stay on the ``host``.

    ``progress`` receives the number of packed elements and of all elements. Raises CheckpointError or
    QuantizationError, naming the tensor.
    """
    stored = lay_out_weights(parameters, quantization, layout, host)
    files = shard_files(stored)
    (folder / "weights").mkdir()
    total = sum(int(np.prod(weight.parameter.shape)) for weight in stored)
    done = 0
    shards: list[BinaryIO] = []
    try:
        shards = [(folder / file).open("wb") for file in files]
        with ThreadPoolExecutor(PACKING_THREADS) as pool:
            jobs = (
                (weight, start, stop)
                for weight in stored
                for start, stop in blocks(weight.parameter, weight.entry.layout)
            )
            for weight, start, stop, planes in in_order(pool, jobs, checkpoint, quantization):
                for each, plane in zip(weight.layouts, weight.entry.planes, strict=True):
                    shards[plane.shard].seek(plane.offset + start * each.row_bytes)
                    shards[plane.shard].write(planes[each.name].tobytes())
                done += (stop - start) * (weight.parameter.columns or 1)
                progress(done, total)
    finally:
        for shard in shards:
            shard.close()
    return {weight.parameter.name: weight.entry for weight in stored}, [file_entry(folder, file) for file in files]


def shard_files(stored: Sequence[StoredWeight]) -> list[str]:
    """The shards' paths in the bundle."""
    return [f"weights/{number:05d}.bin" for number in range(stored[-1].entry.planes[-1].shard + 1)]


def shard_sizes(stored: Sequence[StoredWeight]) -> list[int]:
    """The bytes of each shard, which ends with its last plane."""
    ends: dict[int, int] = {}
    for plane in (plane for weight in stored for plane in weight.entry.planes):
        ends[plane.shard] = max(ends.get(plane.shard, 0), plane.offset + plane.size)
    return [ends[shard] for shard in sorted(ends)]


def blocks(parameter: Parameter, layout: Layout) -> Iterator[tuple[int, int]]:
    """Ranges of rows with at most BLOCK_ELEMENTS elements, but with at least one complete tile."""
    tile = rows_per_tile(layout)
    step = max(1, BLOCK_ELEMENTS // ((parameter.columns or 1) * tile)) * tile
    for start in range(0, parameter.rows, step):
        yield start, min(start + step, parameter.rows)


Planes = Mapping[str, np.ndarray]


def in_order(
    pool: ThreadPoolExecutor,
    jobs: Iterator[tuple[StoredWeight, int, int]],
    checkpoint: Checkpoint,
    quantization: Quantization,
) -> Iterator[tuple[StoredWeight, int, int, Planes]]:
    """Read and pack blocks on the pool's threads, and yield them in order. Each thread is at most two blocks ahead of
    the writer.
    """
    pending = []
    for job in jobs:
        pending.append((job, pool.submit(read_and_pack, checkpoint, *job, quantization)))
        if len(pending) > 2 * PACKING_THREADS:
            first, future = pending.pop(0)
            yield *first, future.result()
    for first, future in pending:
        yield *first, future.result()


def read_and_pack(
    checkpoint: Checkpoint, weight: StoredWeight, start: int, stop: int, quantization: Quantization
) -> Planes:
    """Rows [start, stop) of every plane, in their stored form."""
    parameter = weight.parameter
    try:
        if isinstance(checkpoint.tensors[parameter.sources[0].tensor], StoredMatrix) and parameter.form is not None:
            planes = read_planes(checkpoint, parameter, start, stop)
        else:
            rows = read_rows(checkpoint, parameter, start, stop)
            if parameter.columns is None:
                require_finite(rows)
                return {"w": rows}
            planes = (quantization if parameter.form is None else quant.by_name(parameter.form)).pack(rows)
        return {name: store_rows(weight.entry.layout, plane) for name, plane in planes.items()}
    except QuantizationError as error:
        names = ", ".join(source.tensor for source in parameter.sources)
        raise QuantizationError(f"{checkpoint.path}: {names}: {error.message}", tensor=names) from error


def read_planes(checkpoint: Checkpoint, parameter: Parameter, start: int, stop: int) -> Planes:
    """Rows [start, stop) of a parameter whose sources are stored in its form, unchanged."""
    parts = []
    for source, first, last in rows_of_sources(parameter, start, stop):
        tensor = checkpoint.tensors[source.tensor]
        assert isinstance(tensor, StoredMatrix), source
        assert tensor.form.name == parameter.form, source
        low, high, order = stored_range(source, first, last)
        planes = tensor.planes(low, high)
        parts.append(planes if order is None else {name: plane[order] for name, plane in planes.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if len(parts) > 1 else parts[0]


def read_rows(checkpoint: Checkpoint, parameter: Parameter, start: int, stop: int) -> FloatArray:
    """Rows [start, stop) of a parameter's stacked sources as float32."""
    parts = []
    for source, first, last in rows_of_sources(parameter, start, stop):
        tensor = checkpoint.tensors[source.tensor]
        low, high, order = stored_range(source, first, last)
        if parameter.columns is None and len(tensor.shape) == 3:
            size = math.prod(tensor.shape[1:])
            rows = tensor.rows(low // size, -(-high // size)).reshape(-1)[low % size :][: high - low]
        else:
            rows = tensor.rows(low, high) if order is None else tensor.rows(low, high)[order]
        if isinstance(tensor, StoredMatrix):
            rows = rows[:, : parameter.columns]
        parts.append(
            rows
            if (source.offset, source.factor) == (0, 1)
            else np.float32(source.offset) + np.float32(source.factor) * rows
        )
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def stored_range(source: Source, first: int, last: int) -> tuple[int, int, npt.NDArray[np.intp] | None]:
    """The range of a tensor's rows that holds rows [first, last) of a source, and their indices in it; None if they are
    the range.
    """
    if source.pairs is None:
        return first, last, None
    low, high = source.pairs.heads(first, last)
    return low, high, source.pairs.stored_rows(first, last) - low


def rows_of_sources(parameter: Parameter, start: int, stop: int) -> Iterator[tuple[Source, int, int]]:
    """The sources of rows [start, stop) of a parameter, with the first and last row of each in its tensor."""
    begin = 0
    for source in parameter.sources:
        length = source.stop - source.start
        low, high = max(start - begin, 0), min(stop - begin, length)
        if low < high:
            yield source, source.start + low, source.start + high
        begin += length
