"""A graph whose upper layers compute only the sampled rows, as one that computes every row in every layer.

An ONNX graph has one sequence axis for all its layers, and GroupQueryAttention needs as many queries as keys are new.
So all rows reach the last product, which computes the logits of the sampled ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from nearfar.compiler.arch.decoder import SAMPLED_INPUTS
from nearfar.compiler.ir.graph import Graph, Node

# For each input of sampled rows, the input that has the same values for all rows.
SEQUENCES = {"sample_positions": "positions", "sample_starts": "seq_starts", "sample_page_indptr": "page_indptr"}


def with_every_row(graph: Graph) -> Graph:
    """The graph itself if no layer computes only sampled rows."""
    if not SAMPLED_INPUTS.keys() & graph.inputs.keys():
        return graph
    inputs = {name: value for name, value in graph.inputs.items() if name not in SAMPLED_INPUTS}
    return replace(graph, inputs=inputs).with_nodes(every_row(graph))


def every_row(graph: Graph) -> Iterator[Node]:
    head = product_of_logits(graph)
    names: dict[str, str] = dict(SEQUENCES)
    for node in graph.nodes:
        if node.op == "take_rows":
            names[node.outputs["y"]] = names.get(node.inputs["x"], node.inputs["x"])
            continue
        given = renamed(node.inputs, names)
        if node is head:
            rows = f"{given['x']}.sampled"
            yield Node("take_rows", {"x": given["x"], "rows": "sample_rows"}, {"y": rows})
            given["x"] = rows
        yield replace(node, inputs=given)


def product_of_logits(graph: Graph) -> Node:
    makers = graph.makers()
    node = makers[graph.outputs["logits"]]
    while node.op != "linear":
        node = makers[node.inputs["x"]]
    return node


def renamed(inputs: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {role: names.get(name, name) for role, name in inputs.items()}
