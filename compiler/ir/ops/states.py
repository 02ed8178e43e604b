"""Ops with a state for each sequence: causal_conv, gated_delta, convolved_delta, ssm_scan.

A state is (Z, ..), float32: Z slots, each with what a layer remembers of one sequence. ``state_slots`` (B, 2) says for
each sequence of a batch from which slot its state is read and into which the state after its last new row is written.
A sequence whose first new row has position 0 starts from zeros and reads no slot. All slots are read before one is
written; no sequence writes a slot that another one of the batch reads or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from ..expr import Expr
from ..pages import STATE_SLOTS, STATES
from .elementwise import sigmoid, silu
from .op import (
    EPS,
    FLOAT32,
    INTEGERS,
    VECTOR,
    Array,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shape,
    Shapes,
    Sizes,
    Type,
    Use,
    choice,
    count,
    require,
    require_array,
    require_use,
)

# An array, or its shape.
Given = TypeVar("Given")
# Added to the sum of squares of a query or key before its root.
L2_EPS: Final = np.float32(1e-6)


def infer_causal_conv(shapes: Shapes, attrs: Attrs) -> Type:
    (rows, columns), (_, kept, channels) = shapes["x"], shapes["state"]
    require(isinstance(columns, int) and isinstance(channels, int), "causal_conv", shapes)
    fits = attrs["start"] + channels * (3 if attrs["gated"] else 1) <= columns and kept != 0
    fits = fits and shapes["weight"] == (channels * (kept + 1),)  # type: ignore[operator]
    require(fits and shapes.get("bias", (channels,)) == (channels,), "causal_conv", shapes)
    return (rows, channels), "float32"


def causal_conv(inputs: Inputs, attrs: Attrs) -> Array:
    """Each channel's weighted sum of its last k inputs: y[s] = activation(bias + sum_j weight[:, j] x[s - k + 1 + j]).

    x (S, C), weight (C * k,), which is (C, k) row after row, bias (C,), state (Z, k - 1, C): the inputs before a
    sequence's new rows, oldest first -> (S, C). x may have more columns; those from ``start`` on are read. If it is
    ``gated``, x has the columns of b, c and u: the inputs are b * u, and the sums are multiplied by c.
    """
    _, kept, columns = inputs["state"].shape
    x, k = inputs["x"][:, attrs["start"] :][:, : 3 * columns if attrs["gated"] else columns], kept + 1
    if attrs["gated"]:
        b, c, u = np.split(x, 3, axis=1)
        x = b * u
    weight, bias = inputs["weight"].reshape(-1, k), inputs.get("bias", np.float32(0))
    y = np.empty_like(x)

    def run(rows: slice, state: Array) -> Array:
        known = np.concatenate([state, x[rows]])
        length = rows.stop - rows.start
        y[rows] = sum((known[j : j + length] * weight[:, j] for j in range(k)), bias)
        return known[length:]

    over_sequences(inputs, run)
    y = silu(y) if attrs["activation"] == "silu" else y
    return y * c if attrs["gated"] else y


def infer_gated_delta(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["qkv"]
    _, heads, dk, dv = shapes["state"]
    assert isinstance(columns, int)
    assert isinstance(heads, int)
    assert isinstance(dk, int)
    assert isinstance(dv, int)
    key_heads, rest = divmod(columns - heads * dv, 2 * dk)
    fits = rest == 0 and key_heads > 0 and heads % key_heads == 0
    widths = {"a": heads, "b": heads, "z": heads * dv}
    of_rows = all(has_columns(shapes["abz"], rows, attrs[f"{name}_start"], size) for name, size in widths.items())
    require(fits and shapes["vectors"] == (2 * heads + dv,) and of_rows, "gated_delta", shapes)
    return (rows, heads * dv), "float32"


def gated_delta(inputs: Inputs, attrs: Attrs) -> Array:
    """The gated delta rule: a memory S (dk, dv) of each value head decays, and is corrected towards the value of a key.
    Then an RMS norm of each head, and a gate. Yang et al. 2024.

    qkv (S, 2 * nk * dk + nv * dv): queries, keys and values of nk and nv heads, abz (S, M): a, b and z, nv, nv and
    nv * dv columns from ``a_start``, ``b_start`` and ``z_start`` on, vectors (2 * nv + dv,): a_log, dt_bias, and the
    weights of the norm, state (Z, nv, dk, dv) -> (S, nv * dv). Value head h reads key head h // (nv / nk). Queries and
    keys are scaled to length 1, queries then by dk^-1/2. For each row::

        S *= exp(-exp(a_log) * softplus(a + dt_bias))
        S += outer(k, sigmoid(b) * (v - k @ S))
        y = rms_norm(q @ S) * silu(z)
    """
    qkv, (_, heads, dk, dv) = inputs["qkv"], inputs["state"].shape
    width = (qkv.shape[1] - heads * dv) // 2
    group = heads * dk // width
    q, k = (unit(part.reshape(len(qkv), -1, dk)).repeat(group, axis=1) for part in np.split(qkv[:, : 2 * width], 2, 1))
    q = q * np.float32(dk**-0.5)
    v = qkv[:, 2 * width :].reshape(len(qkv), heads, dv)
    a, b = (inputs["abz"][:, attrs[f"{name}_start"] :][:, :heads] for name in ("a", "b"))
    z = inputs["abz"][:, attrs["z_start"] :][:, : heads * dv]
    a_log, dt_bias, weight = np.split(inputs["vectors"], (heads, 2 * heads))
    kept = np.exp(-np.exp(a_log) * softplus(a + dt_bias))
    beta = sigmoid(b)
    y = np.empty((len(qkv), heads, dv), np.float32)

    def run(rows: slice, memory: Array) -> Array:
        for row in range(rows.start, rows.stop):
            memory = memory * kept[row][:, None, None]
            change = beta[row][:, None] * (v[row] - np.einsum("hk,hkv->hv", k[row], memory))
            memory = memory + k[row][:, :, None] * change[:, None, :]
            y[row] = np.einsum("hk,hkv->hv", q[row], memory)
        return memory

    over_sequences(inputs, run)
    y /= np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + np.float32(attrs["eps"]))
    result: Array = (y * weight).reshape(len(qkv), -1) * silu(z)
    return result


def infer_convolved_delta(shapes: Shapes, attrs: Attrs) -> Type:
    qkv, _ = infer_causal_conv(of_convolution(shapes), convolution(attrs))
    return infer_gated_delta(of_rule(shapes, qkv), attrs)


def convolved_delta(inputs: Inputs, attrs: Attrs) -> Array:
    """The gated delta rule of the silu of a convolution.

    x (S, M): the columns of gated_delta's qkv before the convolution, from ``start`` on, and those of its abz; weight,
    and conv, the state: those of the convolution -> (S, nv * dv).
    """
    qkv = causal_conv(of_convolution(inputs), convolution(attrs))
    return gated_delta(of_rule(inputs, qkv), attrs)


def convolution(attrs: Attrs) -> Attrs:
    return {"activation": "silu", "start": attrs["start"], "gated": False}


def of_convolution(inputs: Mapping[str, Given]) -> dict[str, Given]:
    """Those of the inputs that the convolution has, by its roles."""
    return {**{role: array for role, array in inputs.items() if role != "vectors"}, "state": inputs["conv"]}


def of_rule(inputs: Mapping[str, Given], qkv: Given) -> dict[str, Given]:
    """Those of the inputs that the gated delta rule has, by its roles."""
    return {**inputs, "qkv": qkv, "abz": inputs["x"]}


def convolved_delta_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    rows, (_, _, columns) = use.shapes["x"][0], use.shapes["conv"]
    own = Use(use.op, of_convolution(use.shapes), {}, convolution(use.attrs))
    rule = Use(use.op, of_rule(use.shapes, (rows, columns)), {}, use.attrs)
    return {**causal_conv_facts(own, bound), **gated_delta_facts(rule, bound)}


def gated_delta_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    (rows, columns), (_, heads, dk, dv) = use.shapes["qkv"], use.shapes["state"]
    key_heads = (columns - heads * dv) // (2 * dk)  # type: ignore[operator]
    sizes = {"key_heads": key_heads, "key_dim": dk, "value_dim": dv, "stride": use.shapes["abz"][1]}
    return {"rows": rows, "heads": heads, **sizes, **use.attrs}


def infer_ssm_scan(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["xbc"]
    _, heads, head_dim, state_dim = shapes["state"]
    assert isinstance(columns, int)
    assert isinstance(heads, int)
    assert isinstance(head_dim, int)
    assert isinstance(state_dim, int)
    groups, rest = divmod(columns - heads * head_dim, 2 * state_dim)
    fits = rest == 0 and groups > 0 and heads % groups == 0
    fits = fits and has_columns(shapes["dt"], rows, attrs["dt_start"], heads)
    if attrs["z_start"] is not None:
        fits = fits and has_columns(shapes["dt"], rows, attrs["z_start"], heads * head_dim)
    require(fits and shapes["vectors"] == (3 * heads,), "ssm_scan", shapes)
    return (rows, heads * head_dim), "float32"


def ssm_scan(inputs: Inputs, attrs: Attrs) -> Array:
    """The state space of Mamba-2: a memory h (P, N) of each head decays, and takes in an outer product. Dao & Gu 2024.

    xbc (S, H * P + 2 * G * N): x of H heads, B and C of G groups, dt (S, M), of which H columns from ``dt_start`` on
    are read, vectors (3 * H,): a_log, d and dt_bias, state (Z, H, P, N) -> (S, H * P). Head h reads group
    h // (H / G). For each row, with dt = softplus(dt + dt_bias)::

        h = h * exp(-exp(a_log) * dt) + outer(dt * x, B)
        y = h @ C + d * x

    With ``z_start``, y is then gated: times silu(z), the H * P columns beside dt from there on.
    """
    xbc, (_, heads, head_dim, state_dim) = inputs["xbc"], inputs["state"].shape
    width = heads * head_dim
    x = xbc[:, :width].reshape(len(xbc), heads, head_dim)
    grouped = xbc[:, width:].reshape(len(xbc), 2, -1, state_dim)
    b, c = (each.repeat(heads // each.shape[1], axis=1) for each in (grouped[:, 0], grouped[:, 1]))
    a_log, d, dt_bias = np.split(inputs["vectors"], 3)
    dt = softplus(inputs["dt"][:, attrs["dt_start"] :][:, :heads] + dt_bias)
    kept = np.exp(-np.exp(a_log) * dt)
    y = np.empty((len(xbc), heads, head_dim), np.float32)

    def run(rows: slice, memory: Array) -> Array:
        for row in range(rows.start, rows.stop):
            taken = (dt[row][:, None] * x[row])[:, :, None] * b[row][:, None, :]
            memory = memory * kept[row][:, None, None] + taken
            y[row] = np.einsum("hpn,hn->hp", memory, c[row])
        return memory

    over_sequences(inputs, run)
    result: Array = (y + d[:, None] * x).reshape(len(xbc), -1)
    start = attrs["z_start"]
    return result if start is None else result * silu(inputs["dt"][:, start : start + width])


def ssm_scan_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    (rows, columns), (_, heads, head_dim, state_dim) = use.shapes["xbc"], use.shapes["state"]
    groups = (columns - heads * head_dim) // (2 * state_dim)  # type: ignore[operator]
    sizes = {"groups": groups, "head_dim": head_dim, "state_dim": state_dim}
    return {"rows": rows, "heads": heads, **sizes, "stride": use.shapes["dt"][1], **use.attrs}


def causal_conv_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    (rows, stride), (_, kept, columns) = use.shapes["x"], use.shapes["state"]
    taps = kept + 1  # type: ignore[operator]
    sizes = {"columns": columns, "stride": stride, "taps": taps, "bias": "bias" in use.shapes}
    return {"rows": rows, **sizes, **use.attrs}


def has_columns(shape: Shape, rows: Expr, start: int, count: int) -> bool:
    """Whether an input has these rows, and ``count`` columns from ``start`` on."""
    return shape[0] == rows and isinstance(shape[1], int) and start + count <= shape[1]


def over_sequences(inputs: Inputs, run: Callable[[slice, Array], Array]) -> None:
    """Call ``run`` with the rows of each sequence and its state before them; it returns the state after them."""
    states, slots = inputs["state"], inputs["state_slots"].tolist()
    made = [(write, run(rows, state)) for (_, write), rows, state in sequences(inputs, states, slots)]
    for write, state in made:
        states[write] = state


def sequences(inputs: Inputs, states: Array, slots: list[list[int]]) -> Iterator[tuple[list[int], slice, Array]]:
    for own, rows in zip(slots, (slice(*each) for each in pairwise(inputs["seq_starts"].tolist())), strict=True):
        if rows.start < rows.stop:
            begins = inputs["positions"][rows.start] == 0
            yield own, rows, np.zeros_like(states[0]) if begins else states[own[0]]


def unit(x: Array) -> Array:
    """Rows of length 1, except that ``L2_EPS`` is added to the square of the length."""
    y: Array = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS)
    return y


def softplus(x: Array) -> Array:
    """ln(1 + exp(x)), which is x for large x."""
    y: Array = np.logaddexp(np.float32(0), x)
    return y


def check_state(use: Use, sizes: Sizes) -> None:
    """The states and their slots are those of a plan's batches, because kernels index states by the slots' values."""
    for role in use.op.states:
        shape = use.shapes[role]
        require_use(shape[0] == STATES, f"{role} is {list(shape)}; its first dim must be {STATES}")
    require_array(use, "state_slots", ("B", 2), "int32")


ROWS = {"state": FLOAT32, STATE_SLOTS: INTEGERS, "seq_starts": INTEGERS, "positions": INTEGERS}
OPS = {
    "causal_conv": Op(
        infer_causal_conv,
        causal_conv,
        inputs={"x": FLOAT32, "weight": VECTOR, **ROWS},
        optional={"bias": VECTOR},
        attrs={"activation": choice("none", "none", "silu"), "start": count(0), "gated": choice(False, False, True)},
        facts=causal_conv_facts,
        checks=(check_state,),
        states=("state",),
    ),
    "gated_delta": Op(
        infer_gated_delta,
        gated_delta,
        inputs={"qkv": FLOAT32, "abz": FLOAT32, "vectors": VECTOR, **ROWS},
        attrs={"a_start": count(), "b_start": count(), "z_start": count(), "eps": EPS},
        facts=gated_delta_facts,
        checks=(check_state,),
        states=("state",),
    ),
    "convolved_delta": Op(
        infer_convolved_delta,
        convolved_delta,
        inputs={"x": FLOAT32, "weight": VECTOR, "vectors": VECTOR, "conv": FLOAT32, **ROWS},
        attrs={"start": count(0), "a_start": count(), "b_start": count(), "z_start": count(), "eps": EPS},
        facts=convolved_delta_facts,
        checks=(check_state,),
        states=("conv", "state"),
    ),
    "ssm_scan": Op(
        infer_ssm_scan,
        ssm_scan,
        inputs={"xbc": FLOAT32, "dt": FLOAT32, "vectors": VECTOR, **ROWS},
        attrs={"dt_start": count(0), "z_start": count(None)},
        facts=ssm_scan_facts,
        checks=(check_state,),
        states=("state",),
    ),
}
