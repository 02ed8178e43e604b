"""rope_append, then attention over the same pages -> rope_attention, one kernel if each sequence has one new token."""

from __future__ import annotations

from ..ir.graph import Graph, Node

APPEND = {"inputs": ("qkv", "positions", "slots", "kv", "table", "qk_norm"), "attrs": ("eps", "norms_values", "kv")}
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
    return graph.replace(replaced)
