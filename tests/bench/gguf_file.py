"""Writes a bundle's weights as a GGUF file, so that llama.cpp runs the same model. Needs the package gguf.

`check_gguf.py` compares the logits of both for every family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
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
NORMS_BEHIND = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
FUSED = {"self_attn.qkv_proj.weight": "attn_qkv.weight", "mlp.gate_up_proj.weight": "ffn_up.weight"}


@dataclass(frozen=True, slots=True)
class Family:
    """A model_type in llama.cpp's terms: its architecture, and names besides NAMES.

    With ``interleaved``, llama.cpp rotates neighbouring elements of q and k, so their rows are stored in that order.
    """

    architecture: str
    names: Mapping[str, str] = field(default_factory=dict)
    interleaved: bool = False


FAMILIES = {
    "gemma3_text": Family("gemma3", NORMS_BEHIND),
    "llama": Family("llama", interleaved=True),
    "phi3": Family("phi3", FUSED),
    "qwen3": Family("qwen3"),
    "smollm3": Family("smollm3", interleaved=True),
}


def write_gguf(bundle: Bundle, path: Path, add_tokenizer: Callable[[Any], None] | None = None) -> Path:
    """Write the matrices of a q4f16 bundle as Q4_0 with the same codes and scales, those of an f32 bundle and vectors
    as float32. Only for FAMILIES.

    ``add_tokenizer`` adds a tokenizer to the file. Returns the path.
    """
    spec = bundle.manifest.spec
    family = FAMILIES.get(spec.model_type)
    assert family is not None, f"{spec.model_type}: is none of {', '.join(FAMILIES)}"
    quantized = bundle.manifest.quantization == "q4f16"
    assert quantized or bundle.manifest.quantization == "f32", bundle.manifest.quantization
    writer = gguf.GGUFWriter(str(path), family.architecture)
    add_sizes(writer, spec)
    add_rotation(writer, spec)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0 if quantized else gguf.LlamaFileType.ALL_F32)
    if add_tokenizer is None:
        writer.add_tokenizer_model("none")
    else:
        add_tokenizer(writer)
    for name, entry in bundle.manifest.weights.items():
        first = 0
        for part, rows in parts(name, spec, family):
            stop = entry.shape[0] if rows is None else first + rows
            target = gguf_name(part, family)
            is_quantized = entry.quantization is not None and quantized
            if is_quantized:
                stored = q4_0(bundle.plane(name, "q", first, stop), bundle.plane(name, "s", first, stop))
            else:
                stored = bundle.weight(name, first, stop)
            if family.interleaved and re.search(r"attn_[qk]\.weight", target):
                stored = interleaved(stored, spec.head_dim)
            dtype = gguf.GGMLQuantizationType.Q4_0 if is_quantized else None
            writer.add_tensor(target, np.ascontiguousarray(stored), raw_dtype=dtype)
            first = stop
        assert first == entry.shape[0], f"{name}: its parts have {first} of {entry.shape[0]} rows"
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_checkpoint_gguf(checkpoint: Checkpoint, path: Path) -> Path:
    """Write a checkpoint with float weights as float32, with a vocabulary that only numbers its tokens. Only for
    FAMILIES without fused tensors.

    Returns the path.
    """
    spec = checkpoint.spec
    family = FAMILIES[spec.model_type]
    writer = gguf.GGUFWriter(str(path), family.architecture)
    add_sizes(writer, spec)
    add_rotation(writer, spec)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_byte_tokenizer(writer, spec.vocab_size)
    for name, tensor in checkpoint.tensors.items():
        target = gguf_name(name, family)
        rows = tensor.rows(0, tensor.shape[0])
        if family.interleaved and re.search(r"attn_[qk]\.weight", target):
            rows = interleaved(rows, spec.head_dim)
        writer.add_tensor(target, np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_byte_tokenizer(writer: Any, vocab_size: int) -> None:
    """The single bytes as tokens, one merge, and unused tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = [*sorted(ByteLevel.alphabet()), "ab"]
    unused = range(len(letters), vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, *(f"[PAD{number}]" for number in unused)])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(letters) + [gguf.TokenType.UNUSED] * len(unused))
    writer.add_token_merges(["a b"])


def add_sizes(writer: Any, spec: ModelSpec) -> None:
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.max_position_embeddings)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    writer.add_vocab_size(spec.vocab_size)
    windows = {window for window in spec.windows if window is not None}
    assert len(windows) <= 1, windows
    if spec.model_type == "gemma3_text":
        # llama.cpp itself determines which layers have a window, and divides scores by sqrt(head_dim).
        pattern = [None if (layer + 1) % 6 == 0 else next(iter(windows)) for layer in range(spec.num_layers)]
        assert list(spec.windows) == pattern, spec.windows
        assert (spec.attention_scale or spec.head_dim**-0.5) == spec.head_dim**-0.5, spec.attention_scale
    # The value 0 marks Phi-4 and not Phi-3, whose windows llama.cpp ignores.
    if spec.model_type == "phi3" or windows:
        writer.add_sliding_window(next(iter(windows), 0))


def add_rotation(writer: Any, spec: ModelSpec) -> None:
    """Add the rotation of q and k. Only SmolLM3 may have layers without a rotation: every fourth one."""
    rope = spec.rope
    writer.add_rope_freq_base(rope.theta)
    writer.add_rope_dimension_count(rope.rotary_dim or spec.head_dim)
    if spec.window_rope is not None:
        assert spec.window_rope == RopeSpec(spec.window_rope.theta), spec.window_rope
        writer.add_rope_freq_base_swa(spec.window_rope.theta)
    unrotated = range(3, spec.num_layers, 4) if spec.model_type == "smollm3" else ()
    assert spec.unrotated == tuple(unrotated), spec.unrotated
    if rope.scaling == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_position_embeddings)
        writer.add_rope_scaling_attn_factors(rope.attention_factor)
        writer.add_tensor("rope_factors_long.weight", np.array(rope.long_factors, np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope.short_factors, np.float32))
    else:
        assert rope.scaling == "none", rope.scaling


def parts(name: str, spec: ModelSpec, family: Family) -> list[tuple[str, int | None]]:
    """The parts of a weight that a pass has stacked, by their names in a checkpoint, and the rows of each; None means
    all rows.
    """
    width, kv_width = spec.head_dim * spec.num_heads, spec.head_dim * spec.num_kv_heads
    stacked = {
        "qkv_proj": (("q_proj", width), ("k_proj", kv_width), ("v_proj", kv_width)),
        "qk_norm": (("q_norm", spec.head_dim), ("k_norm", spec.head_dim)),
        "gate_up_proj": (("gate_proj", spec.intermediate_size), ("up_proj", spec.intermediate_size)),
    }
    for whole, each in stacked.items():
        if whole in name and not any(whole in kept for kept in family.names):
            return [(name.replace(whole, part), rows) for part, rows in each]
    return [(name, None)]


def interleaved(rows: Array, head_dim: int) -> Array:
    """Rows of heads whose elements i and i + D/2 are rotated together, in the order 0, D/2, 1, D/2 + 1, .."""
    heads = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def q4_0(codes: Array, scales: Array) -> Array:
    """Rows in Q4_0: for each group its float16 scale, then 16 bytes that hold elements i and i + 16."""
    packed = codes.view(np.uint8).reshape(len(codes), -1, 4)
    groups = np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(len(codes), -1, 32)
    halves = groups[..., :16] | groups[..., 16:] << 4
    blocks = np.concatenate([scales[..., None].view(np.uint8), halves], axis=-1)
    return blocks.reshape(len(codes), -1)


def gguf_name(name: str, family: Family) -> str:
    names = {**NAMES, **family.names}
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    return f"blk.{layer[1]}.{names[layer[2]]}" if layer else names[name]
