"""The op rms_norm, and what other ops load and store: parts on each element, and norms of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import elementwise
from .op import (
    CENTERED,
    DTYPE,
    EPS,
    FLOATS,
    VECTOR,
    Array,
    Attr,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shapes,
    Type,
    Use,
    count,
    require,
)
from .parts import Parts, facts_of_part

STORE = Parts("store", elementwise.OPS)
# The parts behind a norm: those between a sub-layer and the next one.
BEHIND_NORMS = Parts("store", {name: elementwise.OPS[name] for name in ("add", "scale")})


def infer_rms_norm(shapes: Shapes, attrs: Attrs) -> Type:
    (weights,), columns, row, groups = shapes["weight"], shapes["x"][1], attrs["row"], attrs["groups"]
    require(isinstance(weights, int) and isinstance(columns, int), "rms_norm", shapes)
    fits = columns % weights == 0 if row is None else weights >= (row + 1) * columns  # type: ignore[operator]
    # Groups with weights of their own.
    fits = fits if groups == 1 else row is None and weights == columns and columns % groups == 0
    require(fits and ("bias" not in shapes or shapes["bias"] == shapes["weight"]), "rms_norm", shapes)
    require(not attrs["store"] or attrs["dtype"] == "float32", "rms_norm", shapes)
    made = BEHIND_NORMS.infer(shapes, attrs, (shapes["x"], attrs["dtype"]))
    require(made[0] == shapes["x"], "rms_norm", shapes)
    return made


def rms_norm(inputs: Inputs, attrs: Attrs) -> Array:
    """Scale groups of columns to unit root mean square, then by weight, and add a bias if there is one. Zhang &
    Sennrich 2019.

    With ``centered``, the mean of each group is subtracted first, which is LayerNorm. Ba et al. 2016.

    x (S, n * E), weight (E,), bias (E,) -> like x. With attribute ``groups`` n, each group has its own weights (n * E,)
    and biases.
    """
    x, weight = inputs["x"].astype(np.float32), inputs["weight"]
    size = len(weight) // attrs.get("groups", 1)
    weight = weight.reshape(-1, size)
    groups = x.reshape(len(x), x.shape[1] // size, size)
    if attrs.get("centered", False):
        groups = groups - np.mean(groups, axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True) + np.float32(attrs["eps"]))
    normed = groups * scale * weight
    y: Array = (normed + inputs["bias"].reshape(-1, size) if "bias" in inputs else normed).reshape(x.shape)
    return y


def norm_then_store(inputs: Inputs, attrs: Attrs) -> Array:
    """rms_norm, then the parts of ``store``. With ``row``, whole rows are normalized, and the weights are that row of
    an array of the weights of several norms.
    """
    columns, row = inputs["x"].shape[1], attrs["row"]
    weight = inputs["weight"] if row is None else inputs["weight"][row * columns : (row + 1) * columns]
    return BEHIND_NORMS.fold(inputs, attrs, rms_norm({**inputs, "weight": weight}, attrs))


def rms_norm_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    rows, columns = use.shapes["x"]
    norm = facts_of_part("rms_norm", use.op, use.attrs, use.shapes)
    group = use.shapes["weight"][0] // use.attrs["groups"] if use.attrs["row"] is None else columns
    return {
        "rows": rows,
        "columns": columns,
        "group": group,
        "norm": norm,
        "then": BEHIND_NORMS.facts(use.shapes, use.attrs),
    }


ROW = Attr(None, "an integer of 0 or more", lambda value: type(value) is int and value >= 0)
OPS = {
    "rms_norm": Op(
        infer_rms_norm,
        norm_then_store,
        inputs={"x": FLOATS, "weight": VECTOR},
        optional={"bias": VECTOR},
        attrs={
            "eps": EPS,
            "dtype": DTYPE,
            "centered": CENTERED,
            "row": ROW,
            "groups": count(1, least=1),
            "store": BEHIND_NORMS.attr,
        },
        of_parts=BEHIND_NORMS.roles,
        facts=rms_norm_facts,
        per_text=True,
    ),
}
LOAD = Parts("load", {**elementwise.OPS, **OPS})
