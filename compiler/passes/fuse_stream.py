"""s = rms_norm(x) + residual, then a projection of s  ->  one projection that also computes s.

Models with norms behind their sub-layers need it: the next projection reads a sub-layer's result, normalizes it, adds
the residual stream, and stores the sum for later readers.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node, Parameter
from .stack import module_of, stack_parameters

PROJECTIONS = {
    "linear": ("x", "weight", "bias", "norm", "up", "into"),
    "gated_linear": ("x", "weight", "bias", "norm", "into"),
}


def fuse_stream(graph: Graph) -> Graph:
    replaced: dict[int, Node | None] = {}
    parameters: dict[str, Parameter] = {}
    for node in graph.nodes:
        if node.op != "rms_norm" or "residual" not in node.inputs:
            continue
        if not node.has_only(inputs=("x", "weight", "residual", "factor"), attrs=("eps", "dtype")):
            continue
        whole_row = graph.shape_of(node.inputs["x"])[1:] == graph.shape_of(node.inputs["weight"])
        first = next(iter(graph.users(node.outputs["y"])), None)
        if not whole_row or first is None or not reads_only_as_input(first, node.outputs["y"]):
            continue
        roles = {"x": "x", "weight": "stream_norm", "residual": "stream", "factor": "stream_factor"}
        inputs = {**first.inputs, **{roles[role]: name for role, name in node.inputs.items()}}
        if "norm" in inputs:
            names = [inputs["stream_norm"], inputs.pop("norm")]
            inputs["stream_norm"] = stack_parameters(graph, parameters, names, f"{module_of(node)}.norms")
        outputs = {**first.outputs, "summed": node.outputs["y"]}
        attrs = {**first.attrs, "stream_eps": node.attrs["eps"]}
        replaced |= {id(node): None, id(first): Node(first.op, inputs, outputs, attrs)}
    return graph.replace(replaced, parameters.values())


def reads_only_as_input(node: Node, x: str) -> bool:
    """Whether a node is a projection that reads the value as its input, and nowhere else, and neither rounds it nor has
    a LayerNorm.
    """
    if node.op not in PROJECTIONS or not node.inputs.keys() <= set(PROJECTIONS[node.op]):
        return False
    if node.attrs.keys() & {"x_step", "centered"}:
        return False
    return [role for role, name in node.inputs.items() if name == x] == ["x"]
