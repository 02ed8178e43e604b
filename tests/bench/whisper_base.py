"""A checkpoint with Whisper base's shapes and random weights, also as whisper.cpp's file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from minilm import q8_0

from nearfar.compiler.runtime.audio.log_mel import mel_filters

HIDDEN, LAYERS, HEADS, FFN, MELS, ROWS, CONTEXT = 512, 6, 8, 2048, 80, 1500, 448
# The vocabulary of the multilingual models: text, special tokens, 99 languages, tasks, and timestamps.
TEXT, LANGUAGES, TIMESTAMPS = 50257, 99, 1501
END, START = TEXT, TEXT + 1
FIRST_LANGUAGE = START + 1
TRANSLATE = FIRST_LANGUAGE + LANGUAGES
TRANSCRIBE, _, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = range(TRANSLATE + 1, TRANSLATE + 6)
VOCABULARY = NO_TIMESTAMPS + 1 + TIMESTAMPS
PROMPT = [START, FIRST_LANGUAGE, TRANSCRIBE, NO_TIMESTAMPS]
# whisper.cpp's types of tensors, and of files.
TYPES = {"f32": (0, 0), "f16": (1, 1), "q8_0": (8, 2007)}
# Its names by those of transformers.
NAMES = {
    "self_attn.k_proj": "attn.key",
    "self_attn.q_proj": "attn.query",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
}
OUTER_NAMES = {
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens": "decoder.token_embedding",
}


def write_checkpoint(folder: Path) -> Any:
    """Write transformers' folder. Returns transformers' model."""
    import torch
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=MELS, d_model=HIDDEN, encoder_layers=LAYERS, decoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=FFN, decoder_ffn_dim=FFN,
        max_source_positions=ROWS, max_target_positions=CONTEXT, pad_token_id=END, bos_token_id=END, eos_token_id=END,
        decoder_start_token_id=START, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed_positions" not in name:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=START, eos_token_id=END, bos_token_id=END, pad_token_id=END, is_multilingual=True,
        lang_to_id={"<|en|>": FIRST_LANGUAGE}, task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
        no_timestamps_token_id=NO_TIMESTAMPS, prev_sot_token_id=PREVIOUS, max_length=CONTEXT,
    )  # fmt: skip
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def words() -> list[str]:
    return [f"w{index}" for index in range(TEXT)]


def write_tokenizer(folder: Path) -> None:
    """A word for each token; the benchmark gives token ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", *(f"<|l{index}|>" for index in range(1, LANGUAGES))]
    names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"]
    names += ["<|notimestamps|>", *(f"<|{index * 0.02:.2f}|>" for index in range(TIMESTAMPS))]
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_ggml(model: Any, file: Path, kind: str) -> None:
    """Write whisper.cpp's file, with matrices of ``kind``: "f32", "f16" or "q8_0"; its own tool leaves convolutions in
    float16.
    """
    _, type_of_file = TYPES[kind]
    with file.open("wb") as out:
        sizes = [HIDDEN, HEADS, LAYERS]
        out.write(struct.pack("<I11i", 0x67676D6C, VOCABULARY, ROWS, *sizes, CONTEXT, *sizes, MELS, type_of_file))
        filters = mel_filters(MELS).astype(np.float32)
        out.write(struct.pack("<2i", *filters.shape) + filters.tobytes())
        out.write(struct.pack("<i", TEXT))
        for word in words():
            out.write(struct.pack("<I", len(word)) + word.encode())
        for name, parameter in model.state_dict().items():
            if name != "proj_out.weight":
                write_tensor(out, ggml_name(name), parameter.numpy(), kind)


def write_tensor(out: BinaryIO, name: str, values: npt.NDArray[np.float32], kind: str) -> None:
    stored: npt.NDArray[Any] = values.reshape(-1, 1) if "conv" in name and values.ndim == 1 else values
    shape, own = stored.shape, "f32"
    if values.ndim > 1 and "positional" not in name:
        own = "f16" if kind == "q8_0" and values.ndim == 3 else kind
        stored = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float16), "q8_0": q8_0}[own](stored)
    out.write(struct.pack(f"<3i{len(shape)}i", len(shape), len(name), TYPES[own][0], *reversed(shape)))
    out.write(name.encode() + np.ascontiguousarray(stored).tobytes())


def ggml_name(name: str) -> str:
    name = name.removeprefix("model.")
    for theirs, ours in OUTER_NAMES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    if ".layers." not in name:
        return name
    part, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"{part}.blocks.{layer}.{NAMES[module]}.{kind}"
