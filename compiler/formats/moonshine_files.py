"""What a folder of Moonshine holds besides layers: its tensors by the names that the graphs have, and how it
transcribes, from preprocessor_config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..arch.moonshine import CONVOLUTIONS, FRAMES_OF_ROW, PAIR, ROW_SAMPLES, SECONDS
from ..ir.spec import ModelSpec
from ..ir.speech import SAMPLE_RATE, SpeechSpec
from .checkpoint import Tensor
from .config import ConfigReader
from .convolutions import ConvolutionMatrix
from .json_file import read_json_object
from .whisper_files import decoder_name, read_feature_extractor

_MODULES = {
    # The norm before the attention to the encoder's rows, and that before the feed-forward.
    "post_attention_layernorm": "encoder_attn_layer_norm",
    "final_layernorm": "post_attention_layernorm",
    "mlp.fc2": "mlp.down_proj",
}
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
    start = config.integer("decoder_start_token_id", minimum=0, default=1)
    if start >= spec.vocab_size:
        raise config.contradiction(
            "decoder_start_token_id",
            f"'decoder_start_token_id' is {start}, outside of the vocabulary of {spec.vocab_size}",
        )
    return SpeechSpec(start=start, no_timestamps=None, no_speech=None, seconds=SECONDS)
