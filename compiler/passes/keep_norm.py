"""n = LayerNorm(x), then a projection of n and other readers  ->  one projection that normalizes x and also stores n.

Models with norms behind their residual additions need it: a sub-layer reads the normalized stream, and so does the
addition of its result.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node
from .fuse_norm import LAYER_NORM, accepts_norm


def keep_norm(graph: Graph) -> Graph:
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        if node.op != "rms_norm" or not node.attr("centered") or node.attr("dtype") != "float32":
            continue
        if not node.has_only(inputs=("x", *LAYER_NORM), attrs=("eps", "dtype", "centered")):
            continue
        y = node.outputs["y"]
        whole_row = graph.shape_of(node.inputs["x"])[1:] == graph.shape_of(node.inputs["weight"])
        first = next(iter(graph.users(y)), None)
        # A kernel that stores a row cannot also read it as the residual of a part of another row.
        if not whole_row or first is None or not accepts_norm(first, y):
            continue
        norm = {own: node.inputs[role] for role, own in LAYER_NORM.items() if role in node.inputs}
        inputs = {**first.inputs, "x": node.inputs["x"], **norm}
        attrs = {**first.attrs, "eps": node.attrs["eps"], "centered": True, "keeps_norm": True}
        replaced |= {id(node): None, id(first): Node(first.op, inputs, {**first.outputs, "normed": y}, attrs)}
    return graph.replace(replaced)
