"""What a folder of Whisper holds besides layers: its tensors by the names that the graphs have, and the tokens and
frames that `SpeechSpec` describes, from generation_config.json and preprocessor_config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..ir.spec import ModelSpec
from ..ir.speech import FRAME, HOP, SAMPLE_RATE, LanguageToken, SpeechSpec
from ..runtime.errors import CheckpointError
from .checkpoint import Tensor
from .config import ConfigReader
from .convolutions import ConvolutionMatrix
from .distance_tensors import MadeTensor
from .json_file import read_json_object

GENERATION = "generation_config.json"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
_CODE = re.compile(r"<\|([a-z]{2,3})\|>")
_NAMES = {
    "model.decoder.embed_tokens.": "model.embed_tokens.",
    "model.decoder.embed_positions.": "model.embed_positions.",
    "model.decoder.layer_norm.": "model.norm.",
    "model.decoder.norm.": "model.norm.",
    "proj_out.": "lm_head.",
}
_LAYER = re.compile(r"model\.decoder\.(layers\.\d{1,5}\.)(\w+(?:\.\w+)?)\.(weight|bias)")
_MODULES = {
    "self_attn.out_proj": "self_attn.o_proj",
    "encoder_attn.out_proj": "encoder_attn.o_proj",
    "self_attn_layer_norm": "input_layernorm",
    "final_layer_norm": "post_attention_layernorm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
}
_KEYS = re.compile(r"(.*\.(?:self_attn|encoder_attn)\.k_proj)\.weight")
_CONVOLUTION = re.compile(r"model\.encoder\.conv([12])\.weight")


def whisper_tensors(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:  # noqa: ARG001
    """The decoder's by the names of other decoders, convolutions as matrices, and zeros as biases of keys, which have
    none. A name that is not known stays as it is.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = decoder_name(name, _MODULES)
        convolution = _CONVOLUTION.fullmatch(name)
        if convolution is not None and len(tensor.shape) == 3 and tensor.shape[2] == 3:
            name = name.removesuffix("weight") + "matrix"
            tensor = ConvolutionMatrix(tensor, 2 if convolution[1] == "1" else 1)
        renamed[name] = tensor
        keys = _KEYS.fullmatch(name)
        bias = "" if keys is None else f"{keys[1]}.bias"
        if bias and bias not in tensors and tensor.shape:
            renamed[bias] = zeros(bias, tensor.shape[0])
    return renamed


def decoder_name(name: str, modules: Mapping[str, str]) -> str:
    """The name that other decoders have for a tensor of a decoder beside an encoder of sound. ``modules``: those of
    layers that have other names.
    """
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        name = f"model.{layer[1]}{modules.get(layer[2], layer[2])}.{layer[3]}"
    prefix = next((each for each in _NAMES if name.startswith(each)), None)
    return name if prefix is None else _NAMES[prefix] + name.removeprefix(prefix)


def zeros(name: str, size: int) -> MadeTensor:
    values = np.zeros(size, np.float32)
    return MadeTensor(name, size, lambda: values)


def read_speech(path: Path, spec: ModelSpec) -> SpeechSpec:
    """The tokens of a folder's generation_config.json. Raises CheckpointError if one is missing or is not in the
    vocabulary, and UnsupportedModel for frames of other kinds.
    """
    assert spec.audio is not None
    seconds = _read_preprocessor(path, spec.audio.mel_bins, spec.audio.positions)
    where = path / GENERATION
    if not where.is_file():
        raise CheckpointError(
            f"{path}: has no {GENERATION}, which names the tokens of languages and tasks; download it, or load the "
            "model with transformers and write it with save_pretrained(folder)"
        )
    config = ConfigReader(read_json_object(where), str(where))
    no_timestamps = config.integer("no_timestamps_token_id")
    tasks = config.section("task_to_id")
    speech = SpeechSpec(
        start=config.integer("decoder_start_token_id", minimum=0),
        no_timestamps=no_timestamps,
        # It has no key of its own: in every vocabulary, it is the one before.
        no_speech=no_timestamps - 1,
        seconds=seconds,
        languages=_languages(config),
        transcribe=None if tasks is None else tasks.optional_integer("transcribe"),
        translate=None if tasks is None else tasks.optional_integer("translate"),
        previous=config.optional_integer("prev_sot_token_id"),
        suppressed=config.token_ids("suppress_tokens"),
        suppressed_first=config.token_ids("begin_suppress_tokens"),
        max_initial_timestamp=config.optional_integer("max_initial_timestamp_index", minimum=0),
    )
    timestamps = spec.audio.positions + 1
    named = {
        "decoder_start_token_id": speech.start,
        "prev_sot_token_id": speech.previous or 0,
        "task_to_id": max(speech.transcribe or 0, speech.translate or 0),
        "lang_to_id": max((each.token or 0 for each in speech.languages), default=0),
        "suppress_tokens": max(speech.suppressed, default=0),
        "begin_suppress_tokens": max(speech.suppressed_first, default=0),
        # The last timestamp is that of the window's end.
        "no_timestamps_token_id": no_timestamps + timestamps,
    }
    for key, token in named.items():
        if token >= spec.vocab_size:
            raise config.contradiction(
                key, f"{key!r} needs token {token}, outside of the vocabulary of {spec.vocab_size} (config.json)"
            )
    if speech.transcribe is None and any(each.token is not None for each in speech.languages):
        raise config.contradiction("task_to_id", "'task_to_id' lacks 'transcribe', but 'lang_to_id' names languages")
    return speech


def _languages(config: ConfigReader) -> tuple[LanguageToken, ...]:
    section = config.section("lang_to_id")
    if section is None:
        # The published models of one language are the English ones.
        return () if config.flag("is_multilingual", default=True) else (LanguageToken("en", None),)
    found = []
    names = section.keys()
    for name in names:
        code = _CODE.fullmatch(name)
        if code is None:
            raise config.contradiction("lang_to_id", f"'lang_to_id' has {name!r}, expected a token such as '<|en|>'")
        found.append(LanguageToken(code[1], section.integer(name, minimum=0)))
    return tuple(found)


def _read_preprocessor(path: Path, mel_bins: int, positions: int) -> int:
    """The seconds of a window, which follow from its rows. Raises UnsupportedModel for frames of other kinds."""
    seconds = 2 * positions * HOP / SAMPLE_RATE
    if seconds != int(seconds):
        raise CheckpointError(
            f"{path}: a window of {positions} rows ('max_source_positions') has {seconds} seconds; expected whole ones"
        )
    config = read_feature_extractor(path)
    if config is None:
        return int(seconds)
    config.expect("feature_extractor_type", "WhisperFeatureExtractor")
    config.expect("feature_size", mel_bins)
    config.expect("sampling_rate", SAMPLE_RATE)
    config.expect("hop_length", HOP)
    config.expect("n_fft", FRAME)
    config.expect("chunk_length", int(seconds))
    config.expect("n_samples", int(seconds) * SAMPLE_RATE)
    config.expect("nb_max_frames", 2 * positions)
    config.expect("dither", 0.0, 0)
    config.expect("do_normalize", False)
    config.expect("padding_value", 0.0, 0)
    config.expect("padding_side", "right")
    # transformers computes the filters, also if a file holds them; the mask is not read.
    config.finish(frozenset({"mel_filters", "processor_class", "return_attention_mask"}))
    return int(seconds)


def read_feature_extractor(path: Path) -> ConfigReader | None:
    """How a folder says that sound is prepared: in a file, or as transformers 5 writes it, in a section of another one;
    None if it has neither.
    """
    if (path / PREPROCESSOR).is_file():
        where = path / PREPROCESSOR
        return ConfigReader(read_json_object(where), str(where))
    if (path / PROCESSOR).is_file():
        where = path / PROCESSOR
        return ConfigReader(read_json_object(where), str(where)).section("feature_extractor")
    return None
