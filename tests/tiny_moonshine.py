"""Tiny Moonshines with random weights, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray

VOCABULARY, START, END, CONTEXT = 97, 1, 2, 40
# Without `do_normalize`, transformers would normalize the loudness.
PREPROCESSOR = {
    "feature_extractor_type": "Wav2Vec2FeatureExtractor",
    "feature_size": 1,
    "sampling_rate": 16000,
    "do_normalize": False,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}


def make_moonshine(path: Path, *, seed: int = 0, scale: float = 0.1, **changes: Any) -> Any:
    """Write a checkpoint of heads of 12 elements, of which 10 rotate. Returns transformers' model."""
    import torch
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration

    torch.manual_seed(seed)
    config = MoonshineConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 60,
            "intermediate_size": 84,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 5,
            "decoder_num_attention_heads": 5,
            "pad_head_dim_to_multiple_of": 8,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.9},
            "pad_token_id": 0,
            "bos_token_id": START,
            "eos_token_id": END,
            "decoder_start_token_id": START,
            **changes,
        }
    )
    config._attn_implementation = "eager"
    model = MoonshineForConditionalGeneration(config).eval()
    randomize(model, scale)
    model.save_pretrained(path)
    write_moonshine_tokenizer(path)
    (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return model


def make_moonshine_streaming(path: Path, *, seed: int = 0, scale: float = 0.1, **changes: Any) -> Any:
    """Write a checkpoint whose encoder has other sizes than its decoder, and windows that see ahead in some layers.
    Returns transformers' model.
    """
    import torch
    from transformers import MoonshineStreamingConfig, MoonshineStreamingForConditionalGeneration

    torch.manual_seed(seed)
    encoder = {
        "hidden_size": 36,
        "intermediate_size": 52,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "sliding_windows": [[5, 3], [6, 0], [2, 4]],
        "head_dim": 12,
    }
    config = MoonshineStreamingConfig(
        **{
            "encoder_config": encoder,
            "vocab_size": VOCABULARY,
            "hidden_size": 60,
            "intermediate_size": 84,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "head_dim": 10,
            "max_position_embeddings": 1600,
            "pad_token_id": 0,
            "bos_token_id": START,
            "eos_token_id": END,
            "decoder_start_token_id": START,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.8},
            **changes,
        }
    )
    config._attn_implementation = "eager"
    config.encoder_config._attn_implementation = "eager"
    model = MoonshineStreamingForConditionalGeneration(config).eval()
    randomize(model, scale)
    model.save_pretrained(path)
    write_moonshine_tokenizer(path)
    (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return model


def streamed_rows_and_logits(model: Any, samples: FloatArray, tokens: list[int]) -> tuple[FloatArray, FloatArray]:
    """As `rows_and_logits`, with the rows to which the decoder attends. The windows apply only with a mask, and the
    decoder adds positions to the encoder's rows in place.
    """
    import torch

    padded = np.pad(samples, (0, -len(samples) % 80))
    with torch.no_grad():
        values = torch.tensor(padded)[None]
        mask = torch.ones(values.shape, dtype=torch.long)
        rows = model.model.encoder(values, attention_mask=mask).last_hidden_state
        decoder = model.model.decoder
        rows = decoder.proj(rows + decoder.pos_emb(torch.arange(rows.shape[1])))[0].numpy()
        ids = torch.tensor(tokens)[None]
        logits = model(input_values=values, attention_mask=mask, decoder_input_ids=ids).logits[0].numpy()
    return rows, logits


def randomize(model: Any, scale: float) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, scale)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def write_moonshine_tokenizer(path: Path) -> None:
    """A tokenizer of characters as Llama's, whose words begin with a mark."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    names = ["<unk>", "<s>", "</s>", "▁"]
    letters = [chr(code) for code in range(33, 33 + VOCABULARY - len(names))]
    vocabulary = {token: index for index, token in enumerate((*names, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names[:3]])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def rows_and_logits(model: Any, samples: FloatArray, tokens: list[int]) -> tuple[FloatArray, FloatArray]:
    """The rows of transformers' encoder, and the logits of its decoder, for one clip."""
    import torch

    with torch.no_grad():
        values = torch.tensor(samples)[None]
        rows = model.model.encoder(values).last_hidden_state[0].numpy()
        logits = model(input_values=values, decoder_input_ids=torch.tensor(tokens)[None]).logits[0].numpy()
    return rows, logits
