"""KV pages of activations -> KV pages of integers, with a scale for each token and kv head. This is the only pass that
changes results.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Node, Value
from ..ir.kv_format import KvFormat, kv_format
from ..ir.pages import DRAFT_PAGES, PAGES, SOURCE_PAGES


def quantize_kv(graph: Graph, kv: str) -> Graph:
    """``kv`` is the format of pages. "activation" changes nothing."""
    form = kv_format(kv)
    if form is None:
        return graph
    states = {
        name: quantized(value, form) if value.shape[0] in (PAGES, DRAFT_PAGES, SOURCE_PAGES) else value
        for name, value in graph.states.items()
    }
    nodes = [
        Node(node.op, node.inputs, node.outputs, {**node.attrs, "kv": kv}) if "kv" in node.inputs else node
        for node in graph.nodes
    ]
    return replace(graph, states=states, values={}).with_nodes(nodes)


def quantized(pages: Value, form: KvFormat) -> Value:
    head_dim = pages.shape[-1]
    assert isinstance(head_dim, int), head_dim
    return Value(pages.name, (*pages.shape[:-1], form.words(head_dim)), "uint32")
