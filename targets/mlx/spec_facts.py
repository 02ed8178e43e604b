"""Facts of a ModelSpec that decide whether a model of mlx-lm computes it, or that its config.json has."""

from __future__ import annotations

import math

from nearfar.compiler.ir.rope import rotary_dim
from nearfar.compiler.ir.spec import ModelSpec


def has_bias(spec: ModelSpec) -> bool:
    return spec.qkv_bias or spec.output_bias or spec.mlp_bias


def same_biases(spec: ModelSpec) -> bool:
    return spec.qkv_bias == spec.output_bias


def rotates_whole_heads(spec: ModelSpec) -> bool:
    return rotary_dim(spec.rope, spec.head_dim) == spec.head_dim


def is_plain(spec: ModelSpec) -> bool:
    """Whether there are no biases and no norms of heads, and heads are rotated whole."""
    return not has_bias(spec) and not spec.qk_norm and rotates_whole_heads(spec)


def rotates_by_factor(spec: ModelSpec) -> bool:
    """Whether mlx-lm, which computes the rotated width from the factor, rotates as much."""
    return int(spec.head_dim * partial_rotary_factor(spec)) == rotary_dim(spec.rope, spec.head_dim)


def partial_rotary_factor(spec: ModelSpec) -> float:
    return rotary_dim(spec.rope, spec.head_dim) / spec.head_dim


def splits_hidden_size(spec: ModelSpec) -> bool:
    """Whether the head size is the default of a model without ``head_dim``."""
    return spec.head_dim * spec.num_heads == spec.hidden_size


def layer_types(spec: ModelSpec) -> list[str]:
    kinds = ("full_attention", "sliding_attention")
    return [kinds[spec.window(layer) is not None] for layer in range(spec.num_layers)]


def window_sizes(spec: ModelSpec) -> set[int]:
    return {window for window in spec.windows if window is not None}


def plain_windows_beside_full_layers(spec: ModelSpec) -> bool:
    """Whether layers of both kinds exist, those with a window of one size."""
    return len(window_sizes(spec)) == 1 and None in spec.windows


def full_layer_interval(spec: ModelSpec) -> int:
    """Every nth layer has no window; the number of layers plus one if all have."""
    return next((layer + 1 for layer in range(spec.num_layers) if spec.window(layer) is None), spec.num_layers + 1)


def has_regular_full_layers(spec: ModelSpec) -> bool:
    every = full_layer_interval(spec)
    return all((spec.window(layer) is None) == ((layer + 1) % every == 0) for layer in range(spec.num_layers))


def query_scalar(spec: ModelSpec) -> float:
    """The number whose inverse root scales the scores; transformers requires an integer."""
    return float((spec.attention_scale or spec.head_dim**-0.5) ** -2)


def has_whole_query_scalar(spec: ModelSpec) -> bool:
    return math.isclose(query_scalar(spec), round(query_scalar(spec)), rel_tol=1e-9)


def root_of_hidden_size(spec: ModelSpec) -> float:
    return math.sqrt(spec.hidden_size)
