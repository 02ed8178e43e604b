"""The model as transformers' Whisper of one language, its tokenizer and its folder: windows of four seconds, 40 bands.

A transcript is ``<|startoftranscript|>``, then ``<|notimestamps|>`` and the text, or timestamps around the text.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from demo_model.saved_model import write_json
from demo_model.tokenizer import PIECES, train_bpe
from tokenizers import AddedToken, Tokenizer
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from nearfar.compiler.ir.speech import FRAME, HOP, SAMPLE_RATE
from nearfar.compiler.runtime.audio.readings import MelReading

from .commands import any_command
from .voices import WINDOW_SECONDS, Samples, Utterance

MELS = 40
FRAMES = WINDOW_SECONDS * SAMPLE_RATE // HOP
ROWS = FRAMES // 2
CONTEXT = 64
# The vocabulary: text, then the tokens of Whisper, then a timestamp for each row and one more.
TEXT = 384
SPECIAL_TOKENS = ("<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
END, START, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = range(TEXT, TEXT + len(SPECIAL_TOKENS))
FIRST_TIMESTAMP = NO_TIMESTAMPS + 1
VOCABULARY = FIRST_TIMESTAMP + ROWS + 1
SECONDS_PER_STAMP = WINDOW_SECONDS / ROWS


def new_model() -> Any:
    """With random weights."""
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=MELS,
        d_model=128,
        encoder_layers=3,
        encoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=256,
        max_source_positions=ROWS,
        max_target_positions=CONTEXT,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=START,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    # In bfloat16 on CPUs, the products of eager attention are faster than the fused kernel.
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "encoder.embed_positions" not in name:
                table = "embed_tokens" in name or "embed_positions" in name
                added = name.endswith(("out_proj.weight", "fc2.weight"))
                deviation = 0.05 if table else 0.8 / parameter[0].numel() ** 0.5
                parameter.normal_(0, deviation / 3 if added else deviation)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=START,
        eos_token_id=END,
        bos_token_id=END,
        pad_token_id=END,
        is_multilingual=False,
        no_timestamps_token_id=NO_TIMESTAMPS,
        prev_sot_token_id=PREVIOUS,
        suppress_tokens=[START, PREVIOUS, NO_SPEECH],
        begin_suppress_tokens=None,
        max_length=CONTEXT,
    )
    return model


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE of the commands, in which each word and number is a token."""
    generator = random.Random("tokenizer")
    texts = (f" {any_command(generator).written}" for _ in range(3000))
    return train_bpe(texts, TEXT, (), PIECES.replace(r"\p{N}", r" ?\p{N}+"))


def encode(tokenizer: Tokenizer, utterance: Utterance, *, timestamps: bool) -> list[int]:
    """The tokens from the start to the end, as Whisper was trained: those of a window without speech say so."""
    if not utterance.text:
        return [START, NO_SPEECH, END]
    text = tokenizer.encode(f" {utterance.text}", add_special_tokens=False).ids
    if not timestamps:
        return [START, NO_TIMESTAMPS, *text, END]
    first, last = (FIRST_TIMESTAMP + round(at / SECONDS_PER_STAMP) for at in (utterance.start, utterance.end))
    return [START, first, *text, last, END]


def frames_of(samples: Samples) -> Samples:
    """The frames (MELS, FRAMES) of a sound of at most a window, as the product makes them."""
    return MelReading(samples, MELS, FRAMES).window(0)[1]


def write_checkpoint(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    """A Hugging Face folder with weights in float16. The tokenizer gets the tokens of Whisper."""
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    model.float()
    saved = Tokenizer.from_str(tokenizer.to_str())
    unused = [f"<|unused{index}|>" for index in range(TEXT - saved.get_vocab_size())]
    specials = (*unused, *SPECIAL_TOKENS)
    saved.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    stamps = [f"<|{index * SECONDS_PER_STAMP:.2f}|>" for index in range(ROWS + 1)]
    saved.add_tokens([AddedToken(stamp, special=False, normalized=False) for stamp in stamps])
    assert saved.get_vocab_size() == VOCABULARY
    saved.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "WhisperTokenizer", "eos_token": SPECIAL_TOKENS[0], "bos_token": SPECIAL_TOKENS[0]}
    preprocessor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": MELS,
        "sampling_rate": SAMPLE_RATE,
        "hop_length": HOP,
        "n_fft": FRAME,
        "chunk_length": WINDOW_SECONDS,
        "nb_max_frames": FRAMES,
        "n_samples": WINDOW_SECONDS * SAMPLE_RATE,
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "preprocessor_config.json", preprocessor)


def read_checkpoint(folder: Path) -> tuple[Any, Tokenizer]:
    """The model in float32."""
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))
