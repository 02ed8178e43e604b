"""fake_quantize(linear(fake_quantize(x))) -> linear(x, x_step=, y_step=): the projection rounds its input as it reads
it, and its result as it writes it.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node


def fold_rounding(graph: Graph) -> Graph:
    makers = graph.makers()
    folded: set[int] = set()
    attrs: dict[int, dict[str, float]] = {}
    outputs: dict[int, dict[str, str]] = {}
    inputs: dict[int, dict[str, str]] = {}
    for node in graph.nodes:
        if node.op != "fake_quantize":
            continue
        x, y = node.inputs["x"], node.outputs["y"]
        users = graph.users(y)
        if users and y not in graph.outputs.values() and all(reads_only(user, y) for user in users):
            folded.add(id(node))
            for user in users:
                attrs.setdefault(id(user), {})["x_step"] = node.attrs["scale"]
                inputs[id(user)] = {**user.inputs, "x": x}
            continue
        linear = makers.get(x)
        if linear is None or linear.op != "linear" or not linear.has_only(inputs=("x", "weight", "bias"), attrs=ATTRS):
            continue
        if graph.only_user(x) is node and linear.attr("dtype") == node.attr("dtype"):
            folded.add(id(node))
            attrs.setdefault(id(linear), {})["y_step"] = node.attrs["scale"]
            outputs[id(linear)] = dict(node.outputs)
    nodes = []
    for node in graph.nodes:
        if id(node) in attrs:
            read, written = inputs.get(id(node), node.inputs), outputs.get(id(node), node.outputs)
            nodes.append(Node(node.op, read, written, {**node.attrs, **attrs[id(node)]}))
        elif id(node) not in folded:
            nodes.append(node)
    return graph.with_nodes(nodes)


ATTRS = ("dtype",)


def reads_only(node: Node, x: str) -> bool:
    """Whether a node is a projection without a norm that reads the value as its input, and nowhere else."""
    if node.op != "linear" or not node.has_only(inputs=("x", "weight", "bias"), attrs=ATTRS):
        return False
    return [role for role, name in node.inputs.items() if name == x] == ["x"]
