"""A matrix with a plane that exceeds the largest binding -> parts by rows, and a step for each part."""

from __future__ import annotations

from functools import partial

from ..ir.graph import Graph, Parameter
from ..quant import Quantization, form_of
from .split_rows import split_rows


def split_large(graph: Graph, quantization: Quantization, max_binding_bytes: int) -> Graph:
    return split_rows(graph, partial(part_starts, quantization=quantization, max_binding_bytes=max_binding_bytes))


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
