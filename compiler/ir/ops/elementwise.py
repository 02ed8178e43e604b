"""Ops on each element: add, scale, scale_rows, fake_quantize, activate, xielu, gate, gate_halves, clip, clamp,
soft_cap. Other ops may compute them as parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from .erf import erf
from .op import (
    ACTIVATIONS,
    DTYPE,
    FLOAT32,
    FLOATS,
    VECTOR,
    Array,
    Attr,
    Attrs,
    Bound,
    Inputs,
    Kinds,
    Op,
    Shapes,
    Type,
    Use,
    choice,
    count,
    positive,
    require,
)
from .parts import facts_of_part


def infer_add(shapes: Shapes, attrs: Attrs) -> Type:
    require(shapes["a"] == shapes["b"], "add", shapes)
    return shapes["a"], "float32"


def add(inputs: Inputs, attrs: Attrs) -> Array:
    """a + b, same shapes."""
    return inputs["a"] + inputs["b"]


def infer_scale(shapes: Shapes, attrs: Attrs) -> Type:
    require(shapes["factor"] == (1,), "scale", shapes)
    return shapes["x"], "float32"


def scale(inputs: Inputs, attrs: Attrs) -> Array:
    """x times one factor. x (S, N), factor (1,) -> like x."""
    y: Array = inputs["x"] * inputs["factor"][0]
    return y


def infer_scale_rows(shapes: Shapes, attrs: Attrs) -> Type:
    require(shapes["factors"] == shapes["x"][:1], "scale_rows", shapes)
    return shapes["x"], "float32"


def scale_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """Each row of x times its factor. x (S, N), factors (S,) -> like x."""
    y: Array = inputs["x"] * inputs["factors"][:, None]
    return y


def activate(inputs: Inputs, attrs: Attrs) -> Array:
    """activation(x). x (S, N) -> like x."""
    return ACTIVATION_FUNCTIONS[attrs["activation"]](inputs["x"])


def infer_xielu(shapes: Shapes, attrs: Attrs) -> Type:
    require(shapes["alphas"] == (4,), "xielu", shapes)
    return shapes["x"], "float32"


def xielu(inputs: Inputs, attrs: Attrs) -> Array:
    """p x^2 + b x for positive x, else n (exp(min(x, e)) - 1 - x) + b x. x (S, N), alphas (4,): p, n, b and e -> like
    x. Huang & Schlag 2024.
    """
    x, (p, n, b, e) = inputs["x"], inputs["alphas"]
    y: Array = np.where(x > 0, p * x * x, n * (np.expm1(np.minimum(x, e)) - x)) + b * x
    return y


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)). Hendrycks & Gimpel 2016."""
    # exp overflows to infinity below about -88, where silu is 0: the right limit.
    with np.errstate(over="ignore"):
        y: Array = x / (1 + np.exp(-x))
    return y


def gelu(x: Array) -> Array:
    """x times the normal distribution's cumulative probability of x. Hendrycks & Gimpel 2016."""
    y: Array = (0.5 * x * (1 + erf(x.astype(np.float64) / math.sqrt(2)))).astype(np.float32)
    return y


def gelu_tanh(x: Array) -> Array:
    """gelu, approximated: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    y: Array = 0.5 * x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)))
    return y


def relu2(x: Array) -> Array:
    """max(x, 0)^2. So et al. 2021."""
    y: Array = np.square(np.maximum(x, 0))
    return y


def relu(x: Array) -> Array:
    """max(x, 0)."""
    y: Array = np.maximum(x, 0)
    return y


def tanh(x: Array) -> Array:
    y: Array = np.tanh(x)
    return y


def asinh(x: Array) -> Array:
    y: Array = np.arcsinh(x)
    return y


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        y: Array = 1 / (1 + np.exp(-x))
    return y


ACTIVATION_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "silu": silu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "relu2": relu2,
        "relu": relu,
        "tanh": tanh,
        "asinh": asinh,
        "sigmoid": sigmoid,
        "none": lambda x: x,
    }
)
assert tuple(ACTIVATION_FUNCTIONS) == ACTIVATIONS


def infer_gate(shapes: Shapes, attrs: Attrs) -> Type:
    (rows, columns), (up_rows, up_columns) = shapes["gate"], shapes["up"]
    fits = isinstance(columns, int) and isinstance(up_columns, int) and attrs["start"] + columns <= up_columns
    require(rows == up_rows and fits, "gate", shapes)
    return shapes["gate"], "float32"


def gate(inputs: Inputs, attrs: Attrs) -> Array:
    """activation(gate) * up, as in `gated`. gate (S, N), up (S, M), read from column ``start`` on -> (S, N). Shazeer
    2020.
    """
    columns = slice(attrs["start"], attrs["start"] + inputs["gate"].shape[1])
    return gated(inputs["gate"].astype(np.float32), inputs["up"][:, columns].astype(np.float32), attrs)


def gated(gate: Array, up: Array, attrs: Attrs) -> Array:
    """activation(slope * gate) / slope * (up + shift), with gate and up below ``limit`` and up above -limit, if it is
    given. With silu, a slope of 1.702, a shift of 1 and a limit of 7, this is the gate of gpt-oss. OpenAI 2025.
    """
    limit, slope = attrs["limit"], np.float32(attrs["slope"])
    if limit is not None:
        gate, up = np.minimum(gate, np.float32(limit)), np.clip(up, np.float32(-limit), np.float32(limit))
    y: Array = ACTIVATION_FUNCTIONS[attrs["activation"]](slope * gate) / slope * (up + np.float32(attrs["shift"]))
    return y


def infer_gate_halves(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    require(isinstance(columns, int) and columns % 2 == 0, "gate_halves", shapes)
    return (rows, columns // 2), "float32"  # type: ignore[operator]


def gate_halves(inputs: Inputs, attrs: Attrs) -> Array:
    """activation(gate) * up, as in `gate`. x (S, 2F) holds gate in its left half and up in its right half -> (S, F)."""
    left, right = np.split(inputs["x"], 2, axis=1)
    return gated(left, right, attrs)


def soft_cap(inputs: Inputs, attrs: Attrs) -> Array:
    """cap * tanh(scale * x / cap); scale * x for a ``cap`` of None. x (S, N) -> like x. Gemma 2."""
    scaled: Array = inputs["x"] * np.float32(attrs["scale"])
    cap = attrs["cap"]
    return scaled if cap is None else np.float32(cap) * np.tanh(scaled / np.float32(cap))


def infer_fake_quantize(shapes: Shapes, attrs: Attrs) -> Type:
    return shapes["x"], attrs["dtype"]


def fake_quantize(inputs: Inputs, attrs: Attrs) -> Array:
    """Round x to multiples of ``scale``, ties to even, and clip to -128 to 127 times it. x (S, N) -> like x. Jacob et
    al. 2018.
    """
    scale = np.float32(attrs["scale"])
    y: Array = np.clip(np.rint(inputs["x"].astype(np.float32) / scale), -128, 127) * scale
    return y


def clip(inputs: Inputs, attrs: Attrs) -> Array:
    """x, but at least -limit and at most limit. x (S, N) -> like x."""
    limit = np.float32(attrs["limit"])
    y: Array = np.clip(inputs["x"].astype(np.float32), -limit, limit)
    return y


def infer_clamp(shapes: Shapes, attrs: Attrs) -> Type:
    require(shapes["bounds"] == (2,), "clamp", shapes)
    return shapes["x"], "float32"


def clamp(inputs: Inputs, attrs: Attrs) -> Array:
    """x, but at least the first bound, and then at most the second. x (S, N), bounds (2,) -> like x."""
    low, high = inputs["bounds"]
    y: Array = np.minimum(np.maximum(inputs["x"].astype(np.float32), low), high)
    return y


def infer_same(shapes: Shapes, attrs: Attrs) -> Type:
    return shapes["x"], "float32"


def elementwise(
    name: str,
    infer: Callable[[Shapes, Attrs], Type],
    compute: Callable[[Inputs, Attrs], Array],
    inputs: Mapping[str, Kinds],
    **attrs: Attr,
) -> Op:
    def facts(use: Use, bound: Bound) -> Mapping[str, Any]:
        (rows, columns), _ = infer(use.shapes, use.attrs)
        return {"rows": rows, "columns": columns, "part": facts_of_part(name, use.op, use.attrs, use.shapes)}

    return Op(infer, compute, inputs=inputs, attrs=attrs, facts=facts)


ACTIVATION = choice("silu", *ACTIVATIONS)
GATING = {
    "activation": ACTIVATION,
    "limit": positive(None),
    "slope": positive(1.0),
    "shift": Attr(0.0, "a number", lambda value: isinstance(value, int | float) and math.isfinite(value)),
}
OPS = {
    "add": elementwise("add", infer_add, add, {"a": FLOAT32, "b": FLOAT32}),
    "scale": elementwise("scale", infer_scale, scale, {"x": FLOAT32, "factor": VECTOR}),
    "scale_rows": elementwise("scale_rows", infer_scale_rows, scale_rows, {"x": FLOAT32, "factors": FLOAT32}),
    "fake_quantize": elementwise(
        "fake_quantize", infer_fake_quantize, fake_quantize, {"x": FLOATS}, scale=positive(), dtype=DTYPE
    ),
    "activate": elementwise("activate", infer_same, activate, {"x": FLOAT32}, activation=ACTIVATION),
    "xielu": elementwise("xielu", infer_xielu, xielu, {"x": FLOAT32, "alphas": VECTOR}),
    "gate": elementwise("gate", infer_gate, gate, {"gate": FLOAT32, "up": FLOATS}, **GATING, start=count(0)),
    "gate_halves": elementwise("gate_halves", infer_gate_halves, gate_halves, {"x": FLOAT32}, **GATING),
    "clip": elementwise("clip", infer_fake_quantize, clip, {"x": FLOATS}, limit=positive(), dtype=DTYPE),
    "clamp": elementwise("clamp", infer_clamp, clamp, {"x": FLOATS, "bounds": VECTOR}),
    "soft_cap": elementwise("soft_cap", infer_same, soft_cap, {"x": FLOAT32}, scale=positive(1.0), cap=positive(None)),
}
