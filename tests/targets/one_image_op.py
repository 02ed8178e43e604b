"""Small graphs with one op of pictures each: patches that mix rows of a table, blocks that become features, and
features in the places of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from graph_builder import Build, Builder
from one_attention_op import rope_table

from nearfar.compiler.ir.graph import Graph

COLUMNS, POSITIONS = 37, 40


def image_graphs() -> Iterator[tuple[str, str, Build]]:
    yield "mix_rows", "one", partial(mix_rows, 1)
    yield "mix_rows", "several", partial(mix_rows, 5)
    for mode in ("join", "mean"):
        yield "fold_rows", mode, partial(fold_rows, mode)
    yield "place_rows", "", place_rows
    yield "place_rows", "adds", partial(place_rows, width=3 * COLUMNS, first=COLUMNS, adds=True)
    yield "place_rows", "patches", partial(place_rows, batch="V", features="C", adds=True)
    yield "rope_rows", "tokens", partial(rope_rows, "S", 3, [[1, 1, 11, 3], [2, 2, 8, 3]])
    yield "rope_rows", "patches", partial(rope_rows, "V", 2, [[1, 6, 12, 1]])


def mix_rows(taps: int) -> Graph:
    graph = Builder()
    inputs = {
        "x": graph.value("x", ("V", COLUMNS)),
        "table": graph.matrix("table", POSITIONS, COLUMNS),
        "patch_rows": graph.value("patch_rows", ("V", taps), "int32"),
        "patch_weights": graph.value("patch_weights", ("V", taps)),
    }
    return graph.ends(graph.add("mix_rows", inputs, name="y"))


def fold_rows(mode: str) -> Graph:
    graph = Builder()
    return graph.ends(graph.add("fold_rows", {"x": graph.value("x", ("V", COLUMNS))}, name="y", size=4, mode=mode))


def rope_rows(rows: str, num_axes: int, axes: list[list[int]]) -> Graph:
    graph = Builder()
    inputs = {
        "table": rope_table(graph, 24),
        "axis_positions": graph.value("axis_positions", (rows, num_axes), "int32"),
    }
    return graph.ends(graph.add("rope_rows", inputs, name="y", axes=axes))


def place_rows(width: int = COLUMNS, batch: str = "S", features: str = "F", **attrs: Any) -> Graph:
    graph = Builder()
    x = {"a": graph.value("a", (batch, COLUMNS)), "b": graph.value("b", (batch, COLUMNS))}
    inputs = {
        "into": graph.add("add", x, name="z"),
        "features": graph.value("features", (features, width)),
        "feature_rows": graph.value("feature_rows", (features,), "int32"),
    }
    return graph.ends(graph.add("place_rows", inputs, name="y", **attrs))
