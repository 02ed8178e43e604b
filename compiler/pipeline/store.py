"""Store: what receives a bundle's files. `FolderStore` writes them, `SizeStore` only counts their bytes, for a dry run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from ..bundle.manifest import FileEntry, WeightEntry
from ..formats.checkpoint import Checkpoint
from ..ir.graph import Parameter
from ..quant import Quantization
from ..quant.layout import Layout
from .weights import Placed, place_weights, shard_files, shard_sizes, write_weights

# In place of a hash of data that nobody has read.
NO_HASH = "0" * 64


class Store(Protocol):
    @property
    def folder(self) -> Path | None:
        """Where the files are; None if they are not written."""

    def put(self, file: str, data: bytes) -> FileEntry:
        """Store a file, given its path in the bundle."""

    def put_weights(
        self,
        checkpoint: Checkpoint,
        parameters: Mapping[str, Parameter],
        quantization: Quantization,
        progress: Callable[[int, int], None],
        layout: Layout,
    ) -> tuple[dict[str, WeightEntry], list[FileEntry]]:
        """Store the packed weights; see `write_weights`."""


@dataclass(frozen=True, slots=True)
class FolderStore:
    folder: Path

    def put(self, file: str, data: bytes) -> FileEntry:
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return FileEntry(file=file, size=len(data), sha256=sha256(data).hexdigest())

    def put_weights(
        self,
        checkpoint: Checkpoint,
        parameters: Mapping[str, Parameter],
        quantization: Quantization,
        progress: Callable[[int, int], None],
        layout: Layout,
    ) -> tuple[dict[str, WeightEntry], list[FileEntry]]:
        return write_weights(checkpoint, parameters, quantization, self.folder, progress, layout)


@dataclass(frozen=True, slots=True)
class SizeStore:
    """``sizes``: bytes of each file, by its path in the bundle. Weights are ``placed`` and not read; the hashes of shards are zeros."""

    sizes: dict[str, int] = field(default_factory=dict)
    placed: list[Placed] = field(default_factory=list)

    @property
    def folder(self) -> None:
        return None

    def put(self, file: str, data: bytes) -> FileEntry:
        self.sizes[file] = len(data)
        return FileEntry(file=file, size=len(data), sha256=sha256(data).hexdigest())

    def put_weights(
        self,
        checkpoint: Checkpoint,  # noqa: ARG002
        parameters: Mapping[str, Parameter],
        quantization: Quantization,
        progress: Callable[[int, int], None],  # noqa: ARG002
        layout: Layout,
    ) -> tuple[dict[str, WeightEntry], list[FileEntry]]:
        self.placed.extend(place_weights(parameters, quantization, layout))
        sizes = dict(zip(shard_files(self.placed), shard_sizes(self.placed), strict=True))
        self.sizes.update(sizes)
        entries = [FileEntry(file=file, size=size, sha256=NO_HASH) for file, size in sizes.items()]
        return {weight.parameter.name: weight.entry for weight in self.placed}, entries
