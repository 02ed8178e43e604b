"""Tensors of folders that mlx-lm wrote, which have its own names and shapes, as those of transformers.

experts       X.switch_mlp.gate_proj (E, N, K)   -> a tensor for each expert, or a stack of gates and what they gate
LFM2          feed_forward.gate_proj             -> feed_forward.w1
Granite 4     mlp.gate_proj, mlp.up_proj         -> shared_mlp.input_linear
Qwen3.5       norms that are stored plus one     -> the norms

Kernels of convolutions are (C, k, 1) instead of (C, 1, k), which is the same order (ml-explore/mlx-lm, ``sanitize`` of
the models).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..ir.spec import ModelSpec
from ..quant.base import Array
from ..runtime.errors import UnsupportedModel
from .checkpoint import Shifted, StoredMatrix, Tensor

# The modules of experts in a layer, and the names of their tensors: with "{}" for the expert, or stacked.
SEPARATE = {
    "mlp.switch_mlp": ("mlp.experts.{}.", {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}),
    "feed_forward.switch_mlp": ("feed_forward.experts.{}.", {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}),
}
STACKED = {
    "block_sparse_moe.switch_mlp": ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
    "experts.switch_glu": ("experts.gate_up_proj", "experts.down_proj"),
}
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
LFM2 = dict(zip(PROJECTIONS, ("w1", "w3", "w2"), strict=True))
LAYER = re.compile(r"(model\.layers\.\d{1,6}\.)(.*)")
# The norms of Qwen3.5 that mlx-lm stores plus one.
PLUS_ONE = re.compile(r"model\.norm\.weight|.*\.(input_layernorm|post_attention_layernorm|q_norm|k_norm)\.weight")

# Rows [start, stop) of a tensor.
Piece = tuple[Tensor, int, int]


def is_of_mlx(tensors: Mapping[str, Tensor]) -> bool:
    """Whether kernels of convolutions have mlx-lm's shape, or experts its names."""
    return any(
        (len(tensor.shape) == 3 and name.endswith(("conv1d.weight", "conv.weight")) and tensor.shape[2] == 1)
        or ".switch_mlp." in name
        or ".switch_glu." in name
        for name, tensor in tensors.items()
    )


def transformers_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec, where: str) -> Mapping[str, Tensor]:
    """Raises UnsupportedModel for a model whose tensors contain the factors of its config.json."""
    if not is_of_mlx(tensors):
        return tensors
    if spec.model_type == "falcon_h1":
        raise UnsupportedModel(
            f"{where}: mlx-lm multiplied the weights of this falcon_h1 model by the factors that config.json still "
            "has; give the original checkpoint",
            model_type=spec.model_type,
        )
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = LAYER.fullmatch(name)
        renamed = dict(in_layer(match[1], match[2], tensors, spec)) if match is not None else {}
        if spec.model_type == "qwen3_5_text" and PLUS_ONE.fullmatch(name):
            renamed = {name: Shifted(name, tensor)}
        found |= renamed or ({} if match is not None and is_part(match[2], spec) else {name: tensor})
    return found


def in_layer(prefix: str, name: str, tensors: Mapping[str, Tensor], spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """The tensors that one of a layer becomes, if any; gates become those of what they gate, too."""
    module, _, projection = name.removesuffix(".weight").rpartition(".")
    tensor, experts = tensors[prefix + name], spec.experts.number if spec.experts is not None else 1
    if module in SEPARATE and projection in PROJECTIONS:
        stem, names = SEPARATE[module]
        each = row_count(tensor) // experts
        for expert in range(experts):
            own = f"{prefix}{stem.format(expert)}{names[projection]}.weight"
            yield own, joined(own, [(tensor, expert * each, (expert + 1) * each)])
    elif module in STACKED and projection == "gate_proj":
        own = prefix + STACKED[module][0]
        yield own, halves(own, tensor, tensors[f"{prefix}{module}.up_proj.weight"], experts)
    elif module in STACKED and projection == "down_proj":
        own = prefix + STACKED[module][1]
        yield own, joined(own, [(tensor, 0, row_count(tensor))])
    elif spec.model_type == "lfm2_moe" and module == "feed_forward" and projection in LFM2:
        own = f"{prefix}feed_forward.{LFM2[projection]}.weight"
        yield own, joined(own, [(tensor, 0, row_count(tensor))])
    elif spec.model_type == "granitemoehybrid" and module == "mlp" and projection == "gate_proj":
        own = f"{prefix}shared_mlp.input_linear.weight"
        yield own, halves(own, tensor, tensors[f"{prefix}mlp.up_proj.weight"], 1)
    elif spec.model_type == "granitemoehybrid" and module == "mlp" and projection == "down_proj":
        own = f"{prefix}shared_mlp.output_linear.weight"
        yield own, joined(own, [(tensor, 0, row_count(tensor))])


def is_part(name: str, spec: ModelSpec) -> bool:
    """Whether a tensor is what another one gates, with which it becomes one."""
    module, _, projection = name.removesuffix(".weight").rpartition(".")
    return projection == "up_proj" and (module in STACKED or (spec.model_type, module) == ("granitemoehybrid", "mlp"))


def halves(name: str, gate: Tensor, up: Tensor, experts: int) -> Tensor:
    """Every expert's gates before what they gate."""
    each = row_count(gate) // experts
    starts = range(0, row_count(gate), each)
    return joined(name, [(half, start, start + each) for start in starts for half in (gate, up)])


def row_count(tensor: Tensor) -> int:
    """Those of a matrix, or of all matrices of a stack."""
    return tensor.shape[0] if len(tensor.shape) == 2 else tensor.shape[0] * tensor.shape[1]


def joined(name: str, pieces: Sequence[Piece]) -> Tensor:
    """The matrix of the rows of pieces, one after the other."""
    rows = sum(stop - start for _, start, stop in pieces)
    first = pieces[0][0]
    stored = [tensor for tensor, _, _ in pieces if isinstance(tensor, StoredMatrix)]
    if len(stored) == len(pieces) and len({each.form.name for each in stored}) == 1:
        return replace(stored[0], name=name, shape=(rows, first.shape[-1]), planes=partial(planes_of, pieces))
    return Joined(name, (rows, first.shape[-1]), first.dtype, pieces)


def overlapping(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    """The rows [start, stop) of all pieces."""
    begin = 0
    for tensor, first, last in pieces:
        low, high = max(start - begin, 0), min(stop - begin, last - first)
        if low < high:
            yield tensor, first + low, first + high
        begin += last - first


def planes_of(pieces: Sequence[Piece], start: int, stop: int) -> Mapping[str, Array]:
    parts = [
        tensor.planes(low, high)
        for tensor, low, high in overlapping(pieces, start, stop)
        if isinstance(tensor, StoredMatrix)
    ]
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True, slots=True)
class Joined:
    """A matrix of floats."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: Sequence[Piece]

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        parts = [rows_of(tensor, low, high) for tensor, low, high in overlapping(self.pieces, start, stop)]
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), np.float32)


def rows_of(tensor: Tensor, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Rows of a matrix, or of a stack of matrices."""
    if len(tensor.shape) == 2:
        return tensor.rows(start, stop)
    each = tensor.shape[1]
    first = start // each
    rows = tensor.rows(first, -(-stop // each)).reshape(-1, tensor.shape[2])
    return rows[start - first * each : stop - first * each]
