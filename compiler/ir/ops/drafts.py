"""Ops of the heads with which a model drafts its own tokens: keep_rows, join_kept. DeepSeek-AI 2024 (multi-token
prediction).

Two memories hold normed rows of a last layer: that of the model has one for each token of the pages, that of the heads
one for each slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import pages
from .norms import rms_norm
from .op import (
    ACTIVATION,
    FLOAT32,
    INTEGERS,
    NORM_EPS,
    VECTOR,
    Array,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shapes,
    Sizes,
    Type,
    Use,
    require,
    require_use,
)


def infer_keep_rows(shapes: Shapes, attrs: Attrs) -> Type:
    columns = shapes["x"][1:]
    require(shapes["kept"][-1:] == columns and shapes.get("weight", columns) == columns, "keep_rows", shapes)
    require(("slots" in shapes) != ("sample_slots" in shapes), "keep_rows", shapes)
    require("rows" not in shapes or "slots" in shapes, "keep_rows", shapes)
    require(("weight" in shapes) == (attrs["eps"] is not None), "keep_rows", shapes)
    return (), "float32"


def keep_rows(inputs: Inputs, attrs: Attrs) -> None:
    """Store each row's `rms_norm`, or without a weight the row itself, in the memory, at its slot; rows without a slot
    (-1) are not stored.

    x (S, E), weight (E,), kept (PH, page, E), slots (S,), for all tokens, or with rows (R,) x (R, E) for those; or
    x (R, E), kept (N, E), sample_slots (R, 2), of which the first column counts. A memory of PH = 0 pages keeps
    nothing.
    """
    kept = inputs["kept"]
    if not kept.size:
        return
    slots = inputs["slots"] if "slots" in inputs else inputs["sample_slots"][:, 0]
    slots = slots[inputs["rows"]] if "rows" in inputs else slots
    rows = rms_norm(inputs, attrs) if "weight" in inputs else inputs["x"]
    kept.reshape(-1, kept.shape[-1])[slots[slots >= 0]] = rows[slots >= 0]


def check_keep_rows(use: Use, sizes: Sizes) -> None:
    by_token = "slots" in use.shapes
    columns = use.shapes["x"][1]
    expected = (pages.KEPT_PAGES, sizes.page_size, columns) if by_token else ("N", columns)
    require_use(use.shapes["kept"] == expected, f"kept is {list(use.shapes['kept'])}; it must be {list(expected)}")
    rows = "S" if by_token and "rows" not in use.shapes else "R"
    require_use(use.shapes["x"][0] == rows, "must keep the rows of the slots")


def keep_rows_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    by_token = "slots" in use.shapes
    normed = "weight" in use.shapes
    rows, columns = use.shapes["x"]
    return {"rows": rows, "columns": columns, "eps": use.attrs["eps"], "by_token": by_token, "normed": normed}


def infer_join_kept(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    require(shapes["kept"][-1] == columns and shapes["own"][-1] == columns, "join_kept", shapes)
    require(isinstance(columns, int) and shapes["kept_rows"] == (rows,), "join_kept", shapes)
    return (rows, 2 * columns), "float32"


def join_kept(inputs: Inputs, attrs: Attrs) -> Array:
    """Each row of x, then a row that was kept: row i >= 0 of the model's memory, or row -1 - i of the heads' own.

    x (S, E), kept (PH, page, E), own (N, E), kept_rows (S,) -> (S, 2 * E).
    """
    rows, columns = inputs["kept_rows"], inputs["x"].shape[1]
    kept = inputs["kept"].reshape(-1, columns)[np.maximum(rows, 0)]
    own = inputs["own"][np.maximum(-1 - rows, 0)]
    return np.concatenate([inputs["x"], np.where(rows[:, None] >= 0, kept, own)], axis=1, dtype=np.float32)


def check_join_kept(use: Use, sizes: Sizes) -> None:
    rows, columns = use.shapes["x"]
    require_use(rows == "S", "must join rows of tokens")
    expected: Mapping[str, tuple[Any, ...]] = {
        "kept": (pages.KEPT_PAGES, sizes.page_size, columns),
        "own": ("N", columns),
    }
    for role, shape in expected.items():
        require_use(use.shapes[role] == shape, f"{role} is {list(use.shapes[role])}; it must be {list(shape)}")


OPS = {
    "keep_rows": Op(
        infer_keep_rows,
        keep_rows,
        inputs={"x": FLOAT32, "kept": ACTIVATION},
        optional={"weight": VECTOR, "slots": INTEGERS, "rows": INTEGERS, "sample_slots": INTEGERS},
        attrs={"eps": NORM_EPS},
        result=None,
        facts=keep_rows_facts,
        checks=(check_keep_rows,),
        states=("kept",),
        names={"sample_slots": "sample_slots"},
    ),
    "join_kept": Op(
        infer_join_kept,
        join_kept,
        inputs={"x": FLOAT32, "kept": ACTIVATION, "own": ACTIVATION, "kept_rows": INTEGERS},
        checks=(check_join_kept,),
        states=("kept", "own"),
        names={"kept_rows": pages.KEPT_ROWS},
    ),
}
