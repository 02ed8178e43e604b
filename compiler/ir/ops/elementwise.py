"""Ops on each element or each row: rms_norm, add, scale, fake_quantize, gate, gate_halves, soft_cap."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from .erf import erf
from .op import (
    ACTIVATIONS,
    CENTERED,
    DTYPE,
    EPS,
    FLOAT32,
    FLOATS,
    GATE,
    VECTOR,
    Array,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shapes,
    Type,
    Use,
    facts_of_rows,
    positive,
    require,
)


def infer_rms_norm(shapes: Shapes, attrs: Attrs) -> Type:
    width, columns = shapes["weight"][0], shapes["x"][1]
    require(isinstance(width, int) and isinstance(columns, int) and columns % width == 0, "rms_norm", shapes)
    added = "residual" not in shapes or (shapes["residual"] == shapes["x"] and attrs["dtype"] == "float32")
    require(added, "rms_norm", shapes)
    require("bias" not in shapes or shapes["bias"] == shapes["weight"], "rms_norm", shapes)
    require("factor" not in shapes or (shapes["factor"] == (1,) and "residual" in shapes), "rms_norm", shapes)
    return shapes["x"], attrs["dtype"]


def rms_norm(inputs: Inputs, attrs: Attrs) -> Array:
    """Scale groups of columns to unit root mean square, then by weight, and add a bias and a residual if there are
    any. The sum is multiplied by one ``factor`` if there is one. Zhang & Sennrich 2019.

    With ``centered``, the mean of each group is subtracted first, which is LayerNorm. Ba et al. 2016.

    x (S, n * E), weight (E,), bias (E,), residual like x, factor (1,) -> like x.
    """
    x, weight = inputs["x"].astype(np.float32), inputs["weight"]
    groups = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    if attrs.get("centered", False):
        groups = groups - np.mean(groups, axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True) + np.float32(attrs["eps"]))
    normed = groups * scale * weight
    y: Array = (normed + inputs["bias"] if "bias" in inputs else normed).reshape(x.shape)
    y = y + inputs["residual"] if "residual" in inputs else y
    return y * inputs["factor"][0] if "factor" in inputs else y


def rms_norm_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    facts, width = facts_of_rows(use), use.shapes["weight"][0]
    # Kernels that do not name the width of a group count the columns of one.
    columns = {"width": width} if "width" in bound.facts else {"columns": width, "groups": facts["columns"] // width}
    return {**facts, **columns, **{role: role in use.shapes for role in ("bias", "residual", "factor")}}


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


ACTIVATION_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "silu": silu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "relu2": relu2,
        "relu": relu,
        "tanh": tanh,
        "none": lambda x: x,
    }
)
assert tuple(ACTIVATION_FUNCTIONS) == ACTIVATIONS


def infer_gate(shapes: Shapes, attrs: Attrs) -> Type:
    require(shapes["gate"] == shapes["up"], "gate", shapes)
    return shapes["gate"], "float32"


def gate(inputs: Inputs, attrs: Attrs) -> Array:
    """activation(gate) * up, same shapes. Shazeer 2020."""
    activation = ACTIVATION_FUNCTIONS[attrs["activation"]]
    y: Array = activation(inputs["gate"].astype(np.float32)) * inputs["up"]
    return y


def infer_gate_halves(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    require(isinstance(columns, int) and columns % 2 == 0, "gate_halves", shapes)
    return (rows, columns // 2), "float32"  # type: ignore[operator]


def gate_halves(inputs: Inputs, attrs: Attrs) -> Array:
    """activation(gate) * up. x (S, 2F) holds gate in its left half and up in its right half -> (S, F)."""
    left, right = np.split(inputs["x"], 2, axis=1)
    return gate({"gate": left, "up": right}, attrs)


def gate_halves_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    facts = facts_of_rows(use)
    return {**facts, "columns": facts["columns"] // 2}


def infer_soft_cap(shapes: Shapes, attrs: Attrs) -> Type:
    return shapes["x"], "float32"


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


OPS = {
    "rms_norm": Op(
        infer_rms_norm,
        rms_norm,
        inputs={"x": FLOATS, "weight": VECTOR},
        optional={"bias": VECTOR, "residual": FLOAT32, "factor": VECTOR},
        attrs={"eps": EPS, "dtype": DTYPE, "centered": CENTERED},
        facts=rms_norm_facts,
        per_text=True,
    ),
    "scale": Op(infer_scale, scale, inputs={"x": FLOAT32, "factor": VECTOR}),
    "add": Op(infer_add, add, inputs={"a": FLOAT32, "b": FLOAT32}),
    "fake_quantize": Op(
        infer_fake_quantize,
        fake_quantize,
        inputs={"x": FLOATS},
        attrs={"scale": positive(), "dtype": DTYPE},
    ),
    "gate": Op(infer_gate, gate, inputs={"gate": FLOAT32, "up": FLOAT32}, attrs={"activation": GATE}),
    "gate_halves": Op(
        infer_gate_halves, gate_halves, inputs={"x": FLOAT32}, attrs={"activation": GATE}, facts=gate_halves_facts
    ),
    "soft_cap": Op(
        infer_soft_cap,
        soft_cap,
        inputs={"x": FLOAT32},
        attrs={"scale": positive(1.0), "cap": positive(None)},
    ),
}
