"""GGUF files of Gemma 4: layers with and without a window differ in their heads, and a layer may have experts beside
its feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...ir.spec import ModelSpec
from .attention import ROPE_FACTORS
from .container import Container
from .decoders import BEHIND
from .metadata import Metadata
from .mixtures import SOFTMAX, expert_config, experts_of
from .relations import Relation, halves_of_experts, same_names
from .tensors import read_vector

Config = dict[str, Any]

GEMMA4 = {
    **BEHIND,
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}
# Tensors outside of layers.
GEMMA4_TOP = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
# The divisor of a frequency that is 0.
UNROTATED = 1e30


def gemma4_sizes(metadata: Metadata, container: Container) -> Config:
    """Heads, feed-forwards and rotations by the kind of a layer."""
    windowed = [bool(each) for each in metadata.of_layers("attention.sliding_window_pattern")]
    head_dim, window_head_dim = metadata.size("attention.key_length"), metadata.size("attention.key_length_swa")
    for key, size in (("", head_dim), ("_swa", window_head_dim)):
        metadata.expect(f"attention.value_length{key}", size)
        metadata.expect(f"rope.dimension_count{key}", size)
    metadata.expect("rope.scaling.type", "none")
    return {
        **feed_forwards(metadata),
        **kv_heads_by_kind(metadata, container, windowed),
        "num_attention_heads": metadata.size("attention.head_count"),
        "head_dim": window_head_dim,
        "global_head_dim": head_dim,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windowed],
        "sliding_window": metadata.size("attention.sliding_window"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": rotated_pairs(metadata, container, head_dim) * 2 / head_dim,
                "rope_theta": metadata.positive("rope.freq_base", 10_000.0),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.positive("rope.freq_base_swa", 10_000.0),
            },
        },
    }


def feed_forwards(metadata: Metadata) -> Config:
    """Layers that share keys and values may have feed-forwards of twice the size."""
    sizes, shared = metadata.of_layers("feed_forward_length"), metadata.integer("attention.shared_kv_layers", 0)
    size, count = max(1, sizes[0]), len(sizes) - shared
    wide = shared > 0 and sizes[-1] == 2 * size
    if sizes != [size] * max(count, 0) + [2 * size if wide else size] * min(shared, len(sizes)):
        raise metadata.unsupported(f"'feed_forward_length' is {sizes}, expected {size}, or twice that in shared layers")
    return {"intermediate_size": size, "num_kv_shared_layers": shared, "use_double_wide_mlp": wide}


def kv_heads_by_kind(metadata: Metadata, container: Container, windowed: list[bool]) -> Config:
    """The values of full layers without values of their own are their keys, which may have fewer heads."""
    heads = metadata.of_layers("attention.head_count_kv", metadata.size("attention.head_count"))
    by_kind = {kind: {each for each, own in zip(heads, windowed, strict=True) if own is kind} for kind in windowed}
    if any(len(each) != 1 for each in by_kind.values()) or 0 in heads:
        raise metadata.corrupt(f"'attention.head_count_kv' is {heads}, expected one number for each kind of layer")
    (own,), (full,) = by_kind.get(True, by_kind[windowed[0]]), by_kind.get(False, by_kind[windowed[0]])
    first = next((layer for layer, own_window in enumerate(windowed) if not own_window), None)
    shares = first is not None and f"blk.{first}.attn_v.weight" not in container.tensors
    if full != own and not shares:
        raise metadata.unsupported(f"full layers have {full} heads of keys and values, and others {own}")
    return {"num_key_value_heads": own, "num_global_key_value_heads": full, "attention_k_eq_v": shares}


def rotated_pairs(metadata: Metadata, container: Container, head_dim: int) -> int:
    """Of full layers: pairs that do not rotate have a huge divisor."""
    stored = container.tensors.get(ROPE_FACTORS)
    if stored is None:
        return head_dim // 2
    factors = read_vector(stored)
    rotated = int((factors == 1).sum())
    if not np.array_equal(factors, proportional_factors(rotated, len(factors))) or len(factors) != head_dim // 2:
        raise metadata.unsupported(f"tensor {ROPE_FACTORS!r} has factors other than 1 and {UNROTATED}")
    return rotated


def proportional_factors(rotated: int, pairs: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.where(np.arange(pairs) < rotated, 1, UNROTATED).astype(np.float32)


def gemma4(metadata: Metadata, container: Container) -> Config:
    config: Config = {"hidden_size_per_layer_input": metadata.integer("embedding_length_per_layer_input", 0)}
    table = container.tensors.get("per_layer_token_embd.weight")
    if table is not None:
        config["vocab_size_per_layer_input"] = table.shape[0]
    if metadata.has("final_logit_softcapping"):
        config["final_logit_softcapping"] = metadata.positive("final_logit_softcapping")
    if metadata.integer("expert_count", 0):
        experts = expert_config(metadata, container, "num_experts", SOFTMAX)
        config |= {
            "enable_moe_block": True,
            "num_experts": experts["num_experts"],
            "top_k_experts": experts["num_experts_per_tok"],
            "moe_intermediate_size": metadata.size("expert_feed_forward_length"),
        }
    # Some converters write it for dense models, too.
    metadata.ignore("expert_feed_forward_length", "expert_used_count")
    return config


def gemma4_tensors(spec: ModelSpec) -> Iterator[Relation]:
    yield Relation(("layer_output_scale.weight",), ("layer_scalar",))
    if spec.experts is None:
        return
    experts = experts_of(spec)
    yield from same_names("ffn_gate_inp", "router.proj", ("weight",))
    yield Relation(("ffn_gate_inp.scale",), ("router.scale",))
    yield Relation(("ffn_down_exps.scale",), ("router.per_expert_scale",))
    # Either both stacks or one.
    yield halves_of_experts("experts.gate_up_proj", experts.number, experts.intermediate_size)
    yield Relation(("ffn_gate_up_exps.weight",), ("experts.gate_up_proj",), experts.number)
    yield Relation(("ffn_down_exps.weight",), ("experts.down_proj",), experts.number)
