"""add(linear(x), r)  ->  linear(x, residual=r)."""

from __future__ import annotations

from ..ir.graph import Graph, Node


def fuse_residual(graph: Graph) -> Graph:
    makers = {name: node for node in graph.nodes for name in node.outputs.values()}
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        if node.op != "add":
            continue
        linear = makers.get(node.inputs["a"])
        if linear is None or linear.op != "linear" or "residual" in linear.inputs or graph.only_user(node.inputs["a"]) is not node:
            continue
        replaced[id(linear)] = None
        replaced[id(node)] = Node("linear", {**linear.inputs, "residual": node.inputs["b"]}, node.outputs, linear.attrs)
    nodes = (replaced.get(id(node), node) for node in graph.nodes)
    return graph.with_nodes([node for node in nodes if node is not None])
