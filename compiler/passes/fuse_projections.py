"""q = linear(x), k = linear(x), v = linear(x)  ->  qkv = linear(x), with q, k and v as column slices of it."""

from __future__ import annotations

from itertools import accumulate

from ..ir.graph import Graph, Node, Parameter
from .stack import can_stack, module_of, stack_projections


def fuse_projections(graph: Graph) -> Graph:
    nodes: list[Node] = []
    parameters: list[Parameter] = []
    done: set[int] = set()
    for node in graph.nodes:
        if id(node) in done:
            continue
        siblings = [user for user in graph.users(node.inputs["x"]) if can_stack([node, user])] if node.op == "linear" else []
        if len(siblings) < 2:
            nodes.append(node)
            continue
        done |= {id(sibling) for sibling in siblings}
        letters = "".join(sibling.inputs["weight"].rsplit(".", 2)[1].removesuffix("_proj") for sibling in siblings)
        name = f"{module_of(node)}.{letters}_proj"
        roles, stacked = stack_projections(graph, siblings, name)
        parameters += stacked
        nodes.append(Node("linear", {"x": node.inputs["x"], **roles}, {"y": f"{name}.out"}, node.attrs))
        stops = list(accumulate(graph.parameters[sibling.inputs["weight"]].rows for sibling in siblings))
        for sibling, start, stop in zip(siblings, [0, *stops], stops, strict=False):
            nodes.append(Node("slice_columns", {"x": f"{name}.out"}, sibling.outputs, {"start": start, "stop": stop}))
    return graph.with_nodes(nodes, parameters)
