"""gate(linear(x), columns of z) -> linear(x, up=z): the projection gates columns of another value, as Gemma 4's layers
gate their second embedding.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node


def fuse_side_gate(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        if node.op != "gate" or not node.has_only(inputs=("gate", "up"), attrs=("activation",)):
            continue
        linear, up, start = makers.get(node.inputs["gate"]), node.inputs["up"], 0
        if linear is None or linear.op != "linear" or linear.attr("dtype") != "float32" or id(linear) in replaced:
            continue
        if not linear.has_only(inputs=("x", "weight", "bias"), attrs=("dtype", "x_step")):
            continue
        if node.inputs["gate"] == up or graph.only_user(node.inputs["gate"]) is not node:
            continue
        columns = makers.get(up)
        # A slice of another dtype would round.
        if (
            columns is not None
            and columns.op == "slice_columns"
            and graph.only_user(up) is node
            and columns.attr("dtype") == graph.kind_of(columns.inputs["x"]) == "float32"
        ):
            up, start = columns.inputs["x"], columns.attr("start")
            replaced[id(columns)] = None
        replaced[id(linear)] = None
        inputs, attrs = {**linear.inputs, "up": up}, {**linear.attrs, **node.attrs, "up_start": start}
        replaced[id(node)] = Node("linear", inputs, node.outputs, attrs)
    return graph.replace(replaced)
