"""Gemma 4 (E2B, E4B, 12B, 31B, 26B-A4B): Gemma 3 with a second embedding for each layer, larger heads on full layers,
values that are normalized and may be the keys, upper layers that share the keys and values of lower ones, and a scalar
for each layer. 26B-A4B has experts beside every feed-forward. Gemma Team 2026.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..formats.config import ConfigReader
from ..ir.graph import Graph, Parameter, Source
from ..ir.spec import ExpertSpec, ModelSpec, RopeSpec
from .decoder import DecoderLayout, Layer, embedding, finish, matrix, new_graph, place_features, take_sampled, vector
from .decoder_config import (
    even_head_dim,
    read_activation,
    read_decoder_config,
    read_layer_types,
    require_shared_heads,
    windows_of,
)
from .expert_config import read_experts
from .experts import ExpertNames, Mixture
from .gemma_numbers import embedding_scale
from .rope_config import RopeSizes, read_layer_ropes

__all__ = ["forward", "read_config"]

# Unlike in Gemma 2 and 3, the factors of norms are stored as they are.
LAYOUT = DecoderLayout(
    after_attention="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
    experts=ExpertNames(router="router.proj", gate_up=("experts.gate_up_proj",), down=("experts.down_proj",)),
)
# transformers' defaults. Published configurations omit some of these keys.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 0,
    "sliding_window": 512,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
HARMLESS = frozenset({"moe_intermediate_size", "num_experts", "top_k_experts"})


def read_config(
    config: ConfigReader, defaults: Mapping[str, Any] = DEFAULTS, *, own_kv_heads: bool = False, borrows: bool = False
) -> ModelSpec:
    """The spec of a config.json with model_type "gemma4_text". ``own_kv_heads``: full layers have a number of kv heads
    of their own even if their values are not their keys. Without 'vocab_size_per_layer_input', layers have no table.
    ``borrows``: all layers read keys and values of another model.
    """
    config = config.with_defaults(defaults)
    experts = _read_experts(config)
    # Text is causal with "vision" too.
    config.expect("use_bidirectional_attention", None, "vision")
    kinds = read_layer_types(config, pattern=lambda layer: (layer + 1) % 6 == 0)
    # As in transformers, whatever the file says.
    kinds = (*kinds[:-1], "full_attention")
    window_head_dim = even_head_dim(config, config.integer("head_dim"))
    window_kv_heads = config.integer("num_key_value_heads")
    require_shared_heads(config, config.integer("num_attention_heads"), window_kv_heads)
    shares_values = config.flag("attention_k_eq_v", default=False)
    head_dim, kv_heads = _full_heads(config, kinds, window_kv_heads, own_kv_heads=own_kv_heads or shares_values)
    intermediate, wide = config.integer("intermediate_size"), config.flag("use_double_wide_mlp", default=False)
    shared = config.integer("num_kv_shared_layers", minimum=0)
    if borrows:
        if shared not in (0, len(kinds)):
            raise config.unsupported(
                "num_kv_shared_layers",
                f"'num_kv_shared_layers' is {shared}; all {len(kinds)} layers must read the model's keys and values",
            )
        shared = 0
    _require_sources(config, kinds, shared)
    per_layer = config.integer("hidden_size_per_layer_input", minimum=0)
    vocab_size = config.integer("vocab_size")
    has_table = per_layer > 0 and config.has("vocab_size_per_layer_input")
    if has_table and config.integer("vocab_size_per_layer_input") < vocab_size:
        raise config.contradiction(
            "vocab_size_per_layer_input",
            f"'vocab_size_per_layer_input' is less than 'vocab_size', which is {vocab_size}: some tokens have no "
            "embedding for each layer",
        )
    scale, cap = embedding_scale(config), config.optional_number("final_logit_softcapping")
    activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh")
    spec = read_decoder_config(
        config,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        activation=activation,
        bias_keys=("attention_bias",),
        qk_norm=True,
        windows=windows_of(config, kinds, config.integer("sliding_window")),
        ropes=_read_ropes(config, head_dim, window_head_dim),
        tied=True,
        harmless=HARMLESS | {"vocab_size_per_layer_input"},
    )
    return replace(
        spec,
        attention_scale=1.0,
        embedding_scale=scale,
        logit_softcap=cap,
        window_head_dim=window_head_dim,
        window_num_kv_heads=window_kv_heads,
        num_kv_shared_layers=shared,
        shared_intermediate_size=2 * intermediate if wide and shared else None,
        per_layer_size=per_layer,
        per_layer_vocab_size=config.integer("vocab_size_per_layer_input") if has_table else 0,
        keys_are_values=shares_values,
        experts=experts,
    )


def _read_experts(config: ConfigReader) -> ExpertSpec | None:
    if not config.flag("enable_moe_block", default=False):
        return None
    keys = {"chosen_key": "top_k_experts", "size_key": "moe_intermediate_size"}
    return read_experts(config, "num_experts", **keys, normalized=True)


def _read_ropes(config: ConfigReader, head_dim: int, window_head_dim: int) -> dict[str, RopeSpec]:
    context = config.integer("max_position_embeddings")
    return read_layer_ropes(
        config,
        RopeSizes(head_dim, context, default_theta=1_000_000.0),
        RopeSizes(window_head_dim, context, default_theta=10_000.0),
    )


def _full_heads(
    config: ConfigReader, kinds: tuple[str, ...], window_kv_heads: int, *, own_kv_heads: bool
) -> tuple[int, int]:
    """The head size and the number of kv heads of full layers: from 'global_head_dim' and 'num_global_key_value_heads',
    or from 'per_layer_config', as which transformers saves them.
    """
    layers = config.section("per_layer_config")
    head_dim = config.optional_integer("global_head_dim") or 512
    # In Gemma 4, it counts only with 'attention_k_eq_v'.
    kv_heads = config.optional_integer("num_global_key_value_heads") if own_kv_heads else None
    config.ignore("num_global_key_value_heads")
    if layers is None:
        return even_head_dim(config, head_dim), kv_heads or window_kv_heads
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    keys = layers.keys()
    # transformers pads the numbers with zeros.
    names = {int(name): name for name in keys if name.isdecimal() and len(name) < 10}
    if sorted(names) != full or len(names) < len(keys):
        raise config.unsupported(
            "per_layer_config",
            f"'per_layer_config' has the layers {', '.join(sorted(keys))}; only full layers "
            f"({', '.join(map(str, full))}) may differ",
        )
    sizes = set()
    for name in names.values():
        section = layers.section(name)
        assert section is not None
        sizes.add((section.integer("head_dim"), section.optional_integer("num_key_value_heads") or window_kv_heads))
        section.finish()
    layers.finish()
    if len(sizes) != 1:
        raise config.unsupported("per_layer_config", "'per_layer_config' gives full layers heads of different sizes")
    ((head_dim, kv_heads),) = sizes
    return even_head_dim(config, head_dim), kv_heads


def _require_sources(config: ConfigReader, kinds: tuple[str, ...], shared: int) -> None:
    first = len(kinds) - shared
    missing = set(kinds[max(first, 0) :]) - set(kinds[: max(first, 0)])
    if missing:
        raise config.contradiction(
            "num_kv_shared_layers",
            f"'num_kv_shared_layers' is {shared}, so no earlier layer of type {sorted(missing)[0]!r} has keys and "
            "values",
        )


def forward(
    spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False, modules: tuple[str, str] = ("model.", "")
) -> Graph:
    """See `decoder.forward`. ``modules`` precede the names of what makes the layers' own inputs: of all layers at
    once, and in each layer.
    """
    graph = new_graph(embeds=embeds)
    x = embedding(graph, "model.embed_tokens", spec.vocab_size, spec.hidden_size, spec.embedding_scale, "embedded")
    if spec.vision is not None or spec.hearing is not None:
        x = place_features(graph, spec, x)
    of_model, of_layer = modules
    per_layer = _per_layer_inputs(graph, spec, x, of_model) if spec.per_layer_size else None
    for layer in range(spec.num_layers):
        if layer == spec.num_layers - spec.num_kv_shared_layers:
            # No later layer has keys and values of its own, so only the sampled rows matter from here on.
            x = take_sampled(graph, x, "sampled_rows")
            per_layer = per_layer and take_sampled(graph, per_layer, "sampled_per_layer_inputs")
        block = Gemma4Layer(graph, spec, layer, LAYOUT, context)
        x = block.attention(x, page_size)
        x = block.feed_forward(x)
        if per_layer is not None:
            x = block.add_per_layer(x, per_layer, of_layer)
        x = block.scaled(x)
    finish(graph, spec, LAYOUT, x, embeds=embeds)
    return graph


def _per_layer_inputs(graph: Graph, spec: ModelSpec, x: str, of_model: str) -> str:
    """(S, layers * P): a projection of the token's common embedding, plus each layer's own one if there is a table."""
    size, columns = spec.per_layer_size, spec.num_layers * spec.per_layer_size
    # The sum of both is divided by sqrt(2).
    half = 2**-0.5 if spec.per_layer_vocab_size else 1.0
    weight = matrix(graph, f"{of_model}per_layer_model_projection", columns, spec.hidden_size, spec.hidden_size**-0.5)
    projected = graph.add("linear", {"x": x, "weight": weight}, name="per_layer_projected", dtype="float32")
    name = f"{of_model}per_layer_projection_norm.weight"
    graph.parameters[name] = Parameter(name, (Source(name, 0, size, factor=half),), None)
    normed = graph.add(
        "rms_norm", {"x": projected, "weight": name}, name="per_layer_normed", eps=spec.rms_norm_eps, dtype="float32"
    )
    if not spec.per_layer_vocab_size:
        return normed
    rows = embedding(
        graph,
        "model.embed_tokens_per_layer",
        spec.per_layer_vocab_size,
        columns,
        math.sqrt(size) * half,
        "per_layer_embedded",
        host=True,
    )
    return graph.add("add", {"a": normed, "b": rows}, name="per_layer_sums")


class Gemma4Layer(Layer):
    def _stored(self, module: str) -> tuple[str, int]:
        """With ``keys_are_values``, the values of a full layer are its keys before their norm. The same rows are read
        twice, so that one projection makes all heads.
        """
        spec = self._spec
        if module == "self_attn.v_proj" and spec.keys_are_values and spec.window(self._layer) is None:
            return "self_attn.k_proj", 0
        return super()._stored(module)

    def _values(self, v: str) -> str:
        """Normalized without factors: those of the norm of keys, times zero, plus one."""
        name = f"{self._module}.self_attn.v_norm.weight"
        source = Source(f"{self._module}.self_attn.k_norm.weight", 0, self._head_dim, offset=1.0, factor=0.0)
        self._graph.parameters[name] = Parameter(name, (source,), None)
        inputs = {"x": v, "weight": name}
        return self._graph.add(
            "rms_norm", inputs, name=f"{self._here}.v_normed", eps=self._spec.rms_norm_eps, dtype="activation"
        )

    def _mixture(self, normed: str) -> str:
        """The norm of the dense feed-forward's result plus that of the experts', which read the residual stream."""
        graph, spec, names = self._graph, self._spec, self._layout.experts
        mixture = Mixture(graph, spec, names, self._module, self._here)
        dense = self._norm("post_feedforward_layernorm_1", self._dense(normed))
        scale, scales = f"{self._module}.router.scale", f"{self._module}.router.per_expert_scale"
        source = Source(scale, 0, spec.hidden_size, factor=spec.hidden_size**-0.5)
        graph.parameters[scale] = Parameter(scale, (source,), None)
        router_input = graph.add(
            "rms_norm",
            {"x": self._stream, "weight": scale},
            name=f"{self._here}.router_input",
            eps=spec.rms_norm_eps,
            dtype="float32",
        )
        chosen = mixture.route(router_input, scales=vector(graph, scales, mixture.experts.number))
        own = mixture.sum_of(self._norm("pre_feedforward_layernorm_2", self._stream), chosen)
        own = self._norm("post_feedforward_layernorm_2", own)
        return graph.add("add", {"a": dense, "b": own}, name=f"{self._here}.dense_and_experts")

    def feed_forward(self, x: str) -> str:
        self._stream = x
        return super().feed_forward(x)

    def add_per_layer(self, x: str, per_layer: str, of_layer: str) -> str:
        """x + rms_norm(projection(activation(gate(x)) * the layer's embedding))."""
        graph, spec, size = self._graph, self._spec, self._spec.per_layer_size
        own_gate, projection = f"{of_layer}per_layer_input_gate", f"{of_layer}per_layer_projection"
        self._rows |= {own_gate: size, projection: spec.hidden_size}
        gate = self._linear(own_gate, x, spec.hidden_size, bias=False)
        start = self._layer * size
        own = graph.add(
            "slice_columns",
            {"x": per_layer},
            name=f"{self._here}.embedded",
            start=start,
            stop=start + size,
            dtype="float32",
        )
        gated = graph.add(
            "gate", {"gate": gate, "up": own}, name=f"{self._here}.per_layer_gated", activation=spec.activation
        )
        projected = self._linear(projection, gated, size, bias=False)
        projected = self._norm(f"{of_layer}post_per_layer_input_norm", projected)
        return graph.add("add", {"a": projected, "b": x}, name=f"{self._here}.after_per_layer")

    def scaled(self, x: str) -> str:
        name = f"{self._module}.layer_scalar"
        self._graph.parameters[name] = Parameter(name, (Source(name, 0, 1),), None)
        return self._graph.add("scale", {"x": x, "factor": name}, name=f"{self._here}.scaled")
