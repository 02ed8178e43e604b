"""Ops of a mixture of experts: route chooses experts for each row, expert_linear projects with the weights of those
chosen, combine sums their results.

Each row has ``chosen`` experts, and a (row, chosen expert) is a pair: pair j of row s is row s * chosen + j of an array
of pairs. The weights of all experts are stacked by rows in one matrix. Shazeer et al. 2017; Lepikhin et al. 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .norms import BEHIND_NORMS, LOAD, STORE
from .op import (
    DTYPE,
    FLOAT32,
    FLOATS,
    INTEGERS,
    MATRIX,
    VECTOR,
    Array,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shape,
    Shapes,
    Type,
    Use,
    choice,
    count,
    positive,
    require,
)
from .projections import (
    check_columns,
    infer_linear,
    loaded,
    placed,
    projection_facts,
    roles_of_parts,
)

# How scores are made of logits: of all experts, each by itself, or of the chosen ones.
ROUTERS = ("softmax", "sigmoid", "softmax_chosen")


def infer_route(shapes: Shapes, attrs: Attrs) -> Type:
    rows, experts = shapes["logits"]
    require(isinstance(experts, int) and attrs["chosen"] <= experts, "route", shapes)
    vectors = (shapes[role] for role in ("bias", "scales") if role in shapes)
    require(all(each == (experts,) for each in vectors), "route", shapes)
    return (rows, attrs["chosen"]), "int32"


def route_weights(shapes: Shapes, attrs: Attrs) -> Mapping[str, Type]:
    return {"weights": ((shapes["logits"][0], attrs["chosen"]), "float32")}


def route(inputs: Inputs, attrs: Attrs) -> Array:
    """The ``chosen`` experts with the highest scores of each row, the best first, equal ones in their order; and the
    weights of their results.

    Scores are softmax(logits), sigmoid(logits), or for "softmax_chosen" the logits, of whose chosen ones the softmax
    is the weights. ``bias`` is added to scores for the choice only (DeepSeek-AI 2024). ``normalized`` weights are
    divided by their sum; then they are multiplied by ``scale`` and by the ``scales`` of their experts.

    logits (S, E), bias (E,), scales (E,) -> (S, chosen) int32, weights (S, chosen).
    """
    scores = scores_of(inputs["logits"], attrs["router"])
    by = scores + inputs["bias"] if "bias" in inputs else scores
    chosen = np.argsort(-by, axis=1, kind="stable")[:, : attrs["chosen"]].astype(np.int32)
    weights = np.take_along_axis(scores, chosen, axis=1)
    if attrs["router"] == "softmax_chosen":
        weights = softmax(weights)
    if attrs["normalized"]:
        weights = weights / weights.sum(axis=1, keepdims=True)
    weights = weights * np.float32(attrs["scale"])
    inputs["weights"][...] = weights * inputs["scales"][chosen] if "scales" in inputs else weights
    return chosen


def scores_of(logits: Array, router: str) -> Array:
    if router == "softmax":
        return softmax(logits)
    # exp overflows to infinity below about -88, where sigmoid is 0: the right limit.
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits)) if router == "sigmoid" else logits


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    y: Array = powers / powers.sum(axis=1, keepdims=True)
    return y


def route_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    rows, experts = use.shapes["logits"]
    given = {role: role in use.shapes for role in ("bias", "scales")}
    return {**use.attrs, **given, "rows": rows, "experts": experts}


def infer_expert_linear(shapes: Shapes, attrs: Attrs) -> Type:
    pairs, (weight_rows, columns), experts = pairs_of(shapes["chosen"]), shapes["weight"], attrs["experts"]
    fits = isinstance(weight_rows, int) and weight_rows % experts == 0
    require(fits and shapes["x"][0] in (shapes["chosen"][0], pairs), "expert_linear", shapes)
    require("bias" not in shapes or shapes["bias"] == (weight_rows,), "expert_linear", shapes)
    require("into" not in shapes or shapes["into"][0] == pairs, "expert_linear", shapes)
    require(not LOAD.kept(attrs, loaded(shapes)), "expert_linear", shapes)
    # That of one expert, for the rows of all pairs.
    own = {role: shape for role, shape in shapes.items() if role not in ("chosen", "bias")}
    own |= {"x": (pairs, shapes["x"][1]), "weight": (weight_rows // experts, columns)}
    return infer_linear(own, attrs)


def pairs_of(chosen: Shape) -> Any:
    return ["mul", *chosen]


def expert_linear(inputs: Inputs, attrs: Attrs) -> Array:
    """y = store(load(x) @ W[e].T + b[e]) for each pair, where e is the pair's expert.

    x (S, K), or (S * chosen, K) with a row for each pair; weight (experts * N, K), bias (experts * N,), chosen
    (S, chosen) -> (S * chosen, N). See `projections.linear` for ``load``, ``store`` and weights that are split: a
    part has the same rows of all experts, and so has its bias. The row of a pair with the expert -1 remains what it
    was, so that a GPU which holds some of the experts at a time can compute the pairs in turns.
    """
    weight, chosen = inputs["weight"], inputs["chosen"].reshape(-1)
    x = LOAD.fold(inputs, attrs, inputs["x"].astype(np.float32))
    rows = x if len(x) == len(chosen) else np.repeat(x, inputs["chosen"].shape[1], axis=0)
    each = len(weight) // attrs["experts"]
    part = np.zeros((len(chosen), each), np.float32)
    for expert in np.unique(chosen[chosen >= 0]):
        here, mine = slice(expert * each, (expert + 1) * each), chosen == expert
        part[mine] = rows[mine] @ weight[here].T + (inputs["bias"][here] if "bias" in inputs else 0)
    y = STORE.fold(inputs, attrs, part, attrs["offset"])
    first, left_out = attrs["offset"], chosen < 0
    before = inputs["into"][left_out, first : first + y.shape[1]] if "into" in inputs else None
    y[left_out] = (np.nan if attrs["columns"] in (None, y.shape[1]) else 0) if before is None else before
    return placed(y, inputs, attrs)


def expert_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    """Those of a projection of all pairs with one expert's weights, and ``experts``, which describes the others."""
    (weight_rows, columns), (tokens, chosen), experts = (
        use.shapes["weight"],
        use.shapes["chosen"],
        use.attrs["experts"],
    )
    assert isinstance(weight_rows, int)
    one = Use(use.op, {**use.shapes, "weight": (weight_rows // experts, columns)}, use.kinds, use.attrs)
    own = {"count": experts, "chosen": chosen, "tokens": tokens, "shares_rows": use.shapes["x"][0] == tokens}
    # A kernel without the weights prepares the rows of x.
    prepares = "x" in bound.binds and "weight" not in bound.binds
    rows = use.shapes["x"][0] if prepares else pairs_of(use.shapes["chosen"])
    return {**projection_facts(one, bound), "batch": rows, "rows": rows, "experts": own}


def check_expert_columns(use: Use, sizes: Any) -> None:
    rows, columns = use.shapes["weight"]
    one = {**use.shapes, "weight": (rows // use.attrs["experts"], columns)}
    check_columns(Use(use.op, one, use.kinds, use.attrs), sizes)


def infer_combine(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    require(rows == pairs_of(shapes["weights"]), "combine", shapes)
    result: Type = ((shapes["weights"][0], columns), "float32")
    require(BEHIND_NORMS.infer(shapes, attrs, result) == result, "combine", shapes)
    return result


def combine(inputs: Inputs, attrs: Attrs) -> Array:
    """store(y), where y[s] is the sum of weights[s, j] * x[s * chosen + j] over the chosen j.

    x (S * chosen, N), weights (S, chosen) -> (S, N).
    """
    weights = inputs["weights"]
    pairs = inputs["x"].reshape(*weights.shape, -1)
    return BEHIND_NORMS.fold(inputs, attrs, np.einsum("sjn,sj->sn", pairs, weights))


def combine_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    rows, chosen = use.shapes["weights"]
    store = BEHIND_NORMS.facts(use.shapes, use.attrs)
    return {"rows": rows, "chosen": chosen, "columns": use.shapes["x"][1], "store": store}


OPS = {
    "route": Op(
        infer_route,
        route,
        inputs={"logits": FLOAT32},
        optional={"bias": VECTOR, "scales": VECTOR},
        attrs={
            "chosen": count(least=1),
            "router": choice("softmax", *ROUTERS),
            "normalized": choice(False, False, True),
            "scale": positive(1.0),
        },
        result="chosen",
        more=route_weights,
        facts=route_facts,
    ),
    "expert_linear": Op(
        infer_expert_linear,
        expert_linear,
        inputs={"x": FLOATS, "weight": MATRIX, "chosen": INTEGERS},
        optional={"bias": VECTOR, "into": FLOATS},
        attrs={
            "experts": count(least=1),
            "dtype": DTYPE,
            "load": LOAD.attr,
            "store": STORE.attr,
            "offset": count(0),
            "columns": count(None, least=1),
        },
        of_parts=roles_of_parts,
        facts=expert_facts,
        checks=(check_expert_columns,),
    ),
    "combine": Op(
        infer_combine,
        combine,
        inputs={"x": FLOAT32, "weights": FLOAT32},
        attrs={"store": BEHIND_NORMS.attr},
        of_parts=BEHIND_NORMS.roles,
        facts=combine_facts,
    ),
}
