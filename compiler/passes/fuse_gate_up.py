"""gate = linear(x), up = linear(x), gate(gate, up) -> gate_halves(linear(x)), whose weight is the gate's rows stacked
on the up's.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node, Parameter
from .stack import can_stack, module_of, stack_projections, unused_name


def fuse_gate_up(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    parameters: dict[str, Parameter] = {}
    for node in graph.nodes:
        if node.op != "gate" or "start" in node.attrs:
            continue
        pair = [makers[node.inputs[role]] for role in ("gate", "up") if node.inputs[role] in makers]
        # A projection that is both gate and up is not fused, nor is one whose result is rounded.
        if len(pair) < 2 or pair[0] is pair[1] or not can_stack(graph, pair) or pair[0].attr("dtype") != "float32":
            continue
        if any(graph.only_user(linear.outputs["y"]) is not node for linear in pair):
            continue
        inputs = stack_projections(graph, parameters, pair, f"{module_of(pair[0])}.gate_up_proj")
        joint = unused_name(graph, (), f"{node.outputs['y']}.halves")
        replaced |= {id(pair[0]): Node("linear", inputs, {"y": joint}, pair[0].attrs), id(pair[1]): None}
        replaced[id(node)] = Node("gate_halves", {"x": joint}, node.outputs, node.attrs)
    return graph.replace(replaced, parameters.values())
