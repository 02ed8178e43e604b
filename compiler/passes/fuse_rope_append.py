"""Slices of a joint q/k/v projection, q/k norm, rotation of q and k, append of k and v  ->  rope_append."""

from __future__ import annotations

from ..ir.graph import Graph, Node, Parameter
from .stack import module_of, stack_parameters


def fuse_rope_append(graph: Graph) -> Graph:
    makers = {name: node for node in graph.nodes for name in node.outputs.values()}
    replaced: dict[int, Node | None] = {}
    parameters: list[Parameter] = []
    for append in graph.nodes:
        if append.op != "append_kv":
            continue
        attention = next(node for node in graph.nodes if node.op == "attention" and node.inputs["kv"] == append.inputs["kv"])
        q, k = (trace_back(makers, name) for name in (attention.inputs["q"], append.inputs["k"]))
        v = makers[append.inputs["v"]]
        slices = [q[-1], k[-1], v]
        if any(node.op != "slice_columns" or node.inputs["x"] != v.inputs["x"] for node in slices):
            continue
        rotation = q[0]
        inputs = {
            "qkv": v.inputs["x"],
            "positions": rotation.inputs["positions"],
            "table": rotation.inputs["table"],
            "slots": append.inputs["slots"],
            "kv": append.inputs["kv"],
        }
        attrs = {}
        if len(q) == 3:
            # One vector, because a kernel may bind no more than eight buffers.
            norms = stack_parameters(graph, [each[1].inputs["weight"] for each in (q, k)], f"{module_of(q[1])}.qk_norm.weight")
            parameters.append(norms)
            inputs["qk_norm"] = norms.name
            attrs = {"eps": q[1].attrs["eps"]}
        replaced |= {id(node): None for node in (*q, *k, v)}
        replaced[id(append)] = Node("rope_append", inputs, {"q": attention.inputs["q"]}, attrs)
    nodes = (replaced.get(id(node), node) for node in graph.nodes)
    return graph.with_nodes([node for node in nodes if node is not None], parameters)


def trace_back(makers: dict[str, Node], name: str) -> list[Node]:
    """The chain that made a rotated value, last op first: rope, rms_norm where there is one, and what fed them."""
    chain = [makers[name]]
    while chain[-1].op in ("rope", "rms_norm"):
        chain.append(makers[chain[-1].inputs["x"]])
    return chain
