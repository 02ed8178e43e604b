"""rope_append, then attention over the same pages -> rope_attention, one kernel if each sequence has one new token; and
rope, then attention with these queries -> attention that rotates them.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node
from ..ir.ops.kv_pages import head_dim_of

APPEND = {
    "inputs": ("qkv", "positions", "slots", "kv", "table", "qk_norm"),
    "attrs": ("eps", "norms_values", "norm_after", "position_scale", "kv"),
}
ATTENTION = {
    "inputs": ("q", "kv", "positions", "seq_starts", "page_indptr", "page_ids"),
    "attrs": ("scale", "window", "softcap", "causal", "kv"),
}


def fuse_attention(graph: Graph) -> Graph:
    replaced: dict[int, Node | None] = {}
    for index, append in enumerate(graph.nodes):
        if append.op != "rope_append" or not append.has_only(**APPEND):
            continue
        # The next node that touches the pages: no node between the two may read the pages.
        attention = next(
            (node for node in graph.nodes[index + 1 :] if append.inputs["kv"] in node.inputs.values()), None
        )
        if (
            attention is None
            or attention.op != "attention"
            or not attention.has_only(**ATTENTION)
            or graph.only_user(append.outputs["q"]) is not attention
            or attention.inputs["q"] != append.outputs["q"]
            or attention.inputs["positions"] != append.inputs["positions"]
            or attention.attr("kv") != append.attr("kv")
        ):
            continue
        inputs = {**append.inputs, **{role: name for role, name in attention.inputs.items() if role != "q"}}
        replaced[id(append)] = None
        replaced[id(attention)] = Node("rope_attention", inputs, attention.outputs, {**append.attrs, **attention.attrs})
    return rotate_queries(graph.replace(replaced))


def rotate_queries(graph: Graph) -> Graph:
    """Attention without new keys, such as that of layers which read the pages of other layers."""
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for attention in graph.nodes:
        if attention.op != "attention" or not attention.has_only(**ATTENTION):
            continue
        rope = makers.get(attention.inputs["q"])
        if (
            rope is None
            or rope.op != "rope"
            or graph.only_user(attention.inputs["q"]) is not attention
            or attention.inputs["positions"] != rope.inputs["positions"]
            or not has_heads_of(graph, rope, attention)
        ):
            continue
        rotation = {role: rope.inputs[role] for role in ("table", "norm") if role in rope.inputs}
        inputs = {**attention.inputs, **rotation, "q": rope.inputs["x"]}
        attrs = {**attention.attrs, "eps": rope.attr("eps")}
        replaced |= {id(rope): None, id(attention): Node("attention", inputs, attention.outputs, attrs)}
    return graph.replace(replaced)


def has_heads_of(graph: Graph, rope: Node, attention: Node) -> bool:
    """Whether a rope rotates, and if it does normalizes, heads as long as the attention's, and stores activations."""
    if not rope.has_only(inputs=("x", "positions", "table", "norm"), attrs=("head_dim", "dtype", "eps")):
        return False
    head_dim = head_dim_of(graph.shape_of(attention.inputs["kv"]), {"kv": attention.attr("kv")})
    widths = [graph.shape_of(rope.inputs["norm"])] if "norm" in rope.inputs else []
    is_activation = graph.values[rope.inputs["x"]].dtype == rope.attr("dtype") == "activation"
    return rope.attr("head_dim") == head_dim and is_activation and all(each == (head_dim,) for each in widths)
