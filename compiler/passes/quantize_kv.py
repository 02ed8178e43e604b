"""KV pages of activations -> KV pages of 8-bit integers, with a scale for each token and kv head. This is the only pass
that changes results.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Node, Value
from ..ir.pages import PAGES


def quantize_kv(graph: Graph) -> Graph:
    states = {name: quantized(value) if value.shape[0] == PAGES else value for name, value in graph.states.items()}
    nodes = [
        Node(node.op, node.inputs, node.outputs, {**node.attrs, "kv": "q8"}) if "kv" in node.inputs else node
        for node in graph.nodes
    ]
    return replace(graph, states=states, values={}).with_nodes(nodes)


def quantized(pages: Value) -> Value:
    return Value(pages.name, (*pages.shape[:-1], row_words(pages.shape[-1])), "uint32")


def row_words(head_dim: object) -> int:
    """32-bit words of one token's key or value in one kv head: four elements each, then the scale."""
    assert isinstance(head_dim, int), head_dim
    assert head_dim % 4 == 0, head_dim
    return head_dim // 4 + 1
