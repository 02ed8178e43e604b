"""Ops that multiply by a matrix: linear, gated_linear, add_lora."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..expr import Expr
from .elementwise import ACTIVATION_FUNCTIONS, fake_quantize, gate, gate_halves, rms_norm
from .op import (
    ACTIVATIONS,
    CENTERED,
    DTYPE,
    FLOAT32,
    FLOATS,
    GATE,
    INTEGERS,
    KEEPS_NORM,
    MATRIX,
    NORM_EPS,
    REQUIRED,
    VECTOR,
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
    choice,
    count,
    facts_of_rows,
    positive,
    require,
    require_use,
)


def infer_linear(shapes: Shapes, attrs: Attrs) -> Type:
    (rows, columns), (outputs, weight_columns) = shapes["x"], shapes["weight"]
    require(columns == weight_columns, "linear", shapes)
    require_norm("linear", shapes, attrs)
    require("norm" not in shapes or attrs["x_step"] is None, "linear", shapes)
    width = attrs["columns"] or outputs
    require_up("linear", shapes, attrs, width)
    require_stream("linear", shapes, attrs)
    require(all(shapes[role][-1] == width for role in ("bias", "residual", "into") if role in shapes), "linear", shapes)
    return (rows, width), attrs["dtype"]


def linear(inputs: Inputs, attrs: Attrs) -> Array:
    """y = norm(x) @ weight.T + bias + residual; a term without its input is omitted. With ``up``, y is
    activation(norm(x) @ weight.T + bias) * N columns of up, from ``up_start`` on; with ``y_activation``, it is
    y_activation(norm(x) @ weight.T + bias) + residual. ``x_step`` and ``y_step`` round an input without a norm, and the
    result before its activation and the residual, as `fake_quantize` does. With ``stream``, x is first replaced by the
    residual stream after it, as `streamed` describes.

    x (S, K), weight (N, K), bias (N,), residual (S, N), norm (K,) with attribute eps, up (S, M) -> (S, N). With the
    attribute centered, the norm is a LayerNorm, which may have a norm_bias (K,); with keeps_norm, norm(x) is a further
    result, ``normed`` (S, K). A weight that is one part of a split by rows computes N of the ``columns`` outputs, from
    ``offset`` on, and writes them into the result of the previous part. bias, residual and up then cover all columns.
    """
    x = rounded(normed(streamed(inputs, attrs), attrs), attrs["x_step"])
    return store_part(x @ inputs["weight"].T, inputs, attrs, attrs["y_step"])


def streamed(inputs: Inputs, attrs: Attrs) -> Inputs:
    """The inputs with x replaced by ``summed`` if there is a ``stream``: the residual stream plus the norm of x, times
    the factor if there is one, which is a result as well.

    x (S, K), stream (S, K), stream_norm (K,) with attribute stream_eps, stream_factor (1,) -> summed (S, K). With the
    attribute eps, stream_norm is (2K,) and ends with the weights of the input's norm, so that a kernel binds one buffer
    for both.
    """
    if "stream" not in inputs:
        return inputs
    columns = inputs["x"].shape[1]
    weight, norm = inputs["stream_norm"][:columns], inputs["stream_norm"][columns:]
    added = {"x": inputs["x"], "weight": weight, "residual": inputs["stream"]}
    factor = {"factor": inputs["stream_factor"]} if "stream_factor" in inputs else {}
    inputs["summed"][...] = rms_norm({**added, **factor}, {"eps": attrs["stream_eps"]})
    return {**inputs, "x": inputs["summed"], **({"norm": norm} if len(norm) else {})}


def require_stream(op: str, shapes: Shapes, attrs: Attrs) -> None:
    """Require a step that adds the norm of its input to a residual stream to have all that this needs."""
    roles = ("stream" in shapes, "stream_norm" in shapes, attrs["stream_eps"] is not None)
    require(len(set(roles)) == 1, op, shapes)
    require("stream_factor" not in shapes or (roles[0] and shapes["stream_factor"] == (1,)), op, shapes)
    if "stream" in shapes:
        columns, norms = shapes["x"][1], 1 if attrs["eps"] is None else 2
        require(isinstance(columns, int) and shapes["stream_norm"] == (norms * columns,), op, shapes)
        require(shapes["stream"] == shapes["x"] and attrs.get("x_step") is None, op, shapes)
        require(not attrs["centered"], op, shapes)


def further_results(shapes: Shapes, attrs: Attrs) -> Mapping[str, Type]:
    """The further result of a projection with a residual stream, and of one that keeps its normalized input."""
    added = {"summed": "stream" in shapes, "normed": attrs["keeps_norm"]}
    return {role: (shapes["x"], "float32") for role, exists in added.items() if exists}


def rounded(x: Array, step: float | None) -> Array:
    return x if step is None else fake_quantize({"x": x}, {"scale": step})


def normed(inputs: Inputs, attrs: Attrs) -> Array:
    """x in float32, scaled by the norm whose weight is ``norm``, if there is one; also stored in ``normed`` if the
    attribute keeps_norm is set.
    """
    if "norm" not in inputs:
        return inputs["x"].astype(np.float32)
    bias = {"bias": inputs["norm_bias"]} if "norm_bias" in inputs else {}
    result = rms_norm({"x": inputs["x"], "weight": inputs["norm"], **bias}, attrs)
    if attrs.get("keeps_norm"):
        inputs["normed"][...] = result
    return result


def store_part(part: Array, inputs: Inputs, attrs: Attrs, step: float | None = None) -> Array:
    """Add bias and residual to a projection's columns and store them at their offset in the complete result."""
    offset, width = attrs["offset"], attrs["columns"] or part.shape[1]
    here = slice(offset, offset + part.shape[1])
    if "bias" in inputs:
        part = part + inputs["bias"][here]
    part = rounded(part, step)
    part = ACTIVATION_FUNCTIONS[attrs.get("y_activation", "none")](part)
    if "up" in inputs:
        start = offset + attrs["up_start"]
        up = inputs["up"][:, start : start + part.shape[1]]
        part = gate({"gate": part, "up": up}, {"activation": attrs["activation"]})
    if "residual" in inputs:
        part = part + inputs["residual"][:, here]
    if width == part.shape[1]:
        return part
    y = inputs["into"] if "into" in inputs else np.zeros((len(part), width), np.float32)
    y[:, here] = part
    return y


def require_up(op: str, shapes: Shapes, attrs: Attrs, width: Expr) -> None:
    """Require a projection that gates columns of another value to have nothing else that follows its bias."""
    if "up" not in shapes:
        require((attrs["up_start"], attrs["activation"]) == (0, "silu"), op, shapes)
        return
    rows, columns = shapes["up"]
    fits = isinstance(width, int) and isinstance(columns, int) and attrs["up_start"] + width <= columns
    require(fits and rows == shapes["x"][0], op, shapes)
    plain = attrs["y_step"] is None and attrs["y_activation"] == "none"
    require("residual" not in shapes and plain and attrs["dtype"] == "float32", op, shapes)


def require_norm(op: str, shapes: Shapes, attrs: Attrs) -> None:
    """Require a step that normalizes its input to have both the norm's weight, which is as long as a row, and its
    eps.
    """
    # That of a projection with a residual stream is a part of another input.
    require(("norm" in shapes) == (attrs["eps"] is not None and "stream" not in shapes), op, shapes)
    require("norm" not in shapes or shapes["norm"] == shapes["x"][1:], op, shapes)
    centered = attrs.get("centered", False)
    require(not centered or "norm" in shapes, op, shapes)
    require("norm_bias" not in shapes or (centered and shapes["norm_bias"] == shapes["norm"]), op, shapes)
    require(not attrs.get("keeps_norm") or (centered and isinstance(shapes["x"][1], int)), op, shapes)


def infer_gated_linear(shapes: Shapes, attrs: Attrs) -> Type:
    (rows, columns), (outputs, weight_columns) = shapes["x"], shapes["weight"]
    require(columns == weight_columns and isinstance(outputs, int) and outputs % 2 == 0, "gated_linear", shapes)
    require_norm("gated_linear", shapes, attrs)
    require_stream("gated_linear", shapes, attrs)
    require("bias" not in shapes or shapes["bias"][-1] == outputs, "gated_linear", shapes)
    return (rows, attrs["columns"] or outputs // 2), "float32"  # type: ignore[operator]


def gated_linear(inputs: Inputs, attrs: Attrs) -> Array:
    """y = activation(norm(x) @ gate.T) * (norm(x) @ up.T), where the weight (2F, E) is gate (F, E) stacked on up (F,
    E). Shazeer 2020.

    x (S, E), norm (E,), bias (2F,) -> (S, F), split by rows as in `linear`; each part has its own bias (2F of the
    part,). The norm and a ``stream`` are those of `linear`.
    """
    both = normed(streamed(inputs, attrs), attrs) @ inputs["weight"].T
    if "bias" in inputs:
        both = both + inputs["bias"]
    return store_part(
        gate_halves({"x": both}, attrs), {role: inputs[role] for role in ("into",) if role in inputs}, attrs
    )


def outputs_of(use: Use) -> int:
    """The columns that the weight computes: half its rows if these are gates and what they gate."""
    rows = use.shapes["weight"][0]
    assert isinstance(rows, int)
    return rows if use.op is OPS["linear"] else rows // 2


def check_columns(use: Use, sizes: Sizes) -> None:
    outputs, attrs = outputs_of(use), use.attrs
    require_use(attrs["offset"] + outputs <= (attrs["columns"] or outputs), "writes columns beyond the last one")


def projection_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    shapes, attrs = use.shapes, use.attrs
    # Other kernels read the sum that the one before them has stored.
    adds = "summed" in bound.writes
    return {
        "batch": shapes["x"][0],
        "columns": shapes["weight"][1],
        "outputs": outputs_of(use),
        "bias": "bias" in shapes,
        "residual": "residual" in shapes,
        "gated": use.op is OPS["gated_linear"],
        "width": attrs["columns"] or 0,
        "offset": attrs["offset"],
        "up_width": shapes["up"][1] if "up" in shapes else 0,
        "up_start": attrs.get("up_start", 0),
        "stream_eps": attrs["stream_eps"] if adds else None,
        "stream_factor": adds and "stream_factor" in shapes,
        "norm_row": 1 if "stream" in shapes and not adds else 0,
        "keeps_norm": "normed" in bound.writes,
    }


def infer_add_lora(shapes: Shapes, attrs: Attrs) -> Type:
    parts, (_, ranks, columns), (_, outputs, rank) = attrs["widths"], shapes["a"], shapes["b"]
    fits = shapes["x"][-1] == columns and shapes["into"][-1] == outputs == sum(parts) and ranks == rank * len(parts)
    require(fits, "add_lora", shapes)
    require_norm("add_lora", shapes, attrs)
    return shapes["into"], attrs["dtype"]


def add_lora(inputs: Inputs, attrs: Attrs) -> Array:
    """Add the change of each row's adapter to ``into``: norm(x) @ a.T @ b.T, where each part of the columns has its own
    rows of a. Hu et al. 2021.

    x (S, K), norm (K,) with attrs eps, adapters (S,), a (M, parts * rank, K), b (M, N, rank), into (S, N) -> (S, N).
    ``adapters`` index a and b, -1 for a row without an adapter; the attribute ``widths`` lists the columns of each
    part, N in all. If no row has an adapter, G is 0 and the step is skipped.
    """
    y, adapters, widths = inputs["into"], inputs["adapters"], attrs["widths"]
    x, rank = normed(inputs, attrs), inputs["b"].shape[2]
    for adapter in set(adapters[adapters >= 0].tolist()):
        rows = np.flatnonzero(adapters == adapter)
        lows = x[rows] @ inputs["a"][adapter].T
        for part, stop in enumerate(np.cumsum(widths)):
            columns = slice(stop - widths[part], stop)
            y[rows, columns] += lows[:, part * rank : (part + 1) * rank] @ inputs["b"][adapter, columns].T
    return y


def add_lora_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {**facts_of_rows(use), "rank": use.shapes["b"][2]}


WIDTHS = Attr(
    REQUIRED,
    "a list of positive integers",
    lambda value: bool(value) and all(type(each) is int and each > 0 for each in value),
)
SPLIT = {"offset": count(0), "columns": count(None, least=1)}
NORM = {"norm": VECTOR, "norm_bias": VECTOR}
STREAM = {"stream": FLOAT32, "stream_norm": VECTOR, "stream_factor": VECTOR}
OPS = {
    "linear": Op(
        infer_linear,
        linear,
        inputs={"x": FLOATS, "weight": MATRIX},
        optional={"bias": VECTOR, "residual": FLOAT32, **NORM, "up": FLOAT32, "into": FLOATS, **STREAM},
        attrs={
            "dtype": DTYPE,
            "eps": NORM_EPS,
            "centered": CENTERED,
            "keeps_norm": KEEPS_NORM,
            "x_step": positive(None),
            "y_step": positive(None),
            "activation": GATE,
            "y_activation": choice("none", *ACTIVATIONS),
            "up_start": count(0),
            "stream_eps": NORM_EPS,
            **SPLIT,
        },
        more=further_results,
        facts=projection_facts,
        checks=(check_columns,),
        per_text=True,
    ),
    "gated_linear": Op(
        infer_gated_linear,
        gated_linear,
        inputs={"x": FLOATS, "weight": MATRIX},
        optional={"bias": VECTOR, **NORM, "into": FLOAT32, **STREAM},
        attrs={
            "activation": GATE,
            "eps": NORM_EPS,
            "centered": CENTERED,
            "keeps_norm": KEEPS_NORM,
            "stream_eps": NORM_EPS,
            **SPLIT,
        },
        more=further_results,
        facts=projection_facts,
        checks=(check_columns,),
    ),
    "add_lora": Op(
        infer_add_lora,
        add_lora,
        inputs={"x": FLOATS, "adapters": INTEGERS, "a": FLOAT32, "b": FLOAT32, "into": FLOATS},
        optional={"norm": VECTOR},
        attrs={"widths": WIDTHS, "dtype": DTYPE, "eps": NORM_EPS},
        facts=add_lora_facts,
        states=("a", "b"),
    ),
}
