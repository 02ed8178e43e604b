"""linear(rms_norm(x)) -> linear(x, norm=...): the projection normalizes its input as it reads it.

y = W (x * g / rms(x)) is (W (x * g)) / rms(x), so a kernel sums squares along with its dot products and divides once at
the end.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node

PROJECTIONS = {
    "linear": ("x", "weight", "bias", "residual"),
    "gated_linear": ("x", "weight", "bias"),
}
ATTRS = ("dtype", "activation", "y_step", "y_activation")


def fuse_norm(graph: Graph) -> Graph:
    folded: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op != "rms_norm" or not node.has_only(inputs=("x", "weight"), attrs=("eps", "dtype")):
            continue
        y = node.outputs["y"]
        users = graph.users(y)
        whole_row = graph.shape_of(node.inputs["x"])[1:] == graph.shape_of(node.inputs["weight"])
        # Fuse only a float32 result: a rounded result must stay rounded.
        folds = users and y not in graph.outputs.values() and all(accepts_norm(user, y) for user in users)
        if whole_row and node.attr("dtype") == "float32" and folds:
            folded[y] = node
    nodes = []
    for node in graph.nodes:
        norm = folded.get(node.inputs.get("x", "")) if node.op in PROJECTIONS else None
        if norm is not None:
            inputs = {**node.inputs, "x": norm.inputs["x"], "norm": norm.inputs["weight"]}
            nodes.append(Node(node.op, inputs, node.outputs, {**node.attrs, "eps": norm.attrs["eps"]}))
        elif node.outputs.get("y") not in folded:
            nodes.append(node)
    return graph.with_nodes(nodes)


def accepts_norm(node: Node, x: str) -> bool:
    """Whether a node is a projection that reads the value as its input, and nowhere else, and has no norm yet."""
    if node.op not in PROJECTIONS or not node.has_only(inputs=PROJECTIONS[node.op], attrs=ATTRS):
        return False
    return [role for role, name in node.inputs.items() if name == x] == ["x"]
