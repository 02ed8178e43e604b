"""gate = linear(x), up = linear(x), gated_silu(gate, up)  ->  gated_linear(x), its weight the gate's rows above the up's."""

from __future__ import annotations

from ..ir.graph import Graph, Node, Parameter
from .stack import can_stack, module_of, stack_projections


def fuse_gate_up(graph: Graph) -> Graph:
    makers = {name: node for node in graph.nodes for name in node.outputs.values()}
    replaced: dict[int, Node | None] = {}
    parameters: list[Parameter] = []
    for node in graph.nodes:
        if node.op != "gated_silu":
            continue
        pair = [makers[node.inputs["gate"]], makers[node.inputs["up"]]]
        if not can_stack(pair) or any(graph.only_user(linear.outputs["y"]) is not node for linear in pair):
            continue
        roles, stacked = stack_projections(graph, pair, f"{module_of(pair[0])}.gate_up_proj")
        parameters += stacked
        replaced |= {id(pair[0]): None, id(pair[1]): None}
        replaced[id(node)] = Node("gated_linear", {"x": pair[0].inputs["x"], **roles}, node.outputs)
    nodes = (replaced.get(id(node), node) for node in graph.nodes)
    return graph.with_nodes([node for node in nodes if node is not None], parameters)
