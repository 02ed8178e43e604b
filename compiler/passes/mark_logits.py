"""adjust_logits -> adjust_logits, then mark_logits: the answers of the plan can have a watermark (`ir/watermark.py`).

A bundle that is compiled without it has neither the step nor its kernel.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Node, Value
from ..ir.watermark import COLUMNS, WATERMARK


def mark_logits(graph: Graph) -> Graph:
    nodes = list[Node]()
    for node in graph.nodes:
        if node.op == "sample":
            adjusted = node.inputs["adjusted"]
            marked = f"{adjusted}.marked"
            inputs = {
                "adjusted": adjusted,
                "token_ids": "token_ids",
                "rows": "sample_rows",
                "slots": node.inputs["slots"],
                "sampled": node.inputs["sampled"],
                "watermark": WATERMARK,
            }
            nodes.append(Node("mark_logits", inputs, {"y": marked}))
            nodes.append(Node("sample", {**node.inputs, "adjusted": marked}, node.outputs, node.attrs))
        else:
            nodes.append(node)
    states = {**graph.states, WATERMARK: Value(WATERMARK, (1, COLUMNS), "int32")}
    return replace(graph, states=states, values={}).with_nodes(nodes)
