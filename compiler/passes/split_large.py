"""A matrix with a plane that exceeds the largest binding -> parts by rows, and a step for each part.

Each part of an embedding fills the rows of the tokens that it holds. Each part of a projection fills its columns of the
result. A stack of experts, or of both halves of a gated projection, is split into parts that have the same rows of
each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from ..ir.graph import Graph, Node, Parameter, Source
from ..ir.ops.projections import stores_halves
from ..quant import Quantization, form_of


def split_large(graph: Graph, quantization: Quantization, max_binding_bytes: int) -> Graph:
    nodes: list[Node] = []
    parameters: list[Parameter] = []
    for node in graph.nodes:
        role = {"embed": "table", "linear": "weight", "expert_linear": "weight"}.get(node.op)
        matrix = graph.parameters[node.inputs[role]] if role else None
        stacked = num_stacked(node)
        starts = part_starts(matrix, stacked, quantization, max_binding_bytes) if matrix else [0]
        if matrix is None or role is None or len(starts) == 1:
            nodes.append(node)
            continue
        rows = matrix.rows // stacked
        for index, (start, stop) in enumerate(zip(starts, [*starts[1:], rows], strict=True)):
            inputs = dict(node.inputs)
            for split_role in (role, "bias") if stacked > 1 and "bias" in inputs else (role,):
                part = take_rows(graph.parameters[inputs[split_role]], index, start, stop, stacked)
                parameters.append(part)
                inputs[split_role] = part.name
            (result_role, result), *_ = node.outputs.items()
            last = stop == rows
            attrs = {"first_row": start} if node.op == "embed" else {"offset": start, "columns": rows}
            outputs = {result_role: result if last else f"{result}.part{index}"}
            if index:
                inputs["into"] = f"{result}.part{index - 1}"
            nodes.append(Node(node.op, inputs, outputs, {**node.attrs, **attrs}))
    return graph.with_nodes(nodes, parameters)


def num_stacked(node: Node) -> int:
    """The number of matrices that are stacked in a node's weight and compute the same columns."""
    if node.op not in ("linear", "expert_linear"):
        return 1
    experts: int = node.attr("experts") if node.op == "expert_linear" else 1
    return experts * (2 if stores_halves(node.attr("store")) else 1)


def part_starts(matrix: Parameter, stacked: int, quantization: Quantization, max_binding_bytes: int) -> list[int]:
    """The first row of each part, for the fewest parts of nearly equal size that fit. A row counts once for all
    ``stacked`` matrices.
    """
    assert matrix.columns is not None
    widest = max(plane.row_bytes for plane in form_of(matrix.form, quantization).planes(matrix.columns))
    rows = matrix.rows // stacked
    # Even numbers of rows align the f16 scales of every part to 32-bit words.
    fitting = max_binding_bytes // (widest * stacked) // 2 * 2
    assert fitting > 0, f"two rows of {matrix.name} are larger than a binding of {max_binding_bytes} bytes"
    count = -(-rows // fitting)
    size = -(-rows // count)
    size += size % 2
    return list(range(0, rows, size))


def take_rows(parameter: Parameter, index: int, start: int, stop: int, stacked: int) -> Parameter:
    """Rows [start, stop) of each matrix that is stacked in a parameter, as a parameter of its own."""
    rows = parameter.rows // stacked
    ends = row_ends(parameter.sources)
    sources: list[Source] = []
    for matrix in range(stacked):
        sources += slice_sources(parameter.sources, ends, matrix * rows + start, matrix * rows + stop)
    return replace(parameter, name=f"{parameter.name}.part{index}", sources=tuple(sources))


def row_ends(sources: Iterable[Source]) -> list[int]:
    """The row of a parameter at which each of its sources ends."""
    return list(accumulate(source.stop - source.start for source in sources))


def slice_sources(sources: Sequence[Source], ends: Sequence[int], start: int, stop: int) -> Iterator[Source]:
    """The sources of rows [start, stop); ``ends`` are their `row_ends`."""
    for index in range(bisect_right(ends, start), len(sources)):
        source, last = sources[index], ends[index]
        first = last - (source.stop - source.start)
        if first >= stop:
            return
        low, high = max(start - first, 0), min(stop - first, last - first)
        yield replace(source, start=source.start + low, stop=source.start + high)
