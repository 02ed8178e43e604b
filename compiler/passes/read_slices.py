"""y = op(slice_columns(x))  ->  y = op(x), for ops with states that can read some columns of a wider array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ..ir.graph import Graph, Node
from .fuse import is_plain_slice

# Op -> the role that may be wider, and the attributes that say where its columns begin.
STARTS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "causal_conv": ("x", ("start",)),
        "gated_delta": ("abz", ("a_start", "b_start", "z_start")),
        "ssm_scan": ("dt", ("dt_start", "z_start")),
    }
)


def read_slices(graph: Graph) -> Graph:
    makers, replaced = graph.makers(), dict[int, Node | None]()
    for node in graph.nodes:
        if node.op not in STARTS:
            continue
        role, starts = STARTS[node.op]
        part = makers.get(node.inputs[role])
        if part is None or not is_plain_slice(graph, part):
            continue
        here = {start: node.attr(start) for start in starts if node.attr(start) is not None}
        attrs = {**node.attrs, **{start: at + part.attrs["start"] for start, at in here.items()}}
        replaced[id(node)] = replace(node, inputs={**node.inputs, role: part.inputs["x"]}, attrs=attrs)
        replaced[id(part)] = None
    return graph.replace(replaced)
