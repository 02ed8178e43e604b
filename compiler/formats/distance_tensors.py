"""The tensors of encoders whose scores of attention depend on distances, made of those on disk. `ops.attention` defines
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.spec import ModelSpec
from ..runtime.errors import CheckpointError
from .checkpoint import Tensor

FloatArray = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int_]

# MPNet's biases by bucket (buckets, H), and the vector `distance_biases` that is made of them.
BUCKETS, BIAS = "encoder.relative_attention_bias.weight", "encoder.distance_bias"
# DeBERTa's embeddings by bucket (M, E), and the vectors of `distance_products`: the second of each layer's attention.
EMBEDDINGS, ROWS, HEADS = "encoder.rel_embeddings.weight", "encoder.distance_rows", "distance_heads"
_NORM = "encoder.LayerNorm"
# The projections of the embeddings as keys and as queries: the layer's, or some for nothing else.
SHARED, OWN = ("key_proj", "query_proj"), ("pos_key_proj", "pos_query_proj")
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


def with_distance_tensors(
    tensors: Mapping[str, Tensor], spec: ModelSpec, config: Mapping[str, Any], where: str
) -> dict[str, Tensor]:
    """The tensors, with those that a model with distances reads instead of others. ``where``: the file of ``config``.

    Raises CheckpointError for one that is missing or has the wrong shape.
    """
    if spec.distances is None:
        return dict(tensors)
    buckets, farthest = spec.distances.buckets, spec.distances.max_distance
    distances = np.arange(spec.num_distances) - spec.num_distances // 2
    if spec.model_type == "mpnet":
        _require(tensors, {BUCKETS: (buckets, spec.num_heads)}, where)
        stored = tensors[BUCKETS]

        def biases() -> FloatArray:
            return np.ascontiguousarray(_matrix(stored)[buckets_of(distances, buckets, farthest)].T)

        left = {name: tensor for name, tensor in tensors.items() if name != BUCKETS}
        return left | {BIAS: MadeTensor(BIAS, spec.num_heads * spec.num_distances, biases)}
    shares, normalizes = config.get("share_att_key", False), config.get("norm_rel_ebd") == "layer_norm"
    _require(tensors, {EMBEDDINGS: (buckets, spec.hidden_size)}, where)
    if normalizes:
        _require(tensors, {f"{_NORM}.{part}": (spec.hidden_size,) for part in ("weight", "bias")}, where)
    made = {ROWS: MadeTensor(ROWS, spec.num_distances, lambda: log_rows(distances, buckets // 2, farthest))}
    for layer in range(spec.num_layers):
        attention = f"encoder.layer.{layer}.attention.self"
        name, size = f"{attention}.{HEADS}", 2 * buckets * spec.num_heads * spec.head_dim
        modules = [f"{attention}.{each}" for each in (SHARED if shares else OWN)]
        for module in modules:
            sizes = {f"{module}.weight": (spec.hidden_size, spec.hidden_size), f"{module}.bias": (spec.hidden_size,)}
            _require(tensors, sizes, where)
        made[name] = MadeTensor(name, size, _heads(tensors, spec, modules, normalizes=normalizes))
    used = {EMBEDDINGS, *(name for name in tensors if _PROJECTIONS.fullmatch(name))}
    return {name: tensor for name, tensor in tensors.items() if name not in used} | made


def _require(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    for name, expected in shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != expected:
            what = "is missing" if found is None else f"has the shape {found}"
            raise CheckpointError(
                f"{where}: tensor {name} {what}, expected {expected}; download all files again", file=where
            )


def _heads(
    tensors: Mapping[str, Tensor], spec: ModelSpec, modules: Sequence[str], *, normalizes: bool
) -> Callable[[], FloatArray]:
    """What makes a layer's heads: the embeddings, which may be normalized, projected by each of the modules: as keys
    (for queries) and as queries (for keys).
    """

    def make() -> FloatArray:
        x = _matrix(tensors[EMBEDDINGS])
        if normalizes:
            x = x - x.mean(axis=1, keepdims=True)
            x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(spec.rms_norm_eps))
            x = x * _matrix(tensors[f"{_NORM}.weight"]) + _matrix(tensors[f"{_NORM}.bias"])
        parts = []
        for module in modules:
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
