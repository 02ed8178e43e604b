"""The tensors of encoders whose scores of attention depend on distances, made of those on disk. `ops.attention` defines
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..ir.spec import ModelSpec
from .checkpoint import Tensor

FloatArray = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int_]

# MPNet's biases by bucket (buckets, H), and the vector `distance_biases` that is made of them.
BUCKETS, BIAS = "encoder.relative_attention_bias.weight", "encoder.distance_bias"
# DeBERTa's embeddings by bucket (M, E), and the vectors of `distance_products`: the second of each layer's attention.
EMBEDDINGS, ROWS, HEADS = "encoder.rel_embeddings.weight", "encoder.distance_rows", "distance_heads"
_NORM = "encoder.LayerNorm"
# What else makes DeBERTa's heads, and nothing besides.
_PROJECTIONS = re.compile(rf"encoder\.layer\.\d+\.attention\.self\.pos_\w+_proj\.\w+|{re.escape(_NORM)}\.\w+")


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A vector that is computed when it is read."""

    name: str
    size: int
    make: Callable[[], FloatArray]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)

    @property
    def dtype(self) -> str:
        return "F32"

    def rows(self, start: int, stop: int) -> FloatArray:
        return np.ascontiguousarray(self.make().reshape(-1)[start:stop], np.float32)


def with_distance_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """The tensors, with those that a model with distances reads instead of others. A tensor that is missing is left
    for the graph to miss.
    """
    if spec.distances is None:
        return dict(tensors)
    buckets, farthest = spec.distances.buckets, spec.distances.max_distance
    distances = np.arange(spec.num_distances) - spec.num_distances // 2
    if BUCKETS in tensors:
        stored = tensors[BUCKETS]

        def biases() -> FloatArray:
            return np.ascontiguousarray(_matrix(stored)[buckets_of(distances, buckets, farthest)].T)

        left = {name: tensor for name, tensor in tensors.items() if name != BUCKETS}
        return left | {BIAS: MadeTensor(BIAS, spec.num_heads * spec.num_distances, biases)}
    if EMBEDDINGS not in tensors:
        return dict(tensors)
    made = {ROWS: MadeTensor(ROWS, spec.num_distances, lambda: log_rows(distances, buckets // 2, farthest))}
    for layer in range(spec.num_layers):
        name = f"encoder.layer.{layer}.attention.self.{HEADS}"
        size = 2 * buckets * spec.num_heads * spec.head_dim
        made[name] = MadeTensor(name, size, _heads(tensors, spec, f"encoder.layer.{layer}.attention.self"))
    used = {EMBEDDINGS, *(name for name in tensors if _PROJECTIONS.fullmatch(name))}
    return {name: tensor for name, tensor in tensors.items() if name not in used} | made


def _heads(tensors: Mapping[str, Tensor], spec: ModelSpec, attention: str) -> Callable[[], FloatArray]:
    """What makes a layer's heads: the embeddings, which may be normalized, projected as keys (for queries) and as
    queries (for keys), by projections of their own or by the layer's.
    """

    def make() -> FloatArray:
        assert spec.distances is not None
        x = _matrix(tensors[EMBEDDINGS])[: spec.distances.buckets]
        if f"{_NORM}.weight" in tensors:
            x = x - x.mean(axis=1, keepdims=True)
            x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(spec.rms_norm_eps))
            x = x * _matrix(tensors[f"{_NORM}.weight"]) + _matrix(tensors[f"{_NORM}.bias"])
        parts = []
        for own, shared in (("pos_key_proj", "key_proj"), ("pos_query_proj", "query_proj")):
            module = f"{attention}.{own if f'{attention}.{own}.weight' in tensors else shared}"
            y = x @ _matrix(tensors[f"{module}.weight"]).T + _matrix(tensors[f"{module}.bias"])
            parts.append(y.reshape(len(y), spec.num_heads, spec.head_dim).swapaxes(0, 1))
        return np.stack(parts)

    return make


def _matrix(tensor: Tensor) -> FloatArray:
    return tensor.rows(0, tensor.shape[0])


def buckets_of(distances: Integers, buckets: int, max_distance: int) -> Integers:
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


def log_rows(distances: Integers, span: int, max_distance: int) -> FloatArray:
    """The row of 2 * ``span`` of each distance key - row: the farther a key is before its row, the later. Half of the
    rows of each direction are of one distance each, the others grow by a factor up to ``max_distance``. He et al. 2021.
    """
    before, exact = -distances, span // 2
    far = np.maximum(np.abs(before), exact).astype(np.float32)
    ratio = np.log(far / np.float32(exact)) / np.log(np.float32((max_distance - 1) / exact))
    wide = np.ceil(ratio * np.float32(exact - 1)) + exact
    steps = np.where(np.abs(before) <= exact, before, wide * np.sign(before))
    rows: FloatArray = np.clip(steps + span, 0, 2 * span - 1).astype(np.float32)
    return rows
