"""Tiny checkpoints of four families. A format's own package quantizes their projections."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from decoder_families import CONFIGS, FAMILIES, TOKENS, write
from safetensors.torch import load_file, save_file
from tiny_models import SIZES

from nearfar.compiler.formats import load
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference

# Sizes divisible into groups of 128 weights.
WIDE = {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}  # fmt: skip
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": 32, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3": (
        "Gemma3",
        {
            **FAMILIES["gemma3_text"][1],
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "phi3": ("Phi3", {"tie_word_embeddings": False}),
}
# Returns the tensors of a module by their names in it, from the module's name and its float weight.
Quantize = Callable[[str, torch.Tensor], Mapping[str, torch.Tensor]]


def make_model(model: str, folder: Path) -> npt.NDArray[np.float32]:
    """Write a model of MODELS with random float weights. Returns transformers' logits of TOKENS."""
    import transformers

    family, settings = MODELS[model]
    torch.manual_seed(len(model))
    values = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(**{**SIZES, **settings, **WIDE})
    return write(getattr(transformers, f"{family}ForCausalLM")(values).float(), folder)


def make_quantized(model: str, folder: Path, quantize: Quantize, config: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Write a model of MODELS whose projections are quantized, with this section "quantization_config". Returns the
    logits before that.
    """
    logits = make_model(model, folder)
    quantize_projections(folder, quantize)
    write_quantization(folder, config)
    return logits


def quantize_projections(folder: Path, quantize: Quantize) -> None:
    """Replace the weights of a checkpoint's projections."""
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if name.endswith("_proj.weight"):
            stored |= {f"{module}.{kind}": part.contiguous() for kind, part in quantize(module, tensor).items()}
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def write_quantization(folder: Path, config: Mapping[str, Any]) -> None:
    values = json.loads((folder / "config.json").read_text())
    values["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(values))


def logits_of(folder: Path) -> npt.NDArray[np.float32]:
    """The logits (tokens, V) of TOKENS from the checkpoint as we read it."""
    reference = CheckpointReference(load(str(folder)), len(TOKENS))
    return reference.logits(next(iter(reference.hidden([TOKENS]))))


def transformers_logits(model: Any) -> npt.NDArray[np.float32]:
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(torch.tensor([TOKENS])).logits[0].float().numpy()
    return logits


def logits_with(weights: Mapping[str, torch.Tensor], folder: Path) -> npt.NDArray[np.float32]:
    """transformers' logits for the checkpoint in a folder, with these weights in place of the quantized ones."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    config.__dict__.pop("quantization_config", None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    stored = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in stored.items() if name in model.state_dict()}
    assert not model.load_state_dict({**kept, **weights}, strict=False).unexpected_keys
    return transformers_logits(model)
