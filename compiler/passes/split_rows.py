"""A matrix -> parts by rows, and a step for each part.

Each part of an embedding fills the rows of the tokens that it holds. Each part of a projection fills its columns of the
result. A stack of experts, or of both halves of a gated projection, is split into parts that have the same rows of
each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from ..ir.graph import Graph, Node, Parameter, Source
from ..ir.ops.projections import attrs_of_part, stores_halves

# The first row of each part of a matrix. A row counts once for all matrices that are stacked in it, whose number is the
# second argument.
StartsOf = Callable[[Parameter, int], Sequence[int]]


def split_rows(graph: Graph, starts_of: StartsOf) -> Graph:
    """Part i of a parameter x is named "x.part{i}"."""
    nodes: list[Node] = []
    parameters: list[Parameter] = []
    for node in graph.nodes:
        role = {"embed": "table", "linear": "weight", "expert_linear": "weight"}.get(node.op)
        matrix = graph.parameters[node.inputs[role]] if role else None
        stacked = num_stacked(node)
        starts = starts_of(matrix, stacked) if matrix else [0]
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
            outputs = {result_role: result if stop == rows else f"{result}.part{index}"}
            if index:
                inputs["into"] = f"{result}.part{index - 1}"
            attrs = {**node.attrs, "first_row": start} if node.op == "embed" else attrs_of_part(node.attrs, start, rows)
            nodes.append(Node(node.op, inputs, outputs, attrs))
    return graph.with_nodes(nodes, parameters)


def num_stacked(node: Node) -> int:
    """The number of matrices that are stacked in a node's weight and compute the same columns."""
    if node.op not in ("linear", "expert_linear"):
        return 1
    experts: int = node.attr("experts") if node.op == "expert_linear" else 1
    return experts * (2 if stores_halves(node.attr("store")) else 1)


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
