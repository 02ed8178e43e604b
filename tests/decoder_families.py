"""Tiny checkpoints of the decoder families whose layers differ from Llama's, and of every scaling of the rotation.

Sizes are those of `tiny_models.py`. Windows are shorter than a third of TOKENS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_models import SIZES, VOCAB_SIZE, write_tokenizer

TOKENS = [(7 * i * i + 3 * i + 5) % VOCAB_SIZE for i in range(41)]
WINDOWS = {"sliding_window": 11}
MIXED = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1 + 0.1 * pair for pair in range(9)],
    "long_factor": [1 + pair for pair in range(9)],
    "partial_rotary_factor": 0.75,
}

# Name -> (transformers' family, its configuration besides the sizes).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    # Layers without a window do not rotate.
    "cohere2": (
        "Cohere2",
        {
            "hidden_size": 96,
            "num_attention_heads": 6,
            "attention_bias": True,
            "layer_types": MIXED,
            "num_hidden_layers": 4,
            "logit_scale": 0.7,
            **WINDOWS,
        },
    ),
    # Sizes that are divisible into groups of 32 weights.
    "ernie4_5": (
        "Ernie4_5",
        {"hidden_size": 128, "intermediate_size": 64, "head_dim": 32, "use_bias": True, "tie_word_embeddings": True},
    ),
    "exaone4": ("Exaone4", {"head_dim": 24, "tie_word_embeddings": True, "num_hidden_layers": 4, **WINDOWS}),
    "gemma2": ("Gemma2", {"head_dim": 16, "num_hidden_layers": 4, "query_pre_attn_scalar": 20, **WINDOWS}),
    "gemma3_text": (
        "Gemma3",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
            **WINDOWS,
        },
    ),
    "gemma4_text": (
        "Gemma4",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_hidden_layers": 6,
            "layer_types": [*["sliding_attention", "full_attention"] * 3],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 10,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "final_logit_softcapping": 3.0,
            **WINDOWS,
        },
    ),
    # Experts beside the feed-forward; the values of full layers are their keys.
    "gemma4_experts": (
        "Gemma4",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 3,
            "moe_intermediate_size": 38,
            **WINDOWS,
        },
    ),
    # 12 of 24 elements are rotated, as pairs (2i, 2i + 1).
    "glm4": ("Glm4", {"head_dim": 24, "pad_token_id": 0, "eos_token_id": 2}),
    "granite": (
        "Granite",
        {
            "head_dim": 24,
            "tie_word_embeddings": True,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
        },
    ),
    # Sinks on all layers; the last layer does not rotate.
    "granite_swa": (
        "GraniteSWA",
        {
            "head_dim": 24,
            "num_hidden_layers": 4,
            "attention_multiplier": 0.3,
            "logits_scaling": 2.0,
            "layer_types": MIXED,
            "layer_rope_theta": [300.0, 300.0, 5000.0, 0],
            **WINDOWS,
        },
    ),
    "hunyuan_v1_dense": (
        "HunYuanDenseV1",
        {
            "head_dim": 24,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0},
        },
    ),
    "ministral": ("Ministral", {"head_dim": 24, "layer_types": MIXED[:3], **WINDOWS}),
    # LayerNorms with factors without 1, and the square of ReLU without a gate.
    "nemotron": ("Nemotron", {"head_dim": 24, "num_hidden_layers": 2}),
    "olmo2": ("Olmo2", {"head_dim": 24}),
    "olmo3": (
        "Olmo3",
        {
            "head_dim": 24,
            "num_hidden_layers": 4,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 8.0,
                    "rope_theta": 10000.0,
                    "original_max_position_embeddings": 32,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            **WINDOWS,
        },
    ),
    # Attention and an ungated feed-forward side by side, with biases everywhere.
    "phi": ("Phi", {"hidden_size": 96, "num_hidden_layers": 2}),
    # Windows and sinks; the rotation is YaRN's.
    "gpt_oss": ("GptOss", {"head_dim": 24, "num_local_experts": 5, "num_experts_per_tok": 3, **WINDOWS}),
    "granitemoe": (
        "GraniteMoe",
        {"num_local_experts": 5, "num_experts_per_tok": 3, "residual_multiplier": 0.22, "attention_multiplier": 0.3},
    ),
    "olmoe": ("Olmoe", {"num_experts": 5, "num_experts_per_tok": 3, "clip_qkv": 0.7}),
    # The second layer is dense.
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "head_dim": 24,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 38,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "smollm3": ("SmolLM3", {"head_dim": 24, "no_rope_layers": [1, 0, 1]}),
    # 6 of 24 elements are rotated.
    "stablelm": ("StableLm", {"hidden_size": 144, "use_qkv_bias": True}),
    "ministral3": ("Ministral3", {"head_dim": 24, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1}}),
    "llama_yarn": ("Llama", {"head_dim": 24, "hidden_act": "gelu_pytorch_tanh", "rope_parameters": YARN}),
    "llama_yarn_mscale": (
        "Llama",
        {
            "head_dim": 24,
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 8.0, "truncate": False},
        },
    ),
    # The rotation for 41 positions, of which 32 are within the trained length.
    "llama_dynamic": (
        "Llama",
        {
            "head_dim": 24,
            "max_position_embeddings": 32,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
        },
    ),
    "phi3_short": ("Phi3", {"hidden_size": 144, "original_max_position_embeddings": 64, "rope_parameters": LONG}),
    "phi3_long": ("Phi3", {"hidden_size": 144, "original_max_position_embeddings": 32, "rope_parameters": LONG}),
}
# Families whose blocks are those of others.
PLAIN_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("Gemma", {"head_dim": 16}),
    # The values of full layers are their keys.
    "gemma4_unified_text": (
        "Gemma4Unified",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            **WINDOWS,
        },
    ),
    # Positions of a table, and transposed matrices.
    "gpt2": ("GPT2", {"num_hidden_layers": 2, "n_inner": 70, "num_key_value_heads": 6}),
    "apertus": ("Apertus", {"num_hidden_layers": 2}),
    # 6 of 24 elements are rotated.
    "gpt_neox": ("GPTNeoX", {"hidden_size": 144, "num_hidden_layers": 2, "num_key_value_heads": 6}),
    "helium": ("Helium", {"hidden_size": 144, "head_dim": 24}),
    "mimo": ("Qwen2", {"tie_word_embeddings": False}),
    "minicpm": (
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 12**-0.5,
            "residual_multiplier": 1.4 / 3**0.5,
            "logits_scaling": 8.0,
        },
    ),
    "olmo": ("Olmo", {"clip_qkv": 0.7}),
    "seed_oss": ("SeedOss", {"head_dim": 24}),
    "starcoder2": ("Starcoder2", WINDOWS),
}
# Families that transformers has under another name, with other keys in config.json.
WRITTEN: dict[str, dict[str, Any]] = {
    "mimo": {"num_nextn_predict_layers": 1},
    "minicpm": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 9},
}
# Sizes of states that do not fill a tile.
MAMBA = {"mamba_n_heads": 6, "mamba_d_state": 10, "mamba_n_groups": 2, "mamba_chunk_size": 8}
GRANITE_4: dict[str, Any] = {
    **MAMBA,
    "mamba_expand": 1,
    "mamba_n_groups": 1,
    "num_local_experts": 0,
    "shared_intermediate_size": 70,
    "layer_types": ["mamba", "attention", "mamba"],
    "tie_word_embeddings": True,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
# As FAMILIES, those with a state for each sequence, which only some targets compute.
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon_h1": (
        "FalconH1",
        {
            **MAMBA,
            "mamba_d_ssm": 66,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "embedding_multiplier": 5.6,
            "lm_head_multiplier": 0.2,
            "mlp_multipliers": [0.88, 0.3],
            "key_multiplier": 0.3,
            "attention_in_multiplier": 1.1,
            "attention_out_multiplier": 0.9,
            "ssm_multipliers": [0.35, 0.25, 0.4, 0.5, 0.31],
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.24,
        },
    ),
    "granitemoehybrid": ("GraniteMoeHybrid", GRANITE_4),
    # Experts beside the feed-forward.
    "granitemoehybrid_experts": (
        "GraniteMoeHybrid",
        {**GRANITE_4, "num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 38},
    ),
    "lfm2": (
        "Lfm2",
        {"layer_types": ["conv", "full_attention", "conv"], "conv_bias": True, "block_multiple_of": 14},
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 38,
            "routed_scaling_factor": 1.5,
        },
    ),
    # transformers 5.24 rotates whole heads if the file calls the rotation "default", as published ones do; the weights
    # were trained with that of "proportional".
    "lfm3": (
        "Lfm3",
        {
            "head_dim": 24,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "sliding_attention"],
            **WINDOWS,
        },
    ),
    "mamba2": (
        "Mamba2",
        {
            "num_heads": 6,
            "head_dim": 12,
            "state_size": 10,
            "n_groups": 2,
            "expand": 1,
            "chunk_size": 8,
            "num_key_value_heads": None,
        },
    ),
    # 6 of 24 elements are rotated.
    "qwen3_5_text": (
        "Qwen3_5",
        {
            "head_dim": 24,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 18,
            "linear_value_head_dim": 14,
        },
    ),
}
# Frameworks' graphs have no form of their ops.
EXPERT_KEYS = {"num_experts_per_tok", "top_k_experts"}
WITH_EXPERTS = tuple(name for name, (_, config) in FAMILIES.items() if EXPERT_KEYS & config.keys())
# Families whose configuration has another name.
CONFIGS = {
    "Gemma3": "Gemma3TextConfig", "Gemma4": "Gemma4TextConfig", "Gemma4Unified": "Gemma4UnifiedTextConfig",
    "Qwen3_5": "Qwen3_5TextConfig",
}  # fmt: skip


def make_family(name: str, folder: Path, **sizes: Any) -> npt.NDArray[np.float32]:
    """Write a checkpoint of FAMILIES or HYBRIDS into a folder. Returns transformers' logits (tokens, V) of TOKENS.
    ``sizes`` replace keys of the configuration.
    """
    logits = write(new_family(name, **sizes), folder)
    if name in WRITTEN:
        config = json.loads((folder / "config.json").read_text())
        config = {key: value for key, value in config.items() if not key.endswith(("_multiplier", "_scaling"))}
        written = {**config, "model_type": name, **WRITTEN[name]}
        (folder / "config.json").write_text(json.dumps(written))
    return logits


def new_family(name: str, **sizes: Any) -> Any:
    """A model of FAMILIES or HYBRIDS as transformers initializes it; ``sizes`` replace keys of the configuration."""
    import torch
    import transformers

    family, config = {**FAMILIES, **PLAIN_FAMILIES, **HYBRIDS}[name]
    torch.manual_seed(len(name))
    settings = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(**{**SIZES, **config, **sizes})
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    model = getattr(transformers, f"{family}{head}")(settings).float()
    # Its product of groups needs sizes that are multiples of 4.
    model.set_experts_implementation("eager")
    return model


def write(model: Any, folder: Path) -> npt.NDArray[np.float32]:
    randomize(model)
    return save(model, folder)


def randomize(model: Any) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            # Large queries make rows attend to few keys, so that one key too many or too few changes the result.
            scale = parameter.shape[-1] ** 0.5
            parameter.copy_(parameter + noise * 0.1 if parameter.ndim == 1 else 1.5 * noise / scale)
        for name, buffer in model.named_buffers():
            if name.endswith("expert_bias"):
                buffer.copy_(0.3 * torch.randn_like(buffer))
            if name.endswith("layer_scalar"):
                buffer.fill_(0.4 + torch.rand(1).item())


def save(model: Any, folder: Path) -> npt.NDArray[np.float32]:
    import torch

    model.eval()
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(input_ids=torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return logits
