"""Compiles a bundle without weights from a model's shapes alone: its kernels, its plan and the offsets of its
weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from checkpoints import Shapes, write_tokenizer

from nearfar.compiler.bundle.entries import FileEntry
from nearfar.compiler.formats.huggingface import read_spec
from nearfar.compiler.measure.shapes import shape_checkpoint
from nearfar.compiler.pipeline.compile import CompileOptions, build, prepare_checkpoint
from nearfar.compiler.pipeline.store import FolderStore, SizeStore, StoredWeights, WeightsJob
from nearfar.compiler.pipeline.store import Progress as PackProgress
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles


@dataclass(frozen=True, slots=True)
class StoreWithoutWeights:
    """Writes a bundle's small files, and lays out its weights without reading them."""

    written: FolderStore
    counted: SizeStore = field(default_factory=SizeStore)

    @property
    def folder(self) -> None:
        """None, so that no self-test is computed, because it would read the weights."""
        return None

    def put(self, file: str, data: bytes) -> FileEntry:
        return self.written.put(file, data)

    def put_weights(self, job: WeightsJob, progress: PackProgress) -> StoredWeights:
        return self.counted.put_weights(job, progress)


def compile_without_weights(shapes: Shapes, folder: Path, options: CompileOptions) -> None:
    """``folder`` must not exist."""
    folder.mkdir(parents=True)
    config = folder / "config.json"
    config.write_text(json.dumps({"torch_dtype": "bfloat16", **shapes.config}))
    tokenizer = folder / "tokenizer.json"
    write_tokenizer(tokenizer)
    checkpoint = replace(
        shape_checkpoint(config, read_spec(config), shapes.embedding), tokenizer=TokenizerFiles.at(tokenizer)
    )
    job = prepare_checkpoint(shapes.name, checkpoint, options, lambda _: None)
    build(job, StoreWithoutWeights(FolderStore(folder)), lambda *_: None)
    config.unlink()
