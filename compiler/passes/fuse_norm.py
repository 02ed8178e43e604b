"""linear(rms_norm(x)) -> linear(x, norm=...): the projection normalizes its input as it reads it.

y = W (x * g / rms(x)) is (W (x * g)) / rms(x), so a kernel sums squares along with its dot products and divides once at
the end. LayerNorms are a pass of their own, because a LoRA adapter reads only inputs with an RMS norm.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node

PROJECTIONS = {
    "linear": ("x", "weight", "bias", "residual"),
    "gated_linear": ("x", "weight", "bias"),
}
ATTRS = ("dtype", "activation", "y_step", "y_activation")
# The inputs of a node that normalizes, and those of the projection that replaces it.
RMS_NORM = {"weight": "norm"}
LAYER_NORM = {"weight": "norm", "bias": "norm_bias"}


def fuse_norm(graph: Graph) -> Graph:
    return fold_norms(graph, RMS_NORM, centered=False)


def fuse_layer_norm(graph: Graph) -> Graph:
    return fold_norms(graph, LAYER_NORM, centered=True)


def fold_norms(graph: Graph, roles: dict[str, str], *, centered: bool) -> Graph:
    folded: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op != "rms_norm" or node.attr("centered") != centered:
            continue
        if not node.has_only(inputs=("x", *roles), attrs=("eps", "dtype", "centered")):
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
            weights = {own: norm.inputs[role] for role, own in roles.items() if role in norm.inputs}
            attrs = {name: value for name, value in norm.attrs.items() if name != "dtype"}
            inputs = {**node.inputs, "x": norm.inputs["x"], **weights}
            nodes.append(Node(node.op, inputs, node.outputs, {**node.attrs, **attrs}))
        elif node.outputs.get("y") not in folded:
            nodes.append(node)
    return graph.with_nodes(nodes)


def accepts_norm(node: Node, x: str) -> bool:
    """Whether a node is a projection that reads the value as its input, and nowhere else, and has no norm yet."""
    if node.op not in PROJECTIONS or not node.has_only(inputs=PROJECTIONS[node.op], attrs=ATTRS):
        return False
    return [role for role, name in node.inputs.items() if name == x] == ["x"]
