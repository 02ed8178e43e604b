"""Stores receive a bundle's files. `FolderStore` writes them; `SizeStore` only counts their bytes, for a dry run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from ..bundle.entries import FileEntry, WeightEntry
from ..formats.checkpoint import Checkpoint
from ..ir.graph import Parameter
from ..quant import Quantization
from ..quant.layout import Layout
from .weights import StoredWeight, lay_out_weights, shard_files, shard_sizes, write_weights

# Stands for the hash of data that was not read.
NO_HASH = "0" * 64


# Called with the number of elements packed so far, and with the number of all elements.
Progress = Callable[[int, int], None]
# The weights by name, and the shards that hold them.
StoredWeights = tuple[dict[str, WeightEntry], list[FileEntry]]


@dataclass(frozen=True, slots=True)
class WeightsJob:
    """The parameters of a bundle's plans, the checkpoint that they are read from, and how they are packed.

    ``host``: the names of those that stay on the host.
    """

    checkpoint: Checkpoint
    parameters: Mapping[str, Parameter]
    quantization: Quantization
    layout: Layout
    host: Collection[str] = ()


class Store(Protocol):
    @property
    def folder(self) -> Path | None:
        """The folder of the files; None if they are not written."""

    def put(self, file: str, data: bytes) -> FileEntry:
        """Store a file. ``file`` is its path in the bundle."""

    def put_weights(self, job: WeightsJob, progress: Progress) -> StoredWeights:
        """Store the packed weights; see `write_weights`."""


@dataclass(frozen=True, slots=True)
class FolderStore:
    folder: Path

    def put(self, file: str, data: bytes) -> FileEntry:
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return FileEntry(file=file, size=len(data), sha256=sha256(data).hexdigest())

    def put_weights(self, job: WeightsJob, progress: Progress) -> StoredWeights:
        return write_weights(
            job.checkpoint, job.parameters, job.quantization, self.folder, progress, job.layout, job.host
        )


@dataclass(frozen=True, slots=True)
class SizeStore:
    """``sizes``: the bytes of each file, by its path in the bundle. ``stored``: the weights with their offsets.

    Weights are not read, so the hashes of shards are zeros.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    stored: list[StoredWeight] = field(default_factory=list)

    @property
    def folder(self) -> None:
        return None

    def put(self, file: str, data: bytes) -> FileEntry:
        self.sizes[file] = len(data)
        return FileEntry(file=file, size=len(data), sha256=sha256(data).hexdigest())

    def put_weights(self, job: WeightsJob, progress: Progress) -> StoredWeights:  # noqa: ARG002
        self.stored.extend(lay_out_weights(job.parameters, job.quantization, job.layout, job.host))
        sizes = dict(zip(shard_files(self.stored), shard_sizes(self.stored), strict=True))
        self.sizes.update(sizes)
        entries = [FileEntry(file=file, size=size, sha256=NO_HASH) for file, size in sizes.items()]
        return {weight.parameter.name: weight.entry for weight in self.stored}, entries
