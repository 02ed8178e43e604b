"""What a folder of Parakeet CTC holds: its tensors as the graph reads them, with what is constant folded into them, and
the check of preprocessor_config.json.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arch.parakeet_ctc import HALVINGS, SUBSAMPLING
from ..ir.spec import ModelSpec
from ..ir.speech import FRAME, HOP, SAMPLE_RATE, CtcSpec
from ..runtime.errors import CheckpointError
from .checkpoint import Derived, Tensor
from .config import ConfigReader
from .convolutions import FlatMatrix
from .distance_tensors import MadeTensor
from .json_file import read_json_object
from .whisper_files import PREPROCESSOR, PROCESSOR, zeros

FloatArray = npt.NDArray[np.float32]

# What half a feed-forward is multiplied by.
HALF = 0.5
# torch's default for BatchNorm.
BATCH_EPS = 1e-5
# The samples of a spectrum, and the filter before it.
SPECTRUM, PREEMPHASIS = 512, 0.97
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")
# A buffer that counts training steps, and one with constants.
_UNUSED = re.compile(r".*\.norm\.num_batches_tracked|encoder\.encode_positions\.inv_freq")


@dataclass(frozen=True, slots=True)
class Scaled(Derived):
    """A tensor times a factor."""

    factor: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def rows(self, start: int, stop: int) -> FloatArray:
        return self.stored.rows(start, stop) * np.float32(self.factor)


@dataclass(frozen=True, slots=True)
class PlacesFirst(Derived):
    """A matrix whose columns are places of ``channels``, stored as channels of places."""

    channels: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def rows(self, start: int, stop: int) -> FloatArray:
        stored = self.stored.rows(start, stop).reshape(stop - start, self.channels, -1)
        return np.ascontiguousarray(stored.swapaxes(1, 2)).reshape(stop - start, -1)


def parakeet_tensors(
    tensors: Mapping[str, Tensor], spec: ModelSpec, config: Mapping[str, Any], where: str
) -> dict[str, Tensor]:
    """The tensors as the graph of `arch/parakeet_ctc.py` reads them. ``config``: the values of the file ``where``.

    Raises CheckpointError for a tensor that others are made of and that is missing or has another shape.
    """
    conformer, source = spec.conformer, Source(tensors, where)
    assert conformer is not None
    size, channels = spec.hidden_size, conformer.channels
    made = {name: tensor for name, tensor in tensors.items() if not _UNUSED.fullmatch(name)}
    made["ctc_head.weight"] = FlatMatrix(source.tensor("ctc_head.weight", spec.vocab_size, size, 1))
    for number in range(HALVINGS):
        # The first convolution reads one channel; the others have a filter for each channel, and then mix them.
        first = f"{SUBSAMPLING}.layers.{max(0, 3 * number - 1)}.weight"
        made[first] = _filters(first, source.tensor(first, channels, 1, 3, 3))
        if number:
            point = f"{SUBSAMPLING}.layers.{3 * number}.weight"
            made[point] = _filters(point, source.tensor(point, channels, channels, 1, 1))
    places = conformer.mel_bins >> HALVINGS
    linear = f"{SUBSAMPLING}.linear"
    factor = size**0.5 if config["encoder_config"].get("scale_input", True) else 1.0
    weight = PlacesFirst(source.tensor(f"{linear}.weight", size, channels * places), channels)
    made[f"{linear}.weight"] = Scaled(weight, factor)
    made[f"{linear}.bias"] = Scaled(source.tensor(f"{linear}.bias", size), factor)
    for layer in range(spec.num_layers):
        made = _without(made, f"encoder.layers.{layer}") | _layer_tensors(source, f"encoder.layers.{layer}", spec)
    return made


@dataclass(frozen=True, slots=True)
class Source:
    """The tensors on disk; ``where``: the file of the config."""

    tensors: Mapping[str, Tensor]
    where: str

    def tensor(self, name: str, *shape: int) -> Tensor:
        found = tuple(self.tensors[name].shape) if name in self.tensors else None
        if found != shape:
            what = "is missing" if found is None else f"has the shape {found}"
            raise CheckpointError(
                f"{self.where}: tensor {name} {what}, expected {shape}; download all files again", file=self.where
            )
        return self.tensors[name]

    def bias(self, module: str, size: int) -> Tensor:
        """The bias of a module; zeros if it has none."""
        name = f"{module}.bias"
        return self.tensor(name, size) if name in self.tensors else zeros(name, size)

    def values(self, name: str, *shape: int) -> FloatArray:
        tensor = self.tensor(name, *shape)
        return tensor.rows(0, tensor.shape[0])


def _without(tensors: Mapping[str, Tensor], module: str) -> dict[str, Tensor]:
    """Without those of a layer that others are made of."""
    gone = re.compile(rf"{re.escape(module)}\.(?:conv\.norm\.\w+|self_attn\.(?:relative_k_proj\.weight|bias_[uv]))")
    return {name: tensor for name, tensor in tensors.items() if not gone.fullmatch(name)}


def _layer_tensors(source: Source, module: str, spec: ModelSpec) -> dict[str, Tensor]:
    """Those of a layer that the graph reads in another form."""
    conformer, size, made = spec.conformer, spec.hidden_size, {}
    assert conformer is not None
    for number in (1, 2):
        first, second = (f"{module}.feed_forward{number}.linear{each}" for each in (1, 2))
        made[f"{first}.bias"] = source.bias(first, spec.intermediate_size)
        made[f"{second}.weight"] = Scaled(source.tensor(f"{second}.weight", size, spec.intermediate_size), HALF)
        made[f"{second}.bias"] = Scaled(source.bias(second, size), HALF)
    conv, attention = f"{module}.conv", f"{module}.self_attn"
    for number, outputs in ((1, 2 * size), (2, size)):
        name = f"{conv}.pointwise_conv{number}"
        made[f"{name}.weight"] = FlatMatrix(source.tensor(f"{name}.weight", outputs, size, 1))
        made[f"{name}.bias"] = source.bias(name, outputs)
    for role in ("k", "v", "o"):
        made[f"{attention}.{role}_proj.bias"] = source.bias(f"{attention}.{role}_proj", size)
    shape, vectors = (spec.num_heads, spec.head_dim), {}
    vectors[f"{attention}.q_proj.bias"] = size, lambda: _query_bias(source, attention, shape)
    vectors[f"{attention}.distance_heads"] = spec.num_distances * size, lambda: _distance_heads(source, attention, spec)
    vectors[f"{attention}.distance_bias"] = (
        spec.num_distances * spec.num_heads,
        lambda: _distance_bias(source, attention, spec),
    )
    depthwise, length = f"{conv}.depthwise_conv", conformer.size
    vectors[f"{depthwise}.weight"] = length * size, lambda: _folded(source, conv, size, length)[0]
    vectors[f"{depthwise}.bias"] = size, lambda: _folded(source, conv, size, length)[1]
    # They are read when the values are made; a folder that lacks one is refused before.
    for name in ("bias_u", "bias_v"):
        source.tensor(f"{attention}.{name}", *shape)
    source.tensor(f"{attention}.relative_k_proj.weight", size, size)
    source.tensor(f"{depthwise}.weight", size, 1, length)
    for part in _BATCH_NORM:
        source.tensor(f"{conv}.norm.{part}", size)
    return made | {name: MadeTensor(name, count, make) for name, (count, make) in vectors.items()}


def _filters(name: str, stored: Tensor) -> MadeTensor:
    """The weights of a convolution (outputs, inputs, height, width) in the order of `ops.convolutions`: height, width,
    inputs, outputs.
    """
    return MadeTensor(
        name,
        math.prod(stored.shape),
        lambda: np.ascontiguousarray(stored.rows(0, stored.shape[0]).transpose(2, 3, 1, 0)),
    )


def _folded(source: Source, conv: str, size: int, length: int) -> tuple[FloatArray, FloatArray]:
    """The filters (length, E) and biases of the convolution over rows with the normalization behind it. Ioffe & Szegedy
    2015.
    """
    weight, bias, mean, variance = (source.values(f"{conv}.norm.{part}", size) for part in _BATCH_NORM)
    factor = weight / np.sqrt(variance + np.float32(BATCH_EPS))
    filters = source.values(f"{conv}.depthwise_conv.weight", size, 1, length)[:, 0].T
    own = source.bias(f"{conv}.depthwise_conv", size).rows(0, size)
    return np.ascontiguousarray(filters * factor), (own - mean) * factor + bias


def _query_bias(source: Source, attention: str, shape: tuple[int, int]) -> FloatArray:
    """The bias of queries, with what is added to them before their products with keys."""
    own = source.bias(f"{attention}.q_proj", math.prod(shape)).rows(0, math.prod(shape))
    return own + source.values(f"{attention}.bias_u", *shape).reshape(-1)


def _distance_heads(source: Source, attention: str, spec: ModelSpec) -> FloatArray:
    """The projected sines and cosines (H, N, D) of each distance key - row."""
    size = spec.hidden_size
    distances = np.arange(spec.num_distances) - spec.num_distances // 2
    frequencies = 10_000.0 ** (-np.arange(0, size, 2) / size)
    # Parakeet's distances are row - key.
    angles = -distances[:, None] * frequencies
    positions = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(len(distances), size).astype(np.float32)
    heads = positions @ source.values(f"{attention}.relative_k_proj.weight", size, size).T
    return np.ascontiguousarray(heads.reshape(len(distances), spec.num_heads, -1).swapaxes(0, 1))


def _distance_bias(source: Source, attention: str, spec: ModelSpec) -> FloatArray:
    """What is added to scores (H, N): the heads of distances times the difference of the two vectors that are added to
    queries, of which the queries have the first one already.
    """
    shape = (spec.num_heads, spec.head_dim)
    more = source.values(f"{attention}.bias_v", *shape) - source.values(f"{attention}.bias_u", *shape)
    heads = _distance_heads(source, attention, spec)
    bias: FloatArray = np.einsum("hnd,hd->hn", heads, more) * np.float32(spec.head_dim**-0.5)
    return bias


def read_ctc(path: Path, spec: ModelSpec, config: Mapping[str, Any]) -> CtcSpec:
    """How the model's rows become text. Raises CheckpointError for a blank outside of the vocabulary, and
    UnsupportedModel for frames of other kinds.
    """
    assert spec.conformer is not None
    reader = ConfigReader(config, str(path / "config.json"))
    blank = reader.integer("pad_token_id", minimum=0, default=1024)
    if blank >= spec.vocab_size:
        raise reader.contradiction(
            "pad_token_id", f"'pad_token_id' is {blank}, outside of the vocabulary of {spec.vocab_size}"
        )
    _check_preprocessor(path, spec.conformer.mel_bins)
    return CtcSpec(blank, "parakeet")


def _check_preprocessor(path: Path, mel_bins: int) -> None:
    if (path / PREPROCESSOR).is_file():
        where = path / PREPROCESSOR
        config: ConfigReader | None = ConfigReader(read_json_object(where), str(where))
    elif (path / PROCESSOR).is_file():
        where = path / PROCESSOR
        config = ConfigReader(read_json_object(where), str(where)).section("feature_extractor")
    else:
        config = None
    if config is None:
        return
    config.expect("feature_extractor_type", "ParakeetFeatureExtractor")
    config.expect("feature_size", mel_bins)
    config.expect("sampling_rate", SAMPLE_RATE)
    config.expect("hop_length", HOP)
    config.expect("n_fft", SPECTRUM)
    config.expect("win_length", FRAME)
    config.expect("preemphasis", PREEMPHASIS)
    config.expect("padding_value", 0.0, 0)
    config.expect("padding_side", "right")
    config.finish(frozenset({"processor_class", "return_attention_mask"}))
