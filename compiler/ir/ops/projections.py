"""Ops that multiply by a matrix: linear, add_lora."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .norms import LOAD, STORE
from .op import (
    DTYPE,
    FLOAT32,
    FLOATS,
    INTEGERS,
    MATRIX,
    REQUIRED,
    VECTOR,
    Array,
    Attr,
    Attrs,
    Bound,
    Inputs,
    Kinds,
    Op,
    Shapes,
    Sizes,
    Type,
    Use,
    count,
    facts_of_rows,
    require,
    require_use,
)
from .parts import Part


def infer_linear(shapes: Shapes, attrs: Attrs) -> Type:
    (rows, columns), (outputs, weight_columns) = shapes["x"], shapes["weight"]
    require(columns == weight_columns and LOAD.infer(shapes, attrs, loaded(shapes)) == loaded(shapes), "linear", shapes)
    halves = stores_halves(attrs["store"])
    require(isinstance(outputs, int) and outputs % (2 if halves else 1) == 0, "linear", shapes)
    width = attrs["columns"] or outputs // (2 if halves else 1)  # type: ignore[operator]
    biases = outputs if halves else width
    require(all(shapes[role][-1] == size for role, size in (("bias", biases), ("into", width)) if role in shapes),
            "linear", shapes)  # fmt: skip
    made = STORE.infer(shapes, attrs, ((rows, 2 * width if halves else width), attrs["dtype"]))
    require(made[0] == (rows, width), "linear", shapes)
    return (rows, width), attrs["dtype"]


def loaded(shapes: Shapes) -> Type:
    return shapes["x"], "float32"


def stores_halves(store: Sequence[Part]) -> bool:
    """Whether a projection stores gates times what they gate, which are the two halves of its outputs."""
    return bool(store) and store[0]["op"] == "gate_halves"


def linear(inputs: Inputs, attrs: Attrs) -> Array:
    """y = store(load(x) @ weight.T + bias): ``load`` and ``store`` are the parts of `parts.py`, in their order.

    x (S, K), weight (N, K), bias (N,) -> (S, N), or (S, N / 2) if the parts begin with gate_halves. A weight that is
    one part of a split by rows computes N of the ``columns`` outputs, from ``offset`` on (for gate_halves, N / 2 of
    them), and writes them into the result of the previous part. The inputs of ``store`` then cover all columns, and so
    does the bias, except for gate_halves.
    """
    part = LOAD.fold(inputs, attrs, inputs["x"].astype(np.float32)) @ inputs["weight"].T
    count, offset = part.shape[1] // (2 if stores_halves(attrs["store"]) else 1), attrs["offset"]
    here = slice(offset, offset + count)
    if "bias" in inputs:
        part = part + (inputs["bias"] if stores_halves(attrs["store"]) else inputs["bias"][here])
    return placed(STORE.fold(inputs, attrs, part, offset), inputs, attrs)


def placed(part: Array, inputs: Inputs, attrs: Attrs) -> Array:
    """The result that has these columns from ``offset`` on: those of the previous part, or zeros, beside them."""
    count, offset = part.shape[1], attrs["offset"]
    if attrs["columns"] in (None, count):
        return part
    y = inputs["into"] if "into" in inputs else np.zeros((len(part), attrs["columns"]), np.float32)
    y[:, offset : offset + count] = part
    return y


def attrs_of_part(attrs: Attrs, start: int, rows: int) -> dict[str, Any]:
    """The attributes of the part from row ``start`` on of a projection of ``rows``, which may be a part itself."""
    return {**attrs, "offset": attrs.get("offset", 0) + start, "columns": attrs.get("columns") or rows}


def check_columns(use: Use, sizes: Sizes) -> None:
    facts, columns = projection_sizes(use), use.attrs["columns"]
    fits = facts["offset"] + facts["outputs"] <= (columns or facts["outputs"])
    require_use(fits, "writes columns beyond the last one")


def projection_sizes(use: Use) -> dict[str, Any]:
    rows, columns = use.shapes["weight"]
    assert isinstance(rows, int)
    outputs = rows // 2 if stores_halves(use.attrs["store"]) else rows
    own = {"width": use.attrs["columns"] or 0, "offset": use.attrs["offset"], "bias": "bias" in use.shapes}
    return {"columns": columns, "outputs": outputs, **own}


def projection_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    """``load`` is what a kernel does with what it reads: everything if that is x, the rest if another kernel has stored
    the result of the first parts (`split_load`), nothing if the rows were prepared. ``norm`` and ``then`` are the first
    parts, for the kernel that computes them.
    """
    rows = use.shapes["x"][0]
    if set(bound.binds) == {"y"}:
        # The kernel in front of a part that fills the complete result with zeros.
        return {"rows": rows, "columns": use.attrs["columns"]}
    load = LOAD.facts(use.shapes, use.attrs)
    first, rest = split_load(load)
    reads_kept = any(role in bound.binds for role in LOAD.kept(use.attrs, loaded(use.shapes)))
    own = load if "x" in bound.binds else rest if reads_kept else []
    sizes = {**projection_sizes(use), "batch": rows, "rows": rows}
    parts = {"load": own, "store": STORE.facts(use.shapes, use.attrs)}
    return {**sizes, **parts, **({"norm": first[0], "then": first[1:]} if first else {})}


def split_load(load: list[Part]) -> tuple[list[Part], list[Part]]:
    """The parts up to the first that is kept, or those of the first norm; and the rest."""
    end = next((index + 1 for index, part in enumerate(load) if part["keep"]), None)
    if end is None:
        norms = [index for index, part in enumerate(load) if part["op"] == "rms_norm"]
        end = norms[1] if len(norms) > 1 else len(load)
    return load[:end], load[end:]


def infer_add_lora(shapes: Shapes, attrs: Attrs) -> Type:
    parts, (_, ranks, columns), (_, outputs, rank) = attrs["widths"], shapes["a"], shapes["b"]
    fits = shapes["x"][-1] == columns and shapes["into"][-1] == outputs == sum(parts) and ranks == rank * len(parts)
    require(fits, "add_lora", shapes)
    require(LOAD.infer(shapes, attrs, loaded(shapes)) == loaded(shapes), "add_lora", shapes)
    return shapes["into"], attrs["dtype"]


def add_lora(inputs: Inputs, attrs: Attrs) -> Array:
    """Add the change of each row's adapter to ``into``: load(x) @ a.T @ b.T, where each part of the columns has its own
    rows of a. Hu et al. 2021.

    x (S, K), adapters (S,), a (M, parts * rank, K), b (M, N, rank), into (S, N) -> (S, N).
    ``adapters`` index a and b, -1 for a row without an adapter; the attribute ``widths`` lists the columns of each
    part, N in all. If no row has an adapter, G is 0 and the step is skipped.
    """
    y, adapters, widths = inputs["into"], inputs["adapters"], attrs["widths"]
    x, rank = LOAD.fold(inputs, attrs, inputs["x"].astype(np.float32)), inputs["b"].shape[2]
    for adapter in set(adapters[adapters >= 0].tolist()):
        rows = np.flatnonzero(adapters == adapter)
        lows = x[rows] @ inputs["a"][adapter].T
        for part, stop in enumerate(np.cumsum(widths)):
            columns = slice(stop - widths[part], stop)
            y[rows, columns] += lows[:, part * rank : (part + 1) * rank] @ inputs["b"][adapter, columns].T
    return y


def add_lora_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {**facts_of_rows(use), "rank": use.shapes["b"][2], "load": LOAD.facts(use.shapes, use.attrs)}


WIDTHS = Attr(
    REQUIRED,
    "a list of positive integers",
    lambda value: bool(value) and all(type(each) is int and each > 0 for each in value),
)


def roles_of_parts(attrs: Attrs) -> Mapping[str, Kinds]:
    return {**LOAD.roles(attrs), **STORE.roles(attrs)}


OPS = {
    "linear": Op(
        infer_linear,
        linear,
        inputs={"x": FLOATS, "weight": MATRIX},
        optional={"bias": VECTOR, "into": FLOATS},
        attrs={
            "dtype": DTYPE,
            "load": LOAD.attr,
            "store": STORE.attr,
            "offset": count(0),
            "columns": count(None, least=1),
        },
        more=lambda shapes, attrs: LOAD.kept(attrs, loaded(shapes)),
        of_parts=roles_of_parts,
        facts=projection_facts,
        checks=(check_columns,),
        per_text=True,
    ),
    "add_lora": Op(
        infer_add_lora,
        add_lora,
        inputs={"x": FLOATS, "adapters": INTEGERS, "a": FLOAT32, "b": FLOAT32, "into": FLOATS},
        attrs={"widths": WIDTHS, "dtype": DTYPE, "load": LOAD.attr},
        of_parts=LOAD.roles,
        facts=add_lora_facts,
        states=("a", "b"),
    ),
}
