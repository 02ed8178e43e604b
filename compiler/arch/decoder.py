"""The forward pass of pre-norm decoders: llama, qwen2, qwen3 and their like differ only in what a ModelSpec says.

Weight names are those of transformers; other formats map theirs onto them.
"""

from __future__ import annotations

from ..ir.graph import Constant, Graph, Parameter, Source, Value
from ..ir.ops import Type
from ..ir.rope import inverse_frequencies
from ..ir.sampling import Settings
from ..ir.spec import ModelSpec


def forward(spec: ModelSpec, page_size: int, context: int, *, embeds: bool = False) -> Graph:
    """The graph of one forward on a ragged batch: logits (R, V) of the sampled rows, and the next token of each.

    With ``embeds``, the rows' embeddings (R, E) in place of both: what the final norm gives.
    """
    graph = Graph()
    for name, (shape, dtype) in BATCH_INPUTS.items():
        if not (embeds and name in SAMPLING_INPUTS):
            graph.inputs[name] = Value(name, shape, dtype)
    graph.states["sampled"] = Value("sampled", ("N",), "int32")
    frequencies = inverse_frequencies(spec.rope, spec.head_dim)
    graph.constants["rope_table"] = Constant("rope_table", "rope", (context, spec.head_dim // 2, 2), {"inverse_frequencies": frequencies})
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
        x = attention_block(graph, spec, layer, x, page_size)
        x = feed_forward_block(graph, spec, layer, x)
    x = graph.add("take_rows", {"x": x, "rows": "sample_rows"}, name="sampled_rows")
    x = norm(graph, "model.norm", x, spec.hidden_size, spec.rms_norm_eps)
    if embeds:
        graph.outputs = {"embeddings": x}
        return graph
    head = "model.embed_tokens" if spec.tie_word_embeddings else "lm_head"
    graph.add("linear", {"x": x, "weight": matrix(graph, head, spec.vocab_size, spec.hidden_size)}, name="logits", dtype="float32")
    sampling_block(graph, spec.vocab_size)
    return graph


# What a runtime hands in with every batch; see `ops.py` for what each means.
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
# Of these, what a model that embeds has no use for.
SAMPLING_INPUTS = ("sample_slots", "sample_settings")


def sampling_block(graph: Graph, vocab_size: int) -> None:
    """From logits to the next token of each row, its log-probability, and where they are asked for the likeliest tokens."""
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


def attention_block(graph: Graph, spec: ModelSpec, layer: int, x: str, page_size: int) -> str:
    here, module = f"layers.{layer}", f"model.layers.{layer}"
    hidden, head_dim, kv_width = spec.hidden_size, spec.head_dim, spec.num_kv_heads * spec.head_dim
    kv = f"{here}.kv"
    graph.states[kv] = Value(kv, ("P", 2, spec.num_kv_heads, page_size, head_dim), "activation")

    normed = norm(graph, f"{module}.input_layernorm", x, hidden, spec.rms_norm_eps)
    q = linear(graph, f"{module}.self_attn.q_proj", normed, spec.num_heads * head_dim, hidden, spec.qkv_bias, "activation")
    k = linear(graph, f"{module}.self_attn.k_proj", normed, kv_width, hidden, spec.qkv_bias, "activation")
    v = linear(graph, f"{module}.self_attn.v_proj", normed, kv_width, hidden, spec.qkv_bias, "activation")
    if spec.qk_norm:
        q = norm(graph, f"{module}.self_attn.q_norm", q, head_dim, spec.rms_norm_eps, "activation")
        k = norm(graph, f"{module}.self_attn.k_norm", k, head_dim, spec.rms_norm_eps, "activation")
    where = {"positions": "positions", "table": "rope_table"}
    q = graph.add("rope", {"x": q, **where}, name=f"{here}.q_rotated", dtype="activation")
    k = graph.add("rope", {"x": k, **where}, name=f"{here}.k_rotated", dtype="activation")
    graph.add("append_kv", {"k": k, "v": v, "kv": kv, "slots": "slots"})
    pages = {name: name for name in ("positions", "seq_starts", "page_indptr", "page_ids")}
    attended = graph.add("attention", {"q": q, "kv": kv, **pages}, name=f"{here}.attended")
    projected = linear(graph, f"{module}.self_attn.o_proj", attended, hidden, spec.num_heads * head_dim, spec.output_bias, "float32")
    return graph.add("add", {"a": projected, "b": x}, name=f"{here}.after_attention")


def feed_forward_block(graph: Graph, spec: ModelSpec, layer: int, x: str) -> str:
    here, module = f"layers.{layer}", f"model.layers.{layer}"
    hidden, width, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
    normed = norm(graph, f"{module}.post_attention_layernorm", x, hidden, spec.rms_norm_eps)
    gate = linear(graph, f"{module}.mlp.gate_proj", normed, width, hidden, bias, "float32")
    up = linear(graph, f"{module}.mlp.up_proj", normed, width, hidden, bias, "float32")
    gated = graph.add("gated_silu", {"gate": gate, "up": up}, name=f"{here}.gated")
    down = linear(graph, f"{module}.mlp.down_proj", gated, hidden, width, bias, "float32")
    return graph.add("add", {"a": down, "b": x}, name=f"{here}.after_feed_forward")


def linear(graph: Graph, module: str, x: str, rows: int, columns: int, bias: bool, dtype: str) -> str:
    inputs = {"x": x, "weight": matrix(graph, module, rows, columns)}
    if bias:
        inputs["bias"] = vector(graph, f"{module}.bias", rows)
    return graph.add("linear", inputs, name=f"{module}.out", dtype=dtype)


def norm(graph: Graph, module: str, x: str, width: int, eps: float, dtype: str = "float32") -> str:
    return graph.add("rms_norm", {"x": x, "weight": vector(graph, f"{module}.weight", width)}, name=f"{module}.out", eps=eps, dtype=dtype)


def matrix(graph: Graph, module: str, rows: int, columns: int) -> str:
    name = f"{module}.weight"
    graph.parameters[name] = Parameter(name, (Source(name, 0, rows),), columns)
    return name


def vector(graph: Graph, name: str, length: int) -> str:
    graph.parameters[name] = Parameter(name, (Source(name, 0, length),), None)
    return name
