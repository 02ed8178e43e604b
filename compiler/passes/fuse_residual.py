"""add(linear(x), r) or add(r, linear(x))  ->  linear(x, residual=r)."""

from __future__ import annotations

from ..ir.graph import Graph, Node

LINEAR = {"inputs": ("x", "weight", "bias", "norm"), "attrs": ("dtype", "eps", "x_step", "y_step")}


def fuse_residual(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        if node.op != "add" or not node.has_only(inputs=("a", "b")):
            continue
        for role, other in (("a", "b"), ("b", "a")):
            linear = makers.get(node.inputs[role])
            if linear is None or linear.op != "linear" or not linear.has_only(**LINEAR) or id(linear) in replaced:
                continue
            # In x + x, one user reads the value twice.
            if (
                linear.attr("dtype") == "float32"
                and graph.only_user(node.inputs[role]) is node
                and node.inputs[role] != node.inputs[other]
            ):
                replaced[id(linear)] = None
                replaced[id(node)] = Node(
                    "linear", {**linear.inputs, "residual": node.inputs[other]}, node.outputs, linear.attrs
                )
                break
    return graph.replace(replaced)
