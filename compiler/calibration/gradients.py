"""The gradients of the ops of a graph before the passes, in numpy: from the gradient of a node's result to those of its
inputs.

``GRADIENTS[op](inputs, attrs, gradient)`` returns the gradients by role, each with the shape of its input. Matrices of
projections are left out: `tape.py` gives their inputs and the gradients of their results to its visitor instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from ..ir.ops import Array
from ..ir.ops.attention import attention_weights, position_factors, read_sequences
from ..ir.ops.erf import erf
from ..ir.ops.op import Attrs, Inputs

Gradient: TypeAlias = Callable[[Inputs, Attrs, Array], dict[str, Array]]


def rms_norm(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:
    x, weight = inputs["x"], inputs["weight"]
    groups = x.reshape(len(x), -1, len(weight))
    if attrs["centered"]:
        groups = groups - groups.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.mean(groups * groups, axis=-1, keepdims=True) + np.float32(attrs["eps"]))
    unit = groups * scale
    y = gradient.reshape(groups.shape)
    inner = y * weight
    back = scale * (inner - unit * np.mean(inner * unit, axis=-1, keepdims=True))
    if attrs["centered"]:
        back = back - back.mean(axis=-1, keepdims=True)
    found = {"x": back.reshape(x.shape), "weight": (y * unit).sum(axis=(0, 1))}
    return found | {"bias": y.sum(axis=(0, 1))} if "bias" in inputs else found


def add(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:  # noqa: ARG001
    return {"a": gradient, "b": gradient}


def scale(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:  # noqa: ARG001
    return {"x": gradient * inputs["factor"][0], "factor": np.array([np.vdot(gradient, inputs["x"])], np.float32)}


def silu_slope(x: Array) -> tuple[Array, Array]:
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-x))
    return x * share, share * (1 + x * (1 - share))


def gelu_slope(x: Array) -> tuple[Array, Array]:
    cumulative = (0.5 * (1 + erf(x.astype(np.float64) / math.sqrt(2)))).astype(np.float32)
    return x * cumulative, cumulative + x * np.exp(-0.5 * x * x) * np.float32(1 / math.sqrt(2 * math.pi))


def gelu_tanh_slope(x: Array) -> tuple[Array, Array]:
    factor, cubic = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)
    bend = np.tanh(factor * (x + cubic * x * x * x))
    slope = 0.5 * (1 + bend) + 0.5 * x * (1 - bend * bend) * factor * (1 + 3 * cubic * x * x)
    return 0.5 * x * (1 + bend), slope


def relu2_slope(x: Array) -> tuple[Array, Array]:
    positive = np.maximum(x, 0)
    return positive * positive, 2 * positive


# Each activation's value and slope.
SLOPES: Mapping[str, Callable[[Array], tuple[Array, Array]]] = MappingProxyType(
    {
        "silu": silu_slope,
        "gelu": gelu_slope,
        "gelu_tanh": gelu_tanh_slope,
        "relu2": relu2_slope,
        "none": lambda x: (x, np.ones_like(x)),
    }
)


def gate(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:
    value, slope = SLOPES[attrs["activation"]](inputs["gate"])
    return {"gate": gradient * inputs["up"] * slope, "up": gradient * value}


def activate(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:
    return {"x": gradient * SLOPES[attrs["activation"]](inputs["x"])[1]}


def soft_cap(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:
    factor, cap = np.float32(attrs["scale"]), attrs["cap"]
    if cap is None:
        return {"x": gradient * factor}
    bend = np.tanh(inputs["x"] * factor / np.float32(cap))
    return {"x": gradient * factor * (1 - bend * bend)}


def take_rows(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:  # noqa: ARG001
    back = np.zeros_like(inputs["x"])
    np.add.at(back, inputs["rows"], gradient)
    return {"x": back}


def slice_columns(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:
    back = np.zeros_like(inputs["x"])
    back[:, attrs["start"] : attrs["stop"]] = gradient
    return {"x": back}


def embed(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:  # noqa: ARG001
    return {}


def linear(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:  # noqa: ARG001
    found = {"x": gradient @ inputs["weight"]}
    return found | {"bias": gradient.sum(axis=0)} if "bias" in inputs else found


def rope(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:
    table = inputs["table"][inputs["positions"]]
    cosine, sine = table[:, None, :, 0], table[:, None, :, 1]
    half = table.shape[1]
    heads = gradient.reshape(len(gradient), -1, attrs["head_dim"])
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    back = np.concatenate([low * cosine + high * sine, high * cosine - low * sine, rest], axis=-1)
    return {"x": back.reshape(gradient.shape) * position_factors(inputs["positions"], attrs)[:, None]}


def attention(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:
    """The gradient of ``kv`` is that of all pages."""
    kv, page_size = inputs["kv"], inputs["kv"].shape[3]
    kv_back, q_back = np.zeros_like(kv), np.empty_like(inputs["q"])
    for sequence in read_sequences(inputs, attrs):
        part, rows, keys = attention_weights(sequence, inputs, attrs), sequence.rows, sequence.keys
        values, weights, page_ids = part.values, part.weights, sequence.pages
        assert page_ids is not None
        num_kv_heads, length, head_dim = keys.shape
        group = q_back.shape[1] // (num_kv_heads * head_dim)

        def by_head(x: Array, heads: int = num_kv_heads, each: int = group, width: int = head_dim) -> Array:
            """(S, H * D) -> (K, S * group, D)."""
            return x.reshape(len(x), heads, each, width).swapaxes(0, 1).reshape(heads, -1, width)

        y = by_head(gradient[rows])
        values_back = weights.swapaxes(1, 2) @ y
        scores = y @ values.swapaxes(1, 2)
        scores = weights * (scores - (scores * weights).sum(axis=-1, keepdims=True))
        if part.bend is not None:
            scores *= part.bend
        scores *= part.scale
        keys_back = scores.swapaxes(1, 2) @ by_head(inputs["q"][rows])
        back = (scores @ keys).reshape(num_kv_heads, -1, group, head_dim).swapaxes(0, 1)
        q_back[rows] = back.reshape(len(back), -1)
        place = np.arange(length)
        page, row = page_ids[place // page_size], place % page_size
        kv_back[page, 0, :, row] += keys_back.swapaxes(0, 1)
        kv_back[page, 1, :, row] += values_back.swapaxes(0, 1)
    return {"q": q_back, "kv": kv_back}


def append_kv(inputs: Inputs, attrs: Attrs, gradient: Array) -> dict[str, Array]:  # noqa: ARG001
    """``gradient`` is that of the pages."""
    page, row = np.divmod(inputs["slots"], gradient.shape[3])
    return {role: gradient[page, plane, :, row].reshape(inputs[role].shape) for plane, role in enumerate(("k", "v"))}


# The attributes that a gradient supports, if those are not all.
SUPPORTED = MappingProxyType({"gate": ("activation",)})
# The inputs that each gradient covers; a node with others has none.
GRADIENTS: Mapping[str, tuple[Gradient, tuple[str, ...]]] = MappingProxyType(
    {
        "rms_norm": (rms_norm, ("x", "weight", "bias")),
        "add": (add, ("a", "b")),
        "scale": (scale, ("x", "factor")),
        "gate": (gate, ("gate", "up")),
        "activate": (activate, ("x",)),
        "soft_cap": (soft_cap, ("x",)),
        "take_rows": (take_rows, ("x", "rows")),
        "slice_columns": (slice_columns, ("x",)),
        "embed": (embed, ("table", "token_ids", "sampled")),
        "linear": (linear, ("x", "weight", "bias")),
        "rope": (rope, ("x", "positions", "table")),
        "attention": (attention, ("q", "kv", "positions", "seq_starts", "page_indptr", "page_ids", "sinks")),
        "append_kv": (append_kv, ("k", "v", "kv", "slots")),
    }
)
