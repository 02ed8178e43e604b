"""scale(rms_norm(x) + residual) -> rms_norm(x, residual, factor)."""

from __future__ import annotations

from ..ir.graph import Graph, Node


def fuse_scale(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        norm = makers.get(node.inputs.get("x", ""))
        if node.op != "scale" or norm is None or norm.op != "rms_norm":
            continue
        adds = "residual" in norm.inputs and norm.has_only(inputs=("x", "weight", "residual"), attrs=("eps", "dtype"))
        if adds and graph.only_user(node.inputs["x"]) is node:
            replaced[id(norm)] = None
            inputs = {**norm.inputs, "factor": node.inputs["factor"]}
            replaced[id(node)] = Node("rms_norm", inputs, node.outputs, norm.attrs)
    return graph.replace(replaced)
