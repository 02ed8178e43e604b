"""ragged_attention, then the projection of its result  ->  one step.

The projection's bias and what it stores stay. One that gates halves of its outputs, loads something, or is a part of
another one is left alone.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node
from ..ir.ops.projections import stores_halves


def fuse_attention_output(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for linear in graph.nodes:
        if linear.op != "linear" or linear.attrs.keys() - {"dtype", "store"} or "into" in linear.inputs:
            continue
        if stores_halves(linear.attr("store")):
            continue
        attended = linear.inputs["x"]
        attention = makers.get(attended)
        if attention is None or attention.op != "ragged_attention" or "weight" in attention.inputs:
            continue
        if graph.only_user(attended) is not linear or linear.attr("dtype") != "float32":
            continue
        inputs = {**attention.inputs, **{role: name for role, name in linear.inputs.items() if role != "x"}}
        replaced[id(attention)] = None
        attrs = {**attention.attrs, "store": linear.attr("store")}
        replaced[id(linear)] = Node("ragged_attention", inputs, linear.outputs, attrs)
    return graph.replace(replaced)
