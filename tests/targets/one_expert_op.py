"""Small graphs with one op each of a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from graph_builder import Build, Builder
from projection_parts import parts_of

from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.ops.op import DType

# Columns of x, outputs of a projection.
COLUMNS, OUTPUTS = 37, 45
# Experts, of which each row has some.
EXPERTS, CHOSEN = 5, 3


def expert_graphs() -> Iterator[tuple[str, str, Build]]:
    """As `graphs` of `one_op.py`."""
    yield "route", "softmax", partial(route, normalized=True)
    yield "route", "sigmoid", partial(route, router="sigmoid", scale=2.5, bias=True)
    yield "route", "softmax_chosen", partial(route, router="softmax_chosen", scales=True)
    yield "expert_linear", "shared_rows", expert_linear
    yield "expert_linear", "gated", partial(expert_linear, gated="silu", norm=True, bias=True)
    yield "expert_linear", "own_rows", partial(expert_linear, "activation", own_rows=True, bias=True)
    yield "expert_linear", "aligned", partial(expert_linear, outputs=48, gated="gelu_tanh", bias=True, limit=2.0)
    yield "expert_linear", "first_part", partial(expert_linear, outputs=32, columns=OUTPUTS, offset=7, bias=True)
    yield "combine", "plain", combine
    yield "combine", "residual", partial(combine, residual=True)


def route(*, bias: bool = False, scales: bool = False, **attrs: Any) -> Graph:
    graph = Builder()
    inputs = {
        "logits": graph.value("logits", ("S", EXPERTS)),
        "bias": graph.vector("bias", EXPERTS) if bias else None,
        "scales": graph.vector("scales", EXPERTS) if scales else None,
    }
    graph.outputs["weights"] = "y.weights"
    return graph.ends(graph.add("route", inputs, name="y", chosen=CHOSEN, **attrs))


def expert_linear(
    x_dtype: DType = "float32",
    *,
    outputs: int = OUTPUTS,
    own_rows: bool = False,
    norm: bool = False,
    bias: bool = False,
    gated: str | None = None,
    columns: int | None = None,
    offset: int = 0,
    limit: float | None = None,
) -> Graph:
    """``own_rows``: x has a row for each pair."""
    graph = Builder()
    pairs, rows = ["mul", "S", CHOSEN], outputs * (2 if gated else 1)
    parts = parts_of(
        COLUMNS, outputs, norm_eps=1e-3 if norm else None, gated=gated is not None, activation=gated or "", limit=limit
    )
    inputs = {
        "x": graph.value("x", (pairs if own_rows else "S", COLUMNS), x_dtype),
        "weight": graph.matrix("weight", EXPERTS * rows, COLUMNS),
        "chosen": graph.add("route", {"logits": graph.value("logits", ("S", EXPERTS))}, name="chosen", chosen=CHOSEN),
        "bias": graph.vector("bias", EXPERTS * rows) if bias else None,
        **graph.declare(parts),
    }
    own = {"experts": EXPERTS, "columns": columns, "offset": offset, "dtype": "float32", **parts.attrs}
    return graph.ends(graph.add("expert_linear", inputs, name="y", **own))


def combine(*, residual: bool = False) -> Graph:
    graph = Builder()
    inputs = {
        "x": graph.value("x", (["mul", "S", CHOSEN], COLUMNS)),
        "weights": graph.value("weights", ("S", CHOSEN)),
        "store0_b": graph.value("residual", ("S", COLUMNS)) if residual else None,
    }
    return graph.ends(graph.add("combine", inputs, name="y", store=[{"op": "add"}] if residual else []))
