"""The forward pass of pre-norm decoders, which differ only in their ModelSpec and in the names of their tensors.

Weights have the names of transformers; other formats map their names to these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ..ir.graph import Constant, Graph, Parameter, Source, Value
from ..ir.ops import Type
from ..ir.rope import inverse_frequencies, rotary_dim
from ..ir.sampling import Settings
from ..ir.spec import ModelSpec

# A checkpoint's tensors that hold the rows of several projections in order: the tensor's module -> the projections'
# modules.
FusedModules = Mapping[str, Sequence[str]]
NOT_FUSED: FusedModules = MappingProxyType({})


def forward(
    spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False, fused: FusedModules = NOT_FUSED
) -> Graph:
    """The graph of one forward pass on a ragged batch: logits (R, V) of the sampled rows, and the next token of each.

    With ``embeds``, its only output is the rows' embeddings (R, E), which the final norm computes.
    """
    graph = Graph()
    for name, (shape, dtype) in BATCH_INPUTS.items():
        if not (embeds and name in SAMPLING_INPUTS):
            graph.inputs[name] = Value(name, shape, dtype)
    graph.states["sampled"] = Value("sampled", ("N",), "int32")
    frequencies = inverse_frequencies(spec.rope, spec.head_dim)
    shape = (context, rotary_dim(spec.rope, spec.head_dim) // 2, 2)
    graph.constants["rope_table"] = Constant(
        "rope_table", "rope", shape, {"inverse_frequencies": frequencies, "scale": 1.0}
    )
    x = graph.add(
        "embed",
        {
            "table": matrix(graph, "model.embed_tokens", spec.vocab_size, spec.hidden_size),
            "token_ids": "token_ids",
            "sampled": "sampled",
        },
        name="embedded",
    )
    for layer in range(spec.num_layers):
        block = Layer(graph, spec, layer, fused)
        x = block.attention(x, page_size, context)
        x = block.feed_forward(x)
    x = graph.add("take_rows", {"x": x, "rows": "sample_rows"}, name="sampled_rows")
    x = norm(graph, "model.norm", x, spec.hidden_size, spec.rms_norm_eps)
    if embeds:
        graph.outputs = {"embeddings": x}
        return graph
    head = "model.embed_tokens" if spec.tie_word_embeddings else "lm_head"
    graph.add(
        "linear",
        {"x": x, "weight": matrix(graph, head, spec.vocab_size, spec.hidden_size)},
        name="logits",
        dtype="float32",
    )
    sampling_block(graph, spec.vocab_size)
    return graph


# The inputs that a runtime passes with every batch; `ops/` defines them.
BATCH_INPUTS: dict[str, Type] = {
    "token_ids": (("S",), "int32"),
    "positions": (("S",), "int32"),
    "slots": (("S",), "int32"),
    "seq_starts": ((["add", "B", 1],), "int32"),
    "page_indptr": ((["add", "B", 1],), "int32"),
    "page_ids": (("L",), "int32"),
    "sample_rows": (("R",), "int32"),
    "sample_slots": (("R", 2), "int32"),
    "sample_settings": (("R", len(Settings._fields)), "float32"),
}
# The inputs that an embedding model does not need.
SAMPLING_INPUTS = ("sample_slots", "sample_settings")


def sampling_block(graph: Graph, vocab_size: int) -> None:
    """Add the nodes from the logits to each row's next token, its log-probability, and the likeliest tokens on
    request.
    """
    states: dict[str, Type] = {
        "token_counts": (("N", vocab_size), "int32"),
        "logit_bias": (("N", vocab_size), "float32"),
        "token_mask": (("N", -(-vocab_size // 32)), "int32"),
    }
    graph.states |= {name: Value(name, shape, dtype) for name, (shape, dtype) in states.items()}
    rows = {"logits": "logits", "settings": "sample_settings", "slots": "sample_slots", "counts": "token_counts"}
    graph.add("adjust_logits", {**rows, "bias": "logit_bias", "mask": "token_mask"}, name="adjusted")
    graph.add("sample", {**rows, "adjusted": "adjusted", "sampled": "sampled"}, name="next_token_ids")
    graph.add("top_logprobs", {"logits": "logits"}, name="top")
    graph.outputs = {
        "logits": "logits",
        "next_token_ids": "next_token_ids",
        "token_logprobs": "next_token_ids.logprobs",
        "top_token_ids": "top.ids",
        "top_logprobs": "top.logprobs",
    }


class Layer:
    """Adds one layer's nodes. ``layer`` counts from 0."""

    def __init__(self, graph: Graph, spec: ModelSpec, layer: int, fused: FusedModules) -> None:
        self._graph, self._spec, self._layer, self._fused = graph, spec, layer, fused
        self._here, self._module = f"layers.{layer}", f"model.layers.{layer}"
        heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self._rows = {
            "self_attn.q_proj": heads, "self_attn.k_proj": kv, "self_attn.v_proj": kv,
            "self_attn.o_proj": spec.hidden_size,
            "mlp.gate_proj": spec.intermediate_size, "mlp.up_proj": spec.intermediate_size,
            "mlp.down_proj": spec.hidden_size,
        }  # fmt: skip

    def attention(self, x: str, page_size: int, context: int) -> str:
        graph, spec, here = self._graph, self._spec, self._here
        head_dim, width = spec.head_dim, spec.num_heads * spec.head_dim
        kv = f"{here}.kv"
        graph.states[kv] = Value(kv, ("P", 2, spec.num_kv_heads, page_size, head_dim), "activation")

        normed = self._norm("input_layernorm", x, spec.hidden_size)
        q, k, v = (
            self._linear(f"self_attn.{name}_proj", normed, spec.hidden_size, bias=spec.qkv_bias, dtype="activation")
            for name in "qkv"
        )
        if spec.qk_norm:
            q = self._norm("self_attn.q_norm", q, head_dim, "activation")
            k = self._norm("self_attn.k_norm", k, head_dim, "activation")
        rotation = {"positions": "positions", "table": "rope_table"}
        q = graph.add("rope", {"x": q, **rotation}, name=f"{here}.q_rotated", head_dim=head_dim, dtype="activation")
        k = graph.add("rope", {"x": k, **rotation}, name=f"{here}.k_rotated", head_dim=head_dim, dtype="activation")
        graph.add("append_kv", {"k": k, "v": v, "kv": kv, "slots": "slots"})
        pages = {name: name for name in ("positions", "seq_starts", "page_indptr", "page_ids")}
        window = spec.window(self._layer)
        # A window as long as the context has no effect.
        window = None if window is None or window >= context else window
        attended = graph.add("attention", {"q": q, "kv": kv, **pages}, name=f"{here}.attended", window=window)
        projected = self._linear("self_attn.o_proj", attended, width, bias=spec.output_bias)
        return graph.add("add", {"a": projected, "b": x}, name=f"{here}.after_attention")

    def feed_forward(self, x: str) -> str:
        graph, spec = self._graph, self._spec
        normed = self._norm("post_attention_layernorm", x, spec.hidden_size)
        gate, up = (
            self._linear(f"mlp.{name}_proj", normed, spec.hidden_size, bias=spec.mlp_bias) for name in ("gate", "up")
        )
        gated = graph.add("gate", {"gate": gate, "up": up}, name=f"{self._here}.gated", activation=spec.activation)
        down = self._linear("mlp.down_proj", gated, spec.intermediate_size, bias=spec.mlp_bias)
        return graph.add("add", {"a": down, "b": x}, name=f"{self._here}.after_feed_forward")

    def _linear(self, module: str, x: str, columns: int, *, bias: bool, dtype: str = "float32") -> str:
        name, rows = f"{self._module}.{module}", self._rows[module]
        inputs = {"x": x, "weight": self._parameter(f"{name}.weight", module, rows, columns)}
        if bias:
            inputs["bias"] = self._parameter(f"{name}.bias", module, rows, None)
        return self._graph.add("linear", inputs, name=f"{name}.out", dtype=dtype)

    def _parameter(self, name: str, module: str, rows: int, columns: int | None) -> str:
        """Add the weight or bias of a projection, which may be a part of a fused tensor. Returns its name."""
        tensor, start = name, 0
        for fused, parts in self._fused.items():
            if module in parts:
                tensor = name.replace(module, fused)
                start = sum(self._rows[part] for part in parts[: parts.index(module)])
        self._graph.parameters[name] = Parameter(name, (Source(tensor, start, start + rows),), columns)
        return name

    def _norm(self, module: str, x: str, width: int, dtype: str = "float32") -> str:
        return norm(self._graph, f"{self._module}.{module}", x, width, self._spec.rms_norm_eps, dtype)


def norm(graph: Graph, module: str, x: str, width: int, eps: float, dtype: str = "float32") -> str:
    name = f"{module}.weight"
    graph.parameters[name] = Parameter(name, (Source(name, 0, width),), None)
    return graph.add("rms_norm", {"x": x, "weight": name}, name=f"{module}.out", eps=eps, dtype=dtype)


def matrix(graph: Graph, module: str, rows: int, columns: int) -> str:
    name = f"{module}.weight"
    graph.parameters[name] = Parameter(name, (Source(name, 0, rows),), columns)
    return name
