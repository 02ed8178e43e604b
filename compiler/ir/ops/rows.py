"""Ops that look up rows or slice columns: embed, take_rows, slice_columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .op import (
    DTYPE,
    FLOAT32,
    FLOATS,
    INTEGERS,
    MATRIX,
    Array,
    Attr,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shapes,
    Sizes,
    Type,
    Use,
    count,
    facts_of_rows,
    positive,
    require,
    require_array,
    require_use,
)


def infer_embed(shapes: Shapes, attrs: Attrs) -> Type:
    return (shapes["token_ids"][0], shapes["table"][1]), "float32"


def embed(inputs: Inputs, attrs: Attrs) -> Array:
    """y[s] = scale * table[token - first_row] if that row is in the table; other rows are those of ``into``, or zero.

    The token is token_ids[s]. If that is negative, it is the token last sampled in slot -1 - token_ids[s]; without
    ``sampled``, no token is negative. table (rows, E), token_ids (S,), sampled (N,), into (S, E) -> (S, E). A table
    that is split by rows is looked up one part after the other.
    """
    table, token_ids = inputs["table"], inputs["token_ids"]
    if "sampled" in inputs:
        token_ids = np.where(token_ids < 0, inputs["sampled"][np.maximum(-1 - token_ids, 0)], token_ids)
    rows = token_ids - (attrs["first_row"] or 0)
    y = inputs["into"] if "into" in inputs else np.zeros((len(rows), table.shape[1]), np.float32)
    here = (rows >= 0) & (rows < len(table))
    y[here] = table[rows[here]] * np.float32(attrs["scale"])
    return y


def check_embed(use: Use, sizes: Sizes) -> None:
    """The table, or its part, has a row for every token that is looked up in it."""
    (rows, columns), first, vocabulary = use.shapes["table"], use.attrs["first_row"], sizes.spec.vocab_size
    fits = rows == vocabulary if first is None else first + rows <= vocabulary
    require_use(fits, f"table has {rows} rows")
    require_use(use.shapes.get("into", ("S", columns)) == ("S", columns), "has an 'into' of another shape")


def check_sampled(use: Use, sizes: Sizes) -> None:
    if "sampled" in use.shapes:
        require_array(use, "sampled", ("N",), "int32")


def infer_take_rows(shapes: Shapes, attrs: Attrs) -> Type:
    return (shapes["rows"][0], shapes["x"][1]), "float32"


def take_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """y[r] = x[rows[r]]. x (S, E), rows (R,) -> (R, E)."""
    taken: Array = inputs["x"][inputs["rows"]]
    return taken


def check_rows_of_tokens(use: Use, sizes: Sizes) -> None:
    require_use(use.shapes["x"][0] == "S", "must take rows of tokens")


def take_rows_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {**facts_of_rows(use), "batch": "R"}


def infer_slice_columns(shapes: Shapes, attrs: Attrs) -> Type:
    start, stop, columns = attrs["start"], attrs["stop"], shapes["x"][1]
    require(isinstance(columns, int) and start < stop <= columns, "slice_columns", shapes)
    return (shapes["x"][0], stop - start), attrs["dtype"]


def slice_columns(inputs: Inputs, attrs: Attrs) -> Array:
    """Columns [start, stop) of x (S, N)."""
    return inputs["x"][:, attrs["start"] : attrs["stop"]]


# A table that is not split has no first_row: it has a row for every token id.
FIRST_ROW = Attr(None, "an integer of 0 or more", lambda value: type(value) is int and value >= 0)
OPS = {
    "embed": Op(
        infer_embed,
        embed,
        inputs={"table": MATRIX, "token_ids": INTEGERS},
        optional={"sampled": INTEGERS, "into": FLOAT32},
        attrs={"first_row": FIRST_ROW, "scale": positive(1.0)},
        checks=(check_sampled, check_embed),
        states=("sampled",),
    ),
    "take_rows": Op(
        infer_take_rows,
        take_rows,
        inputs={"x": FLOAT32, "rows": INTEGERS},
        facts=take_rows_facts,
        checks=(check_rows_of_tokens,),
    ),
    "slice_columns": Op(
        infer_slice_columns,
        slice_columns,
        inputs={"x": FLOATS},
        attrs={"start": count(), "stop": count(least=1), "dtype": DTYPE},
    ),
}
