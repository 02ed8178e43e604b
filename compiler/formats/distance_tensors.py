"""The tensors of encoders whose scores of attention depend on distances, made of those on disk: one element for every
distance instead of for every bucket of distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..ir.spec import ModelSpec
from .checkpoint import Tensor

# (H * distances,): see `ops.attention.distance_biases`.
BIAS = "encoder.distance_bias"
# What it is made of: (buckets, H).
BUCKETS = "encoder.relative_attention_bias.weight"


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A tensor that is computed when the checkpoint is opened."""

    name: str
    value: npt.NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> str:
        return "F32"

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self.value[start:stop]


def with_distance_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """The tensors, with those that a model with distances reads instead of others. A tensor that is missing is left
    for the graph to miss.
    """
    made = dict(tensors)
    stored = made.pop(BUCKETS, None) if spec.distances is not None else None
    if spec.distances is None or stored is None:
        return made
    distances = np.arange(spec.num_distances) - spec.num_distances // 2
    buckets = buckets_of(distances, spec.distances.buckets, spec.distances.max_distance)
    table = stored.rows(0, stored.shape[0])
    made[BIAS] = MadeTensor(BIAS, np.ascontiguousarray(table[buckets].T).reshape(-1))
    return made


def buckets_of(distances: npt.NDArray[np.int_], buckets: int, max_distance: int) -> npt.NDArray[np.int_]:
    """The bucket of each distance key - row: the first half of the buckets are for keys at or before the row. In a
    half, the first half are of one distance each, the others grow by a factor up to ``max_distance``. Raffel et al.
    2020.
    """
    half = buckets // 2
    exact = half // 2
    far = np.abs(distances)
    ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(max_distance / exact))
    wide = np.minimum(exact + (ratio * np.float32(half - exact)).astype(np.int_), half - 1)
    return np.where(distances > 0, half, 0) + np.where(far < exact, far, wide)
