"""Writes a bundle's weights as a GGUF file, so that llama.cpp runs the same model. Needs the package gguf."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from checkpoints import Shapes

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.ops import Array

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def write_gguf(shapes: Shapes, bundle: Bundle, path: Path, add_tokenizer: Callable[[Any], None] | None = None) -> Path:
    """Write the matrices of a q4f16 bundle as Q4_0 with the same codes and scales, and vectors as float32. Only for
    Qwen3 models.

    ``add_tokenizer`` adds a tokenizer to the file. Returns the path.
    """
    config: dict[str, Any] = shapes.config
    assert config["model_type"] == "qwen3", shapes.name
    writer = gguf.GGUFWriter(str(path), "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    if add_tokenizer is None:
        writer.add_tokenizer_model("none")
    else:
        add_tokenizer(writer)
    for name, entry in bundle.manifest.weights.items():
        first = 0
        for part, rows in parts(name, config):
            stop = entry.shape[0] if rows is None else first + rows
            if entry.quantization is None:
                writer.add_tensor(gguf_name(part), bundle.weight(name, first, stop))
            else:
                packed = q4_0(bundle.plane(name, "q", first, stop), bundle.plane(name, "s", first, stop))
                writer.add_tensor(gguf_name(part), packed, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
            first = stop
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def parts(name: str, config: dict[str, Any]) -> list[tuple[str, int | None]]:
    """The parts of a fused weight by their names in a checkpoint, and the rows of each; None means all rows."""
    width = config["head_dim"] * config["num_attention_heads"]
    kv_width = config["head_dim"] * config["num_key_value_heads"]
    fused = {
        "qkv_proj": (("q_proj", width), ("k_proj", kv_width), ("v_proj", kv_width)),
        "qk_norm": (("q_norm", config["head_dim"]), ("k_norm", config["head_dim"])),
        "gate_up_proj": (("gate_proj", config["intermediate_size"]), ("up_proj", config["intermediate_size"])),
    }
    for whole, each in fused.items():
        if whole in name:
            return [(name.replace(whole, part), rows) for part, rows in each]
    return [(name, None)]


def q4_0(codes: Array, scales: Array) -> Array:
    """Rows in Q4_0: for each group its float16 scale, then 16 bytes that hold elements i and i + 16."""
    packed = codes.view(np.uint8).reshape(len(codes), -1, 4)
    groups = np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(len(codes), -1, 32)
    halves = groups[..., :16] | groups[..., 16:] << 4
    blocks = np.concatenate([scales[..., None].view(np.uint8), halves], axis=-1)
    return blocks.reshape(len(codes), -1)


def gguf_name(name: str) -> str:
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}" if layer else NAMES[name]
