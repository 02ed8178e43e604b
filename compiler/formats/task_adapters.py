"""The adapters of Jina Embeddings 3, one for each task beside every matrix: W + (alpha / rank) * B A of a task.

A bundle has those of one task, added to its matrices. Without any, the vectors are plausible and worse, so a task must
be chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.errors import CheckpointError, RequestError
from .checkpoint import Checkpoint, Tensor
from .config import ConfigReader

TASKS_KEY = "lora_adaptations"
_ORIGINAL = re.compile(r"(?P<module>.+)\.parametrizations\.(?P<kind>weight|bias)\.original")


@dataclass(frozen=True, slots=True)
class AdaptedMatrix:
    """A matrix (N, K) with the adapters a (tasks, rank, K) and b (tasks, N, rank), or of a table of embeddings a
    (tasks, N, rank) and b (tasks, rank, K). ``task``: the number of the one that is added.
    """

    name: str
    original: Tensor
    a: Tensor
    b: Tensor
    factor: float
    task: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.original.shape

    @property
    def dtype(self) -> str:
        return self.original.dtype

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        if self.task is None:
            raise CheckpointError(f"{self.name}: is read without the adapter of a task; choose one with --adapter")
        (a,), (b,) = (each.rows(self.task, self.task + 1) for each in (self.a, self.b))
        left, right = (a, b) if a.shape[0] == self.shape[0] else (b, a)
        added: npt.NDArray[np.float32] = np.float32(self.factor) * (left[start:stop] @ right)
        return added + self.original.rows(start, stop)


def with_adapters(tensors: Mapping[str, Tensor], config: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """The tensors by the names that they have without adapters. Raises CheckpointError for an adapter that is missing
    or has other sizes, and for wrong values in config.json.
    """
    found = {name: match for name in tensors if (match := _ORIGINAL.fullmatch(name))}
    if not found:
        return dict(tensors)
    reader = ConfigReader(config, where)
    factor = reader.number("lora_alpha") / (rank := reader.integer("lora_rank"))
    count = len(reader.texts(TASKS_KEY))
    adapted: dict[str, Tensor] = {}
    used = set(found)
    for original, match in found.items():
        name, stem = f"{match['module']}.{match['kind']}", original.removesuffix("original")
        parts = [f"{stem}0.lora_{letter}" for letter in "AB"]
        used |= set(parts)
        missing = next((part for part in parts if part not in tensors), None)
        if missing is not None:
            raise CheckpointError(
                f"{where}: tensor {missing} is missing, which belongs to {original}; download all files again",
                file=where,
            )
        matrix = AdaptedMatrix(name, tensors[original], tensors[parts[0]], tensors[parts[1]], factor)
        rows, columns = (*matrix.shape, 0, 0)[:2]
        sizes = ((count, rank, columns), (count, rows, rank)), ((count, rows, rank), (count, rank, columns))
        if len(matrix.shape) != 2 or (tuple(matrix.a.shape), tuple(matrix.b.shape)) not in sizes:
            raise CheckpointError(
                f"{where}: the adapters of {name} have shapes {matrix.a.shape} and {matrix.b.shape}; expected "
                f"{count} of rank {rank} for a matrix {matrix.shape}",
                file=where,
            )
        adapted[name] = matrix
    return {name: tensor for name, tensor in tensors.items() if name not in used} | adapted


def for_adapter(checkpoint: Checkpoint, adapter: str | None) -> Checkpoint:
    """The checkpoint with the adapter of a task, whose prompt becomes the default one. Raises RequestError if a model
    with adapters is compiled without one, or another one with it.
    """
    has_any = any(isinstance(tensor, AdaptedMatrix) for tensor in checkpoint.tensors.values())
    tasks = list(checkpoint.config[TASKS_KEY]) if has_any else []
    if adapter is None and not tasks:
        return checkpoint
    if adapter not in tasks:
        known = f"choose one of its adapters with --adapter: {', '.join(tasks)}" if tasks else "it has no adapters"
        given = "is compiled for one task" if adapter is None else f"has no adapter {adapter!r}"
        raise RequestError(f"{checkpoint.path}: {given}; {known}")
    number, embedding = tasks.index(adapter), checkpoint.embedding
    tensors = {
        name: replace(tensor, task=number) if isinstance(tensor, AdaptedMatrix) else tensor
        for name, tensor in checkpoint.tensors.items()
    }
    if embedding is not None and any(prompt.name == adapter for prompt in embedding.prompts):
        embedding = replace(embedding, default_prompt=adapter)
    return replace(checkpoint, tensors=tensors, embedding=embedding)
