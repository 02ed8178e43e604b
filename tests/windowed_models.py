"""Tiny Mistral and Phi-3 checkpoints: a sliding window on every layer, fused projections, partially rotated heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_models import SIZES, VOCAB_SIZE, write_tokenizer

WINDOW = 7
# This exceeds three windows.
TOKENS = [(7 * i * i + 3 * i + 5) % VOCAB_SIZE for i in range(41)]
# Checkpoint -> (transformers' family, its configuration besides the sizes). 16 of the 32 elements and 18 of the 24
# elements of Phi-3's heads are rotated.
WINDOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "phi3": ("Phi3", {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "rotated": 0.5}),
    "phi3_24": ("Phi3", {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "rotated": 0.75}),
}


def make_windowed(name: str, folder: Path, **sizes: Any) -> Path:
    """Write a checkpoint of WINDOWED into a folder."""
    import torch
    import transformers

    family, config = WINDOWED[name]
    torch.manual_seed(len(name))
    common = {"intermediate_size": 96, "num_hidden_layers": 2, "tie_word_embeddings": False, "sliding_window": WINDOW}
    given = {**SIZES, **common, **config, **sizes}
    if "rotated" in given:
        given["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": given.pop("rotated"),
        }
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**given)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            # Large queries make rows attend to few keys, so that one key too many or too few changes the result.
            parameter.copy_(parameter + noise * 0.1 if parameter.ndim == 1 else 1.5 * noise / parameter.shape[1] ** 0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def logits_of_transformers(folder: Path) -> npt.NDArray[np.float32]:
    """The logits (tokens, V) of TOKENS."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(torch.tensor([TOKENS])).logits[0].numpy()
    return logits


def make_all(folder: Path) -> Mapping[str, Path]:
    return {name: make_windowed(name, folder / name) for name in WINDOWED}
