"""y = gated_delta(causal_conv(x), x)  ->  y = convolved_delta(x), if both read one array."""

from __future__ import annotations

from ..ir.graph import Graph, Node
from ..ir.ops.states import ROWS

# What `convolved_delta` knows of a convolution.
CONVOLUTION = {"inputs": ("x", "weight", *ROWS), "attrs": ("activation", "start")}


def fuse_convolution(graph: Graph) -> Graph:
    makers, replaced = graph.makers(), dict[int, Node | None]()
    for node in graph.nodes:
        conv = makers.get(node.inputs["qkv"]) if node.op == "gated_delta" else None
        if conv is None or conv.op != "causal_conv" or not conv.has_only(**CONVOLUTION):
            continue
        if graph.only_user(node.inputs["qkv"]) is not node or conv.attr("activation") != "silu":
            continue
        if conv.inputs["x"] != node.inputs["abz"]:
            continue
        inputs = {role: name for role, name in node.inputs.items() if role not in ("qkv", "abz")}
        inputs |= {"x": conv.inputs["x"], "weight": conv.inputs["weight"], "conv": conv.inputs["state"]}
        attrs = {**node.attrs, "start": conv.attr("start")}
        replaced |= {id(conv): None, id(node): Node("convolved_delta", inputs, node.outputs, attrs)}
    return graph.replace(replaced)
