"""q = linear(x), k = linear(x), v = linear(x)  ->  qkv = linear(x), with q, k and v as column slices of it."""

from __future__ import annotations

from itertools import accumulate

from ..ir.graph import Graph, Node, Parameter
from .stack import can_stack, module_of, stack_projections, unused_name


def fuse_projections(graph: Graph) -> Graph:
    nodes: list[Node] = []
    parameters: dict[str, Parameter] = {}
    done: set[int] = set()
    for node in graph.nodes:
        if id(node) in done:
            continue
        siblings = (
            [user for user in graph.users(node.inputs["x"]) if can_stack(graph, [node, user])]
            if node.op == "linear"
            else []
        )
        if len(siblings) < 2:
            nodes.append(node)
            continue
        done |= {id(sibling) for sibling in siblings}
        letters = "".join(short_name(sibling) for sibling in siblings)
        inputs = stack_projections(graph, parameters, siblings, f"{module_of(node)}.{letters}_proj")
        joint = unused_name(graph, (), f"{inputs['weight'].removesuffix('.weight')}.out")
        nodes.append(Node("linear", inputs, {"y": joint}, node.attrs))
        stops = list(accumulate(graph.parameters[sibling.inputs["weight"]].rows for sibling in siblings))
        for sibling, start, stop in zip(siblings, [0, *stops], stops, strict=False):
            attrs = {"start": start, "stop": stop, "dtype": node.attr("dtype")}
            nodes.append(Node("slice_columns", {"x": joint}, sibling.outputs, attrs))
    return graph.with_nodes(nodes, parameters.values())


def short_name(linear: Node) -> str:
    """ "q" of a projection whose weight is "model.layers.0.self_attn.q_proj.weight"."""
    return linear.inputs["weight"].removesuffix(".weight").rsplit(".", 1)[-1].removesuffix("_proj")
