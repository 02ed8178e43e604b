"""gpt-oss: experts with a limited gate, biases everywhere, a sink of every head, and windows on every second layer.
OpenAI 2025.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import decoder
from .decoder_config import read_decoder_config, read_layer_types, windows_of
from .expert_config import HARMLESS, read_experts
from .experts import ExpertNames
from .rope_config import rope_sections

__all__ = ["forward", "read_config"]

LAYOUT = decoder.DecoderLayout(
    experts=ExpertNames(
        router="mlp.router", gate_up=("mlp.experts.gate_up_proj",), down=("mlp.experts.down_proj",), interleaved=True
    )
)
# transformers' default.
DEFAULT_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

forward = partial(decoder.forward, layout=LAYOUT)


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "gpt_oss"."""
    kinds = read_layer_types(config, pattern=lambda layer: layer % 2 == 1)
    return read_gpt_oss(config, windows_of(config, kinds, config.optional_integer("sliding_window", absent=128)))


def read_gpt_oss(
    config: ConfigReader, windows: tuple[int | None, ...], *, harmless: frozenset[str] = frozenset()
) -> ModelSpec:
    """The spec of a model with these windows."""
    if not rope_sections(config):
        # Null is as absent, and 'rope_theta' alone is that of the default rotation.
        config = config.with_values({"rope_parameters": DEFAULT_ROPE})
    config = config.with_defaults({"head_dim": 64})
    bias = config.flag("attention_bias", default=True)
    experts = read_experts(
        config,
        "num_local_experts",
        "num_experts",
        router="softmax_chosen",
        biases=True,
        limit=config.number("swiglu_limit", default=7.0),
        slope=config.number("swiglu_alpha", default=1.702),
        shift=1.0,
    )
    spec = read_decoder_config(
        config,
        num_kv_heads=config.integer("num_key_value_heads"),
        qkv_bias=bias,
        output_bias=bias,
        windows=windows,
        default_theta=150_000.0,
        default_eps=1e-5,
        # The number of experts of a token and the original length again, under older names.
        harmless=HARMLESS | harmless | {"experts_per_token", "initial_context_length"},
    )
    return replace(spec, experts=experts, sinks=True)
