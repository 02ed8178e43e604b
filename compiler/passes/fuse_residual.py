"""add(linear(x), r) or add(r, linear(x))  ->  linear(x, residual=r), and the same for rms_norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.graph import Graph, Node

MAKERS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "linear": {
        "inputs": ("x", "weight", "bias", "norm", "norm_bias"),
        "attrs": ("dtype", "eps", "centered", "x_step", "y_step", "y_activation"),
    },
    "rms_norm": {"inputs": ("x", "weight"), "attrs": ("dtype", "eps")},
}


def fuse_residual(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        if node.op != "add" or not node.has_only(inputs=("a", "b")):
            continue
        for role, other in (("a", "b"), ("b", "a")):
            maker = makers.get(node.inputs[role])
            if maker is None or maker.op not in MAKERS or not maker.has_only(**MAKERS[maker.op]):
                continue
            if id(maker) in replaced:
                continue
            # In x + x, one user reads the value twice.
            if (
                maker.attr("dtype") == "float32"
                and graph.only_user(node.inputs[role]) is node
                and node.inputs[role] != node.inputs[other]
            ):
                replaced[id(maker)] = None
                residual = {"residual": node.inputs[other]}
                replaced[id(node)] = Node(maker.op, {**maker.inputs, **residual}, node.outputs, maker.attrs)
                break
    return graph.replace(replaced)
