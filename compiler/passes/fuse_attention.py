"""rope_append, then attention over the same pages  ->  rope_attention, one kernel where each sequence has one new token."""

from __future__ import annotations

from ..ir.graph import Graph, Node


def fuse_attention(graph: Graph) -> Graph:
    replaced: dict[int, Node | None] = {}
    for append in graph.nodes:
        if append.op != "rope_append":
            continue
        attention = graph.only_user(append.outputs["q"])
        if attention is None or attention.op != "attention" or attention.inputs["kv"] != append.inputs["kv"]:
            continue
        pages = {role: name for role, name in attention.inputs.items() if role != "q"}
        replaced[id(append)] = None
        replaced[id(attention)] = Node("rope_attention", {**append.inputs, **pages}, attention.outputs, append.attrs)
    nodes = (replaced.get(id(node), node) for node in graph.nodes)
    return graph.with_nodes([node for node in nodes if node is not None])
