"""A tiny Parakeet CTC with random weights, as transformers saves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MELS = 24
# The tokens: pieces of words, of which those with the mark begin a word, and the blank.
PIECES = ["<unk>", *(f"▁{letter}" for letter in "abcdefgh"), *"abcdefghijklmnopqrstuvwxyz.,?!'"]
BLANK = len(PIECES)
VOCABULARY = BLANK + 1


def make_parakeet(path: Path, *, seed: int = 0, scale: float = 0.3, **changes: Any) -> Any:
    """Write the checkpoint. ``changes``: of the encoder's configuration. Returns transformers' model."""
    import torch
    from transformers import ParakeetCTCConfig, ParakeetForCTC

    torch.manual_seed(seed)
    encoder = {
        "hidden_size": 36,
        "intermediate_size": 52,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "conv_kernel_size": 5,
        "subsampling_conv_channels": 10,
        "num_mel_bins": MELS,
        "scale_input": True,
        **changes,
    }
    config = ParakeetCTCConfig(vocab_size=VOCABULARY, pad_token_id=BLANK, encoder_config=encoder)
    config._attn_implementation = "eager"
    config.encoder_config._attn_implementation = "eager"
    model = ParakeetForCTC(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, scale)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    model.save_pretrained(path)
    write_parakeet_files(path, encoder["num_mel_bins"])
    return model


def write_parakeet_files(path: Path, mels: int = MELS) -> None:
    """The tokenizer, as converted from SentencePiece, and preprocessor_config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.Unigram([(piece, -1.0 * index) for index, piece in enumerate(PIECES)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken("<pad>", special=True, normalized=False)])
    assert tokenizer.get_vocab_size() == VOCABULARY
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "ParakeetTokenizer", "pad_token": "<pad>", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    preprocessor = {
        "feature_extractor_type": "ParakeetFeatureExtractor",
        "feature_size": mels,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 512,
        "win_length": 400,
        "preemphasis": 0.97,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }
    (path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
