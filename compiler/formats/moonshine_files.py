"""What a folder of Moonshine holds besides layers: its tensors by the names that the graphs have, and how it
transcribes, from preprocessor_config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..arch.moonshine import CONVOLUTIONS, FRAMES_OF_ROW, PAIR, ROW_SAMPLES, SECONDS
from ..arch.moonshine_streaming import FRAME, POSITION_TABLE, SIZE, STRIDE, window_bias
from ..arch.moonshine_streaming import FRAMES_OF_ROW as FRAMES_OF_LAST
from ..ir.spec import KEY_TILE, ModelSpec
from ..ir.speech import SAMPLE_RATE, SpeechSpec
from .checkpoint import Derived, Tensor
from .config import ConfigReader
from .convolutions import ConvolutionMatrix
from .distance_tensors import MadeTensor
from .json_file import read_json_object
from .whisper_files import decoder_name, read_feature_extractor

_MODULES = {
    # The norm before the attention to the encoder's rows, and that before the feed-forward.
    "post_attention_layernorm": "encoder_attn_layer_norm",
    "final_layernorm": "post_attention_layernorm",
    "mlp.fc2": "mlp.down_proj",
}
_EMBEDDER = "model.encoder.embedder"
# What is added to the score of a key that is not seen: the exponential of it is 0.
HIDDEN = -1e4
_CONVOLUTION = re.compile(r"model\.encoder\.conv([123])\.weight")
# How often each convolution is in a row.
_TIMES = (FRAMES_OF_ROW, PAIR, 1)


def moonshine_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:  # noqa: ARG001
    """The decoder's by the names of other decoders, and convolutions as matrices. A name that is not known stays as it
    is.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = decoder_name(name, _MODULES)
        convolution = _CONVOLUTION.fullmatch(name)
        if convolution is not None and len(tensor.shape) == 3:
            index = int(convolution[1]) - 1
            size, stride = CONVOLUTIONS[index]
            if tensor.shape[2] == size:
                name = name.removesuffix("weight") + "matrix"
                columns = ROW_SAMPLES if index == 0 else None
                tensor = ConvolutionMatrix(tensor, _TIMES[index], stride, columns)
        renamed[name] = tensor
    return renamed


def moonshine_streaming_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """As `moonshine_tensors`, for the encoder of frames: with the factors of its compression, and the biases that hide
    what is outside of the windows of its layers.
    """
    audio = spec.audio
    assert audio is not None
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        # The decoder's table of positions and its projection read the encoder's rows.
        name = decoder_name(name, _MODULES)
        if name == f"{_EMBEDDER}.linear.weight" and len(tensor.shape) == 2:
            renamed[f"{_EMBEDDER}.linear.matrix"] = ConvolutionMatrix(OneChannel(tensor), FRAMES_OF_LAST, FRAME)
        elif name == f"{_EMBEDDER}.conv1.weight" and tensor.shape[2:] == (SIZE,):
            renamed[f"{_EMBEDDER}.conv1.matrix"] = ConvolutionMatrix(tensor, STRIDE, STRIDE)
        elif name == f"{_EMBEDDER}.conv2.weight" and tensor.shape[2:] == (SIZE,):
            renamed[f"{_EMBEDDER}.conv2.matrix"] = ConvolutionMatrix(tensor)
        elif name == POSITION_TABLE and len(tensor.shape) == 2 and tensor.shape[0] > audio.positions:
            renamed[name] = FirstRows(tensor, audio.positions)
        elif name == f"{_EMBEDDER}.comp.log_k":
            factors = f"{_EMBEDDER}.comp.factors"
            renamed[factors] = MadeTensor(factors, FRAME, partial(compression_factors, tensor))
        else:
            renamed[name] = tensor
    size = audio.positions + KEY_TILE
    for window in set(zip(audio.rows_back, audio.rows_ahead, strict=True)):
        name = window_bias(*window)
        made = partial(window_biases, audio.num_heads, size, *window)
        renamed[name] = MadeTensor(name, audio.num_heads * (2 * size - 1), made)
    return renamed


@dataclass(frozen=True, slots=True)
class OneChannel(Derived):
    """A matrix (outputs, size) as the filters (outputs, 1, size) of a convolution."""

    @property
    def shape(self) -> tuple[int, ...]:
        outputs, size = self.stored.shape
        return outputs, 1, size

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self.stored.rows(start, stop)[:, None]


@dataclass(frozen=True, slots=True)
class FirstRows(Derived):
    """The first ``count`` rows of a matrix, which has more."""

    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, self.stored.shape[1]

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self.stored.rows(start, min(stop, self.count))


def compression_factors(stored: Tensor) -> npt.NDArray[np.float32]:
    """What a compression multiplies by, of which the logarithm is stored, for each sample of a frame."""
    return np.full(FRAME, np.exp(stored.rows(0, 1).reshape(-1)[0]), np.float32)


def window_biases(num_heads: int, size: int, back: int, ahead: int) -> npt.NDArray[np.float32]:
    """The biases of `ops.attention.distance_biases` that hide keys ``back`` rows or more before, or ``ahead`` rows or
    more behind a row, itself excepted.
    """
    distances = np.arange(1 - size, size)
    seen = ((distances <= 0) & (distances > -back)) | ((distances > 0) & (distances < ahead))
    return np.tile(np.where(seen, np.float32(0), np.float32(HIDDEN)), num_heads)


def read_speech(path: Path, spec: ModelSpec) -> SpeechSpec:
    """The token with which a text begins. Raises CheckpointError if it is missing or is not in the vocabulary, and
    UnsupportedModel for sound that is prepared in another way.
    """
    extractor = read_feature_extractor(path)
    if extractor is not None:
        extractor.expect("feature_extractor_type", "Wav2Vec2FeatureExtractor")
        extractor.expect("feature_size", 1)
        extractor.expect("sampling_rate", SAMPLE_RATE)
        # transformers normalizes if the key is absent.
        if extractor.flag("do_normalize", default=True):
            raise extractor.unsupported(
                "do_normalize",
                "'do_normalize' is true, or absent; sound of which the loudness is normalized is not supported",
            )
        extractor.expect("padding_value", 0.0, 0)
        extractor.expect("padding_side", "right")
        extractor.finish(frozenset({"processor_class", "return_attention_mask"}))
    config = ConfigReader(read_json_object(path / "config.json"), str(path / "config.json"))
    # transformers begins with the token of a text's start if there is no other.
    start = config.optional_integer("decoder_start_token_id", minimum=0)
    start = spec.bos_token_id if start is None else start
    if start is None:
        raise config.contradiction("decoder_start_token_id", "'decoder_start_token_id' is missing")
    if start >= spec.vocab_size:
        raise config.contradiction(
            "decoder_start_token_id",
            f"'decoder_start_token_id' is {start}, outside of the vocabulary of {spec.vocab_size}",
        )
    return SpeechSpec(start=start, no_timestamps=None, no_speech=None, seconds=SECONDS)
