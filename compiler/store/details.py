"""What lists of models show of a stored model: its family, its size and its formats, as its files say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from ..bundle.entries import Entry
from ..bundle.folder import Bundle, ExportBundle, open_any
from ..bundle.manifest import MANIFEST_FILE, Manifest
from ..formats.checkpoint import Checkpoint, DequantizedMatrix, StoredMatrix
from ..ir.expr import Natural
from ..ir.tasks import Task, task_of
from ..publish.licenses import stated


class Details(Entry):
    """``num_parameters`` is None for exports, whose weights are a framework's. ``template`` is the chat template of the
    files, and ``license`` what they state.
    """

    format: Literal["bundle", "gguf", "safetensors"]
    family: str
    num_parameters: Natural | None
    quantization: str
    context: Natural
    embedding_size: Natural
    task: Task
    sees: bool
    template: str | None
    license: str | None

    @property
    def is_quantized(self) -> bool:
        """Whether a checkpoint's weights are; those of floats have the name of their dtype."""
        return self.quantization not in ("F32", "F16", "BF16")


def describe(path: Path, ignore_keys: Collection[str] = ()) -> Details:
    """Of a bundle, or of a checkpoint, which is not compiled. Raises BundleError, and the errors of `formats.load`."""
    if (path / MANIFEST_FILE).is_file():
        return _of_bundle(open_any(path))
    from ..formats import load

    return _of_checkpoint(load(str(path), ignore_keys))


def _of_bundle(bundle: Bundle | ExportBundle) -> Details:
    manifest = bundle.manifest
    weights = {**manifest.weights, **manifest.host_weights} if isinstance(manifest, Manifest) else None
    return Details(
        format="bundle",
        family=manifest.spec.model_type,
        num_parameters=None if weights is None else sum(math.prod(each.shape) for each in weights.values()),
        quantization=manifest.quantization,
        context=manifest.context,
        embedding_size=manifest.spec.hidden_size,
        task=manifest.task,
        sees=manifest.sees,
        template=manifest.tokenizer.chat_template,
        license=None if manifest.origin is None else stated(manifest.origin),
    )


def _of_checkpoint(checkpoint: Checkpoint) -> Details:
    tensors = [*checkpoint.tensors.values(), *checkpoint.towers.values()]
    sizes = Counter[str]()
    for tensor in tensors:
        sizes[tensor.dtype] += math.prod(tensor.shape)
    quantized = any(isinstance(tensor, StoredMatrix | DequantizedMatrix) for tensor in tensors)
    return Details(
        format="gguf" if checkpoint.path.is_file() else "safetensors",
        family=checkpoint.spec.model_type,
        num_parameters=sum(sizes.values()),
        quantization=max(checkpoint.stored_forms.items(), key=lambda pair: pair[1])[0]
        if quantized
        else sizes.most_common(1)[0][0],
        context=checkpoint.spec.max_position_embeddings,
        embedding_size=checkpoint.spec.hidden_size,
        task=task_of(checkpoint.task),
        sees=checkpoint.images is not None,
        template=checkpoint.tokenizer.chat_template,
        license=None if checkpoint.origin is None else stated(checkpoint.origin),
    )
