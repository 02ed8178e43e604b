"""A tiny Whisper with random weights, as transformers saves it: windows of one second, three languages, timestamps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROWS, MELS = 50, 20
# The vocabulary: text, then the tokens of Whisper, then a timestamp for each row and one more.
TEXT = 40
END, START = TEXT, TEXT + 1
LANGUAGES = {"<|en|>": TEXT + 2, "<|de|>": TEXT + 3, "<|yue|>": TEXT + 4}
TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = range(TEXT + 5, TEXT + 10)
FIRST_TIMESTAMP = NO_TIMESTAMPS + 1
VOCABULARY = FIRST_TIMESTAMP + ROWS + 1
CONTEXT = 40
# Random weights write until the context is full, so the texts of a bundle with this context take a third of the time.
SHORT_CONTEXT = 16


def make_whisper(path: Path, *, seed: int = 0, scale: float = 0.1, **changes: Any) -> Any:
    """Write the checkpoint. Returns transformers' model."""
    import torch
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(seed)
    config = WhisperConfig(
        **{
            "vocab_size": VOCABULARY,
            "num_mel_bins": MELS,
            "encoder_layers": 2,
            "encoder_attention_heads": 3,
            "decoder_layers": 2,
            "decoder_attention_heads": 6,
            "d_model": 60,
            "encoder_ffn_dim": 84,
            "decoder_ffn_dim": 100,
            "max_source_positions": ROWS,
            "max_target_positions": CONTEXT,
            "pad_token_id": END,
            "bos_token_id": END,
            "eos_token_id": END,
            "decoder_start_token_id": START,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
            **changes,
        }
    )
    config._attn_implementation = "eager"
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name or parameter.dim() > 1:
                parameter.normal_(0, scale)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=START,
        eos_token_id=END,
        bos_token_id=END,
        pad_token_id=END,
        is_multilingual=True,
        lang_to_id=LANGUAGES,
        task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
        no_timestamps_token_id=NO_TIMESTAMPS,
        prev_sot_token_id=PREVIOUS,
        max_initial_timestamp_index=20,
        suppress_tokens=[1, 7, START, *LANGUAGES.values(), TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH],
        begin_suppress_tokens=[3, END],
        max_length=CONTEXT,
    )
    model.save_pretrained(path)
    write_whisper_tokenizer(path)
    preprocessor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": config.num_mel_bins,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": config.max_source_positions // 50,
        "nb_max_frames": 2 * config.max_source_positions,
        "n_samples": 320 * config.max_source_positions,
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
    (path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return model


def write_whisper_tokenizer(path: Path) -> None:
    """A word for each token of text: a byte-level tokenizer of letters, and the special tokens by Whisper's names."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: index for index, letter in enumerate("Ġabcdefghijklmnopqrstuvwxyz.,?!'-0123456789"[:TEXT])}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, "<|translate|>", "<|transcribe|>", "<|startofprev|>"]
    names += ["<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    stamps = [f"<|{index * 0.02:.2f}|>" for index in range(ROWS + 1)]
    tokenizer.add_tokens([AddedToken(stamp, special=False, normalized=False) for stamp in stamps])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def log_mel(seed: int = 0, *, mels: int = MELS, rows: int = ROWS) -> npt.NDArray[np.float32]:
    """Frames (mel bins, 2 * rows) like those of sound."""
    generator = np.random.default_rng(seed)
    return generator.normal(0, 0.6, (mels, 2 * rows)).astype(np.float32)
