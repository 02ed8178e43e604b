"""ragged_attention, then the projection of its result  ->  one step.

The projection's bias and residual stay; a projection that rounds, activates or is a part of another one is left alone.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node


def fuse_attention_output(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for linear in graph.nodes:
        if linear.op != "linear" or not linear.has_only(inputs=("x", "weight", "bias", "residual"), attrs=("dtype",)):
            continue
        attended = linear.inputs["x"]
        attention = makers.get(attended)
        if attention is None or attention.op != "ragged_attention" or "weight" in attention.inputs:
            continue
        if graph.only_user(attended) is not linear or linear.attr("dtype") != "float32":
            continue
        inputs = {**attention.inputs, **{role: name for role, name in linear.inputs.items() if role != "x"}}
        replaced[id(attention)] = None
        replaced[id(linear)] = Node("ragged_attention", inputs, linear.outputs, attention.attrs)
    return graph.replace(replaced)
