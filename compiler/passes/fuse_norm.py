"""linear(rms_norm(x))  ->  linear(x, norm=...): the projection norms its input as it reads it.

y = W (x * g / rms(x)) is (W (x * g)) / rms(x), so a kernel sums squares beside its dot products and divides once at the end.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node

PROJECTIONS = ("linear", "gated_linear")


def fuse_norm(graph: Graph) -> Graph:
    folded: dict[str, Node] = {}
    for node in graph.nodes:
        users = graph.users(node.outputs["y"]) if node.op == "rms_norm" else []
        whole_row = node.op == "rms_norm" and graph.shape_of(node.inputs["x"])[1:] == graph.shape_of(node.inputs["weight"])
        if whole_row and users and all(user.op in PROJECTIONS and "norm" not in user.inputs for user in users):
            folded[node.outputs["y"]] = node
    nodes = []
    for node in graph.nodes:
        norm = folded.get(node.inputs.get("x", "")) if node.op in PROJECTIONS else None
        if norm is not None:
            inputs = {**node.inputs, "x": norm.inputs["x"], "norm": norm.inputs["weight"]}
            nodes.append(Node(node.op, inputs, node.outputs, {**node.attrs, "eps": norm.attrs["eps"]}))
        elif node.outputs.get("y") not in folded:
            nodes.append(node)
    return graph.with_nodes(nodes)
