"""rope(rms_norm(x)) -> rope(x, norm): queries and keys that no append step prepares are normalized as they are
rotated.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node


def fuse_rope_norm(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        if node.op != "rope" or not node.has_only(inputs=("x", "positions", "table"), attrs=("head_dim", "dtype")):
            continue
        norm = makers.get(node.inputs["x"])
        if norm is None or norm.op != "rms_norm" or graph.only_user(node.inputs["x"]) is not node:
            continue
        if not norm.has_only(inputs=("x", "weight"), attrs=("eps", "dtype")):
            continue
        (width,) = graph.shape_of(norm.inputs["weight"])
        # A group of the norm has complete heads.
        if isinstance(width, int) and width % node.attr("head_dim") == 0:
            inputs = {**node.inputs, "x": norm.inputs["x"], "norm": norm.inputs["weight"]}
            replaced |= {
                id(norm): None,
                id(node): Node("rope", inputs, node.outputs, {**node.attrs, "eps": norm.attrs["eps"]}),
            }
    return graph.replace(replaced)
