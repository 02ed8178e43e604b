"""A matrix with a plane that exceeds the largest binding -> parts by rows, and a step for each part.

Each part of an embedding fills the rows of the tokens that it holds. Each part of a projection fills its columns of the
result.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Node, Parameter, Source
from ..ir.ops.projections import stores_halves
from ..quant import Quantization, form_of


def split_large(graph: Graph, quantization: Quantization, max_binding_bytes: int) -> Graph:
    nodes: list[Node] = []
    parameters: list[Parameter] = []
    for node in graph.nodes:
        role = {"embed": "table", "linear": "weight"}.get(node.op)
        matrix = graph.parameters[node.inputs[role]] if role else None
        halves = 2 if node.op == "linear" and stores_halves(node.attr("store")) else 1
        starts = part_starts(matrix, halves, quantization, max_binding_bytes) if matrix else [0]
        if matrix is None or role is None or len(starts) == 1:
            nodes.append(node)
            continue
        rows = matrix.rows // halves
        for index, (start, stop) in enumerate(zip(starts, [*starts[1:], rows], strict=True)):
            inputs = dict(node.inputs)
            for split_role in (role, "bias") if halves == 2 and "bias" in inputs else (role,):
                part = take_rows(graph.parameters[inputs[split_role]], index, start, stop, halves)
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


def part_starts(matrix: Parameter, halves: int, quantization: Quantization, max_binding_bytes: int) -> list[int]:
    """The first row of each part, for the fewest parts of nearly equal size that fit. A row of a gated weight counts
    once for both halves.
    """
    assert matrix.columns is not None
    widest = max(plane.row_bytes for plane in form_of(matrix.form, quantization).planes(matrix.columns))
    rows = matrix.rows // halves
    # Even numbers of rows align the f16 scales of every part to 32-bit words.
    fitting = max_binding_bytes // (widest * halves) // 2 * 2
    assert fitting > 0, f"two rows of {matrix.name} are larger than a binding of {max_binding_bytes} bytes"
    count = -(-rows // fitting)
    size = -(-rows // count)
    size += size % 2
    return list(range(0, rows, size))


def take_rows(parameter: Parameter, index: int, start: int, stop: int, halves: int) -> Parameter:
    """Rows [start, stop) of each half of a parameter, as a parameter of its own."""
    rows = parameter.rows // halves
    sources: list[Source] = []
    for half in range(halves):
        sources += slice_sources(parameter.sources, half * rows + start, half * rows + stop)
    return replace(parameter, name=f"{parameter.name}.part{index}", sources=tuple(sources))


def slice_sources(sources: tuple[Source, ...], start: int, stop: int) -> list[Source]:
    sliced = []
    first = 0
    for source in sources:
        length = source.stop - source.start
        low, high = max(start - first, 0), min(stop - first, length)
        if low < high:
            sliced.append(replace(source, start=source.start + low, stop=source.start + high))
        first += length
    return sliced
