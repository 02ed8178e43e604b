"""The costs of a model as a bundle, computed from its config.json alone, without weights and tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ..bundle.manifest import Manifest
from ..formats.checkpoint import Checkpoint
from ..formats.huggingface import read_spec
from ..ir.plan import union
from ..ir.spec import ModelSpec
from ..ir.tasks import EmbeddingSpec
from ..pipeline.compile import build, prepare_checkpoint
from ..pipeline.graphs import graphs_of
from ..pipeline.options import CompileOptions, Progress
from ..pipeline.store import SizeStore
from ..pipeline.weights import tensor_shapes
from ..runtime.text.tokenizer_files import TokenizerFiles
from .report import Report, make_report


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor of which only the name and the shape are known."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def rows(self, start: int, stop: int) -> NoReturn:
        raise AssertionError(f"{self.name} has no values: rows {start} to {stop} were read")


def shape_checkpoint(path: Path, spec: ModelSpec, embedding: EmbeddingSpec | None = None) -> Checkpoint:
    """A checkpoint with the tensors that the spec requires, without values, and an empty tokenizer. ``embedding``: it
    computes vectors instead of text.
    """
    empty = Checkpoint(path, spec, {}, TokenizerFiles(path, b"{}"), embedding=embedding)
    graphs = graphs_of(empty, context=1)
    shapes = tensor_shapes(union(graph.parameters for graph in graphs.values()))
    return replace(empty, tensors={name: Shape(name, shape) for name, shape in shapes.items()})


def report_shapes(config: Path, options: CompileOptions, progress: Progress = lambda *_: None) -> Report:
    """The report on the bundle that a compile would write. ``config`` is a config.json.

    Raises CheckpointError, UnsupportedModel or RequestError.
    """
    checkpoint = shape_checkpoint(config, read_spec(config, options.ignore_keys))
    name = config.parent.name if config.name == "config.json" else config.stem
    job = prepare_checkpoint(name or config.stem, checkpoint, options, lambda _: None)
    manifest: Manifest = build(job, SizeStore(), progress)
    return make_report(manifest)
