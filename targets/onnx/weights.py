"""Weights: convert a checkpoint's tensors to initializers, a block of rows at a time. Large ones are in separate files.

The planes of a weight are those of our quantization (`compiler/quant/`), so that codes and scales are the same as in
every other bundle; only their bits are in ONNX Runtime's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.graph import Parameter
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.rotary_pairs import RotaryPairs
from nearfar.compiler.pipeline.weights import PACKING_THREADS, blocks, in_order, lay_out_weights
from nearfar.compiler.quant import Quantization, form_of
from nearfar.compiler.runtime.errors import QuantizationError

from .builder import ELEMENT_TYPES
from .matmul_nbits import BITS, blob_rows, zero_rows

# Planes from this size on go to a file of external data; the graph's own file must stay below 2 GB, and is read
# entirely.
EXTERNAL_BYTES = 64 << 10
# No file is larger, unless one plane is: browsers cannot hold more in one buffer.
FILE_BYTES = 2_000_000_000
# Pages of memory, so that files can be mapped.
ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class Stored:
    """An initializer: plane ``plane`` of a parameter as ``dtype`` and ``shape``, whose first axis is the parameter's
    rows.

    ``alias`` names an initializer with the same bytes in another shape. ``blocks``: the number of those of a row, for
    planes with a number for each block. ``pairs``: the initializer's rows are pairs (2i, 2i + 1) of the rows i of both
    halves of each of our heads.
    """

    name: str
    parameter: str
    plane: str
    dtype: str
    shape: tuple[int, ...]
    alias: str | None = None
    blocks: int = 0
    pairs: RotaryPairs | None = None

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(slots=True)
class Location:
    """The location of an initializer's bytes: ``offset`` in file number ``file``, or in the graph's own file if that is
    None.
    """

    stored: Stored
    file: int | None
    offset: int
    inline: bytearray = field(default_factory=bytearray)

    def tensor(self, stored: Stored, file_name: str) -> TensorProto:
        """The initializer, which may be an alias of the one stored here."""
        if self.file is None:
            return helper.make_tensor(
                stored.name, ELEMENT_TYPES[stored.dtype], stored.shape, bytes(self.inline), raw=True
            )
        tensor = TensorProto(name=stored.name, data_type=ELEMENT_TYPES[stored.dtype], dims=stored.shape)
        tensor.data_location = TensorProto.EXTERNAL
        where = {"location": data_file(file_name, self.file), "offset": self.offset, "length": stored.size_bytes}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor


def data_file(file_name: str, number: int) -> str:
    """The name of a graph's file of external data, as Transformers.js expects it."""
    return f"{file_name}_data{f'_{number}' if number else ''}"


def write_weights(
    checkpoint: Checkpoint,
    parameters: Mapping[str, Parameter],
    wanted: list[Stored],
    quantization: Quantization,
    model: Path,
    progress: Callable[[int, int], None],
) -> dict[str, TensorProto]:
    """Pack the requested initializers, write the large ones beside ``model``, and return all by name.

    ``progress`` receives the number of finished elements and of all elements. Raises CheckpointError or
    QuantizationError, naming the tensor.
    """
    locations = locate(stored for stored in wanted if stored.alias is None)
    by_parameter: dict[str, list[Location]] = {}
    for each in locations.values():
        by_parameter.setdefault(each.stored.parameter, []).append(each)
    weights = lay_out_weights({name: parameters[name] for name in by_parameter}, quantization, "rows")
    total = sum(math.prod(weight.parameter.shape) for weight in weights)
    done = 0
    with ExitStack() as stack, ThreadPoolExecutor(PACKING_THREADS) as pool:
        count = max((each.file + 1 for each in locations.values() if each.file is not None), default=0)
        files = [
            stack.enter_context((model.parent / data_file(model.name, number)).open("wb")) for number in range(count)
        ]
        jobs = ((weight, start, stop) for weight in weights for start, stop in blocks(weight.parameter, "rows"))
        for weight, start, stop, planes in in_order(pool, jobs, checkpoint, quantization):
            kind = form_of(weight.parameter.form, quantization).kind
            for each in by_parameter[weight.parameter.name]:
                data = rows_as_stored(planes[each.stored.plane], each.stored, kind)
                for offset, part in placed_rows(each.stored, data, start, stop):
                    if each.file is None:
                        each.inline[offset : offset + len(part)] = part
                    else:
                        files[each.file].seek(each.offset + offset)
                        files[each.file].write(part)
            done += (stop - start) * (weight.parameter.columns or 1)
            progress(done, total)
    return {stored.name: locations[stored.alias or stored.name].tensor(stored, model.name) for stored in wanted}


def empty_weights(wanted: list[Stored], model: Path) -> tuple[dict[str, TensorProto], dict[str, int]]:
    """All initializers as `write_weights` returns them, and the bytes of each data file. Those in the graph's own file
    are zeros.
    """
    locations = locate(stored for stored in wanted if stored.alias is None)
    sizes: dict[str, int] = {}
    for each in locations.values():
        if each.file is not None:
            sizes[data_file(model.name, each.file)] = each.offset + each.stored.size_bytes
    return {stored.name: locations[stored.alias or stored.name].tensor(stored, model.name) for stored in wanted}, sizes


def locate(wanted: Iterable[Stored]) -> dict[str, Location]:
    """Assign a file and an offset to every initializer, in order."""
    locations: dict[str, Location] = {}
    file, end = 0, 0
    for stored in wanted:
        if stored.size_bytes < EXTERNAL_BYTES:
            locations[stored.name] = Location(stored, None, 0, bytearray(stored.size_bytes))
            continue
        if end and end + stored.size_bytes > FILE_BYTES:
            file, end = file + 1, 0
        locations[stored.name] = Location(stored, file, end)
        end = -(-(end + stored.size_bytes) // ALIGNMENT) * ALIGNMENT
    return locations


def placed_rows(stored: Stored, data: bytes, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of rows [start, stop), and where they lie in the initializer."""
    size = len(data) // (stop - start)
    if stored.pairs is None:
        yield start * size, data
        return
    for index, row in enumerate(stored.pairs.stored_rows(start, stop).tolist()):
        yield row * size, data[index * size : (index + 1) * size]


def rows_as_stored(plane: Array, stored: Stored, kind: str) -> bytes:
    """Rows of one of our planes in the dtype and order of an initializer."""
    if stored.plane == "q":
        return blob_rows(kind, plane).tobytes()
    if stored.blocks:
        # A scale of ours may belong to several blocks.
        plane = np.repeat(plane, -(-stored.blocks // plane.shape[1]), axis=1)[:, : stored.blocks]
    if stored.plane == "z":
        return zero_rows(plane, BITS[kind]).tobytes()
    # Our planes pad the rows of dense matrices.
    rows = plane[:, : stored.shape[-1]] if stored.plane == "w" and plane.ndim > 1 else plane
    if stored.dtype == "float16" and np.abs(rows).max(initial=0) > np.finfo(np.float16).max:
        raise QuantizationError(
            f"{stored.parameter}: exceeds float16's largest value, 65504; use --activations float32"
        )
    return rows.astype(stored.dtype).tobytes()
