"""The lookup of each token's row in a table of embeddings -> an input with these rows, which the host gathers.

The table, which may be larger than all other weights, then takes no memory of the device. The architecture marks such
tables (`Parameter.host`). It is split by rows, so that a runtime can check and store it in pieces, as any other weight.
"""

from __future__ import annotations

from ..ir.graph import Gathered, Graph, Node, Parameter, Value
from ..quant import Quantization
from .split_large import part_starts
from .split_rows import take_rows

# The largest plane of a part.
PART_BYTES = 16 << 20


def gather_on_host(graph: Graph, quantization: Quantization) -> Graph:
    inputs, gathered, parts = dict(graph.inputs), dict(graph.gathered), dict[str, Parameter]()
    moved: dict[int, None] = {}
    for node in graph.nodes:
        if not is_lookup(graph, node):
            continue
        table, (name,) = graph.parameters[node.inputs["table"]], node.outputs.values()
        own = parts_of(table, quantization)
        parts |= {part.name: part for part in own}
        value = graph.values[name]
        inputs[name] = Value(name, value.shape, value.dtype)
        gathered[name] = Gathered(tuple(part.name for part in own), node.attr("scale"))
        moved[id(node)] = None
    if not moved:
        return graph
    known = Graph(inputs, graph.states, graph.constants, graph.parameters, outputs=graph.outputs, gathered=gathered)
    return known.with_nodes([node for node in graph.nodes if id(node) not in moved], parts.values())


def is_lookup(graph: Graph, node: Node) -> bool:
    """Whether a node looks up the rows of the new tokens in a table that may stay on the host, and that no other node
    reads.
    """
    if node.op != "embed" or not node.has_only(inputs=("table", "token_ids", "sampled"), attrs=("scale",)):
        return False
    table = node.inputs["table"]
    return graph.parameters[table].host and len(graph.users(table)) == 1 and node.inputs["token_ids"] == "token_ids"


def parts_of(table: Parameter, quantization: Quantization) -> list[Parameter]:
    starts = part_starts(table, 1, quantization, PART_BYTES)
    if len(starts) == 1:
        return [table]
    ends = [*starts[1:], table.rows]
    return [take_rows(table, index, *rows, 1) for index, rows in enumerate(zip(starts, ends, strict=True))]
