"""The text model of Gemma 4: Gemma 3 with norms of values, larger heads in layers without a window, upper layers that
read the keys and values of lower ones, and values of each token for each layer. Gemma Team 2026.

Released configurations have the sizes of layers without a window in 'global_head_dim' and 'num_global_key_value_heads';
transformers writes them as 'per_layer_config'.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import even_head_dim, read_activation, read_decoder_config, read_layer_types, windows_of
from .gemma import LAYOUT, embedding_scale
from .rope_config import RopeSizes, read_layer_ropes

__all__ = ["forward", "read_config"]

# Published configurations omit keys whose values are transformers' defaults.
DEFAULTS = {
    "vocab_size": 262_144,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    },
}
GLOBAL_HEAD_DIM = 512

forward = partial(decoder.forward, layout=replace(LAYOUT, norm_offset=0.0))


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "gemma4_text"."""
    config = config.with_defaults(DEFAULTS)
    # Both need other mathematics: values that are keys before their norm, and experts.
    config.expect("attention_k_eq_v", False)
    config.expect("enable_moe_block", False)
    config.ignore("num_experts", "top_k_experts", "moe_intermediate_size", "num_global_key_value_heads", "hidden_act")
    # "vision" concerns only the tokens of images.
    config.expect("use_bidirectional_attention", None, "vision")
    kinds = read_layer_types(config, pattern=lambda layer: (layer + 1) % 6 == 0)
    # As in transformers, the last layer has no window.
    kinds = (*kinds[:-1], "full_attention")
    head_dims = read_head_dims(config, kinds)
    shared = read_shared_layers(config, kinds)
    wide = config.flag("use_double_wide_mlp", default=False)
    width = config.integer("intermediate_size")
    per_layer_width = config.integer("hidden_size_per_layer_input", minimum=0, default=256)
    vocab_size, own_size = config.integer("vocab_size"), config.integer("vocab_size_per_layer_input")
    if per_layer_width and own_size < vocab_size:
        raise config.unsupported(
            "vocab_size_per_layer_input",
            f"'vocab_size_per_layer_input' is {own_size}, less than 'vocab_size', {vocab_size}, which is not supported",
        )
    if config.section("rope_parameters") is None:
        raise config.contradiction("rope_parameters", "'rope_parameters' is null")
    context = config.integer("max_position_embeddings")
    numbers: dict[str, Any] = {
        "activation": read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        "embedding_scale": embedding_scale(config, config.integer("hidden_size")),
        "attention_scale": 1.0,
        "logit_softcap": config.optional_number("final_logit_softcapping"),
        "head_dims": head_dims,
        "intermediate_sizes": tuple(
            width * (2 if wide and layer >= len(kinds) - shared else 1) for layer in range(len(kinds))
        ),
        "num_kv_shared_layers": shared,
        "v_norm": True,
        "layer_factors": True,
        "per_layer_width": per_layer_width,
        "per_layer_scale": embedding_scale(config, per_layer_width) if per_layer_width else 1.0,
    }
    attention_bias = config.flag("attention_bias", default=False)
    head_dim = config.integer("head_dim")
    full_head_dim = next(size for kind, size in zip(kinds, head_dims, strict=True) if kind == "full_attention")
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        windows=windows_of(config, kinds, config.integer("sliding_window", default=512)),
        ropes=read_layer_ropes(
            config,
            RopeSizes(full_head_dim, context, default_theta=1_000_000.0),
            RopeSizes(head_dim, context, default_theta=10_000.0),
        ),
        tied=True,
        default_eps=1e-6,
    )
    return replace(spec, **numbers)


def read_head_dims(config: ConfigReader, kinds: tuple[str, ...]) -> tuple[int, ...]:
    """The head size of every layer, from 'per_layer_config', or without it 'head_dim' and 'global_head_dim'. Raises
    UnsupportedModel if layers of one kind differ, or for other keys of a layer.
    """
    head_dim = even_head_dim(config, config.integer("head_dim"))
    if config.section("per_layer_config") is None:
        full = config.optional_integer("global_head_dim") if config.has("global_head_dim") else GLOBAL_HEAD_DIM
        return tuple((full or head_dim) if kind == "full_attention" else head_dim for kind in kinds)
    config.ignore("global_head_dim")
    layers = config.section("per_layer_config")
    assert layers is not None
    sizes: list[int] = []
    for layer in range(len(kinds)):
        section = layers.section(str(layer))
        sizes.append(
            head_dim if section is None else even_head_dim(section, section.integer("head_dim", default=head_dim))
        )
        if section is not None:
            section.expect("num_key_value_heads", config.integer("num_key_value_heads"))
            section.finish()
    layers.finish()
    for kind in ("full_attention", "sliding_attention"):
        of_kind = {size for size, own in zip(sizes, kinds, strict=True) if own == kind}
        if len(of_kind) > 1 or (kind == "sliding_attention" and not of_kind <= {head_dim}):
            raise config.unsupported(
                "per_layer_config",
                f"'per_layer_config' gives {kind} layers head sizes of {sorted(of_kind)}; "
                "supported: one size for each type of layer, 'head_dim' for layers with a window",
            )
    return tuple(sizes)


def read_shared_layers(config: ConfigReader, kinds: tuple[str, ...]) -> int:
    """The number of upper layers that read the keys and values of lower ones."""
    shared = config.integer("num_kv_shared_layers", minimum=0, default=0)
    if shared and (shared >= len(kinds) or set(kinds) != set(kinds[: len(kinds) - shared])):
        raise config.contradiction(
            "num_kv_shared_layers",
            f"'num_kv_shared_layers' is {shared}: no layer before the last {shared} has keys and values for one of the "
            "types in 'layer_types'",
        )
    return shared
