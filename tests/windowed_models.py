"""Tiny Mistral and Phi-3 checkpoints: a sliding window on every layer, fused projections, heads that are rotated in part."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny_models import SIZES, VOCAB_SIZE, write_tokenizer

from nearfar.compiler import arch
from nearfar.compiler.arch import decoder
from nearfar.compiler.arch.decoder_config import read_decoder_config, read_sliding_window
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.spec import ModelSpec

WINDOW = 7
# More than three windows.
TOKENS = [(7 * i * i + 3 * i + 5) % VOCAB_SIZE for i in range(41)]
# Checkpoint -> transformers' family, and what its configuration says beside the sizes. Of Phi-3's heads of 32 and of 24, 16 and 18 elements
# are rotated.
WINDOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "phi3": ("Phi3", {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "rotated": 0.5}),
    "phi3_24": ("Phi3", {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "rotated": 0.75}),
}
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
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
        given["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": given.pop("rotated")}
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**given)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            # Queries are larger than elsewhere, so that rows attend to few keys and a key too many or too few shows.
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


def add_architectures(patch: pytest.MonkeyPatch) -> None:
    """Let `nearfar.compiler.arch` know the model_types of WINDOWED, if it does not."""
    given = {"mistral": (read_mistral, decoder.forward), "phi3": (read_phi3, forward_phi3)}
    for name, (read_config, forward) in given.items():
        if name not in arch.SUPPORTED:
            module = ModuleType(f"nearfar.compiler.arch.{name}")
            module.__dict__.update(read_config=read_config, forward=forward)
            patch.setitem(sys.modules, module.__name__, module)
            patch.setattr(arch, "SUPPORTED", (*arch.SUPPORTED, name))


def read_mistral(config: ConfigReader) -> ModelSpec:
    windows = read_sliding_window(config, default=4096)
    kv_heads, head_dim = config.integer("num_key_value_heads"), config.optional_integer("head_dim")
    return read_decoder_config(config, num_kv_heads=kv_heads, head_dim=head_dim, windows=windows)


def read_phi3(config: ConfigReader) -> ModelSpec:
    return read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=None,
        windows=read_sliding_window(config, default=None),
        rotates_parts=True,
        harmless=frozenset({"embd_pdrop", "resid_pdrop", "original_max_position_embeddings"}),
    )


def forward_phi3(spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False) -> Graph:
    return decoder.forward(spec, page_size, context, embeds=embeds, fused=FUSED)


def make_all(folder: Path) -> Mapping[str, Path]:
    return {name: make_windowed(name, folder / name) for name in WINDOWED}
