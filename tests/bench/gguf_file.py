"""A random checkpoint of `checkpoints.py` as a GGUF file of 4-bit weights, for llama.cpp to run the same model. Needs the package gguf."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from checkpoints import Shapes

from nearfar.compiler.formats import load

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


def write_gguf(shapes: Shapes, checkpoint: Path, path: Path) -> Path:
    """Matrices as Q4_0, the embedding too, vectors as float32; no tokenizer. Only of Qwen3 models. Returns the path."""
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
    writer.add_tokenizer_model("none")
    for name, tensor in load(str(checkpoint)).tensors.items():
        values = np.asarray(tensor.rows(0, tensor.shape[0]), np.float32)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_0)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}" if layer else NAMES[name]
