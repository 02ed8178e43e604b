"""Tiny checkpoints that transformers writes: random weights, with sizes that do not fit any tile.

Head size 24, 3 KV heads, hidden size 72, feed-forward size 70, vocabulary 509: none is a power of two, and some are not
multiples of 4 or 32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCAB_SIZE = 509
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 72,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}

# Checkpoint name -> (transformers' family, its configuration besides the sizes).
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "Llama",
        {"head_dim": 24, "tie_word_embeddings": False, "attention_bias": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama_plain": ("Llama", {"tie_word_embeddings": False, "mlp_bias": True}),
    # Windows are shorter than a page, so that a prompt of a few pages exceeds three of them.
    "mistral": ("Mistral", {"head_dim": 24, "tie_word_embeddings": False, "sliding_window": 11}),
    # 18 of the 24 elements of a head are rotated.
    "phi3": (
        "Phi3",
        {"tie_word_embeddings": False, "sliding_window": 23, "rope_parameters": PARTIAL_ROPE, "hidden_size": 144},
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
}
# The same with sizes divisible into groups of 128 weights, for frameworks whose kernels do not pad: "llama_wide", ...
WIDE_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
WIDE_CHECKPOINTS = {
    f"{name}_wide": (family, {**config, **WIDE_SIZES}) for name, (family, config) in CHECKPOINTS.items()
}
# The checkpoints without windows and fused tensors. `windowed_models.py` has those for frameworks that need other
# sizes.
PLAIN_CHECKPOINTS = ("llama", "llama_plain", "qwen2", "qwen3")
# One of each model_type.
ARCHITECTURES = ("llama", "mistral", "phi3", "qwen2", "qwen3")


def make_checkpoint(name: str, folder: Path, **sizes: int) -> None:
    """Write a checkpoint of CHECKPOINTS or WIDE_CHECKPOINTS into a folder. ``sizes`` replace those of the
    configuration.
    """
    import torch
    import transformers

    family, config = (CHECKPOINTS | WIDE_CHECKPOINTS)[name]
    torch.manual_seed(len(name))
    model = getattr(transformers, f"{family}ForCausalLM")(
        getattr(transformers, f"{family}Config")(**{**SIZES, **config, **sizes})
    ).float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            # Vectors are norms, which start at one, and biases, which start at zero. Matrices preserve the magnitude of
            # their inputs.
            parameter.copy_(parameter + noise * 0.1 if parameter.ndim == 1 else noise / parameter.shape[1] ** 0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)


def make_embedding_checkpoint(folder: Path, **sizes: int) -> None:
    """Write an embedding Qwen3 as sentence-transformers does: without head and prefix, last-token pooling, "</s>" after
    texts. ``sizes`` replace keys of the configuration.
    """
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.Qwen3Config(**{**SIZES, "head_dim": 24, "tie_word_embeddings": True, **sizes})
    model = transformers.Qwen3Model(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + noise * 0.1 if parameter.ndim == 1 else noise / parameter.shape[1] ** 0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder, ends_texts=True)
    write_modules(folder, width=config.hidden_size)


def write_modules(
    folder: Path, pooling: str = "lasttoken", behind: tuple[str, ...] = ("Normalize",), width: int = 72
) -> None:
    """Write the files that sentence-transformers adds to a checkpoint."""
    names = ("Transformer", "Pooling", *behind)
    paths = [f"{index}_{name}" if index else "" for index, name in enumerate(names)]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    flags = {
        f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": width, **flags, "include_prompt": True})
    )


def write_tokenizer(folder: Path, *, ends_texts: bool = False) -> None:
    """Write a byte-level tokenizer: ids 0 to 255 are bytes, followed by two special tokens. The second may be added
    after every text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if ends_texts:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 257)])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template})
    )
