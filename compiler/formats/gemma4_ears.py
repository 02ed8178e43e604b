"""The tensors of the tower with which Gemma 4 E2B and E4B hear, as `arch/hearing/gemma4.py` reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from ..arch.hearing.gemma4 import DISTANCE_ROWS, HALVINGS, SUBSAMPLING, TOWER
from ..ir.spec import KEY_TILE, HearingSpec
from ..runtime.errors import CheckpointError
from .checkpoint import Tensor
from .convolutions import ChannelsFirst
from .distance_tensors import MadeTensor

FloatArray = npt.NDArray[np.float32]
# Scores are products of queries and keys in units of log 2, whatever the factors of the queries' elements are.
KEY_FACTOR = math.log(1 + math.e) / math.log(2)
MOST_TIMESCALE = 10_000.0


def gemma4_ears(tensors: Mapping[str, Tensor], spec: HearingSpec, where: str) -> dict[str, Tensor]:
    """The tensors, with those that the graph reads instead of others. ``where``: the file of the configuration.

    Raises CheckpointError for one that is missing or has another shape.
    """
    made, inputs, size = dict(tensors), 1, spec.hidden_size
    for number, channels in zip(range(HALVINGS), spec.channels, strict=True):
        name = f"{SUBSAMPLING}.layer{number}.conv.weight"
        stored = _require(tensors, name, (channels, inputs, 3, 3), where)
        made[name] = MadeTensor(name, 9 * inputs * channels, partial(_filters, stored))
        inputs = channels
    distances = np.arange(2 * (spec.sound_rows + KEY_TILE) - 1) - (spec.sound_rows + KEY_TILE - 1)
    rows = np.clip(-distances, 0, spec.window - 1).astype(np.float32)
    made[DISTANCE_ROWS] = MadeTensor(DISTANCE_ROWS, len(rows), lambda: rows)
    for layer in range(spec.num_layers):
        here = f"{TOWER}.layers.{layer}"
        name = f"{here}.lconv1d.depthwise_conv1d.weight"
        stored = _require(tensors, name, (size, 1, spec.taps), where)
        made[name] = MadeTensor(name, spec.taps * size, partial(_filters, stored))
        used = {f"{here}.self_attn.{each}" for each in ("per_dim_scale", "relative_k_proj.weight")}
        scales = _require(tensors, f"{here}.self_attn.per_dim_scale", (size // spec.num_heads,), where)
        keys = _require(tensors, f"{here}.self_attn.relative_k_proj.weight", (size, size), where)
        factors, heads = (f"{here}.self_attn.{each}" for each in ("qkv_factors", "distance_heads"))
        made[factors] = MadeTensor(factors, 3 * size, partial(_factors, scales, spec))
        made[heads] = MadeTensor(heads, 2 * spec.window * size, partial(_heads, keys, spec))
        made = {each: tensor for each, tensor in made.items() if each not in used}
    return made


def ear_channels_first(tensor: Tensor, name: str, spec: HearingSpec) -> Tensor:
    """A convolution as transformers stores it, or MLX: over rows and bands, or over rows by channel."""
    if len(tensor.shape) not in (3, 4):
        return tensor
    channels = spec.channels[0] if name.startswith(f"{SUBSAMPLING}.layer1.") else 1
    from_mlx = tensor.shape[1] != channels and tensor.shape[-1] == channels
    return ChannelsFirst(tensor) if from_mlx else tensor


def _require(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], where: str) -> Tensor:
    found = tuple(tensors[name].shape) if name in tensors else None
    if found != shape:
        what = "is missing" if found is None else f"has the shape {found}"
        raise CheckpointError(f"{where}: tensor {name} {what}, expected {shape}; download all files again", file=where)
    return tensors[name]


def _filters(stored: Tensor) -> FloatArray:
    """Filters (outputs, inputs, ...), in the order of `ops.convolutions`: the outputs last, before them the inputs."""
    values = stored.rows(0, stored.shape[0])
    return np.moveaxis(values, (0, 1), (-1, -2))


def _factors(scales: Tensor, spec: HearingSpec) -> FloatArray:
    """What each column of queries, keys and values is multiplied by."""
    values = scales.rows(0, scales.shape[0]).astype(np.float64)
    of_head = np.log1p(np.exp(values)) * len(values) ** -0.5 / math.log(2)
    size = spec.hidden_size
    parts = [np.tile(of_head, spec.num_heads), np.full(size, KEY_FACTOR), np.ones(size)]
    return np.concatenate(parts).astype(np.float32)


def _heads(keys: Tensor, spec: HearingSpec) -> FloatArray:
    """The heads of each distance that a row sees, for queries; none for keys."""
    size, half = spec.hidden_size, spec.hidden_size // 2
    rates = np.exp(np.arange(half) * -(math.log(MOST_TIMESCALE) / max(half - 1, 1)))
    angles = np.arange(spec.window)[:, None] * rates
    rows = np.concatenate([np.sin(angles), np.cos(angles)], axis=1) @ keys.rows(0, size).astype(np.float64).T
    for_queries = rows.reshape(spec.window, spec.num_heads, -1).swapaxes(0, 1)
    return np.stack([for_queries, np.zeros_like(for_queries)]).astype(np.float32)
