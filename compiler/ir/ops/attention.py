"""Attention over pages of keys and values, and what comes before it: rope, attention, rope_append, rope_attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .elementwise import rms_norm
from .kv_pages import append_kv, check_pages, head_dim_of, page_facts, read_pages
from .op import (
    ACTIVATION,
    DTYPE,
    FLOATS,
    INTEGERS,
    KV,
    NORM_EPS,
    PAGES,
    POSITION_SCALE,
    ROPE,
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
    choice,
    count,
    positive,
    require,
    require_use,
)


def infer_rope(shapes: Shapes, attrs: Attrs) -> Type:
    columns, head_dim, rotated = shapes["x"][1], attrs["head_dim"], shapes["table"][1]
    require(
        isinstance(columns, int) and isinstance(rotated, int) and columns % head_dim == 0 and 2 * rotated <= head_dim,
        "rope",
        shapes,
    )
    require(("norm" in shapes) == (attrs["eps"] is not None), "rope", shapes)
    if "norm" in shapes:
        (width,) = shapes["norm"]
        groups = isinstance(width, int) and isinstance(columns, int) and width % head_dim == 0 == columns % width
        require(groups, "rope", shapes)
    return shapes["x"], attrs["dtype"]


def rope(inputs: Inputs, attrs: Attrs) -> Array:
    """Rotate the first R elements of each head by position, as pairs (i, i + R/2); the rest of the head is unchanged.
    Su et al. 2021.

    x (S, n * D), positions (S,), table (positions, R/2, 2), attrs head_dim D -> like x. With ``norm`` (E,) and the
    attribute eps, x is normalized first, in groups of E columns. With ``position_scale``, the result is multiplied by
    the factor of its position.
    """
    table = inputs["table"][inputs["positions"]]
    x = rms_norm({"x": inputs["x"], "weight": inputs["norm"]}, attrs) if "norm" in inputs else inputs["x"]
    x = x.astype(np.float32)
    cosine, sine = table[:, None, :, 0], table[:, None, :, 1]
    half = table.shape[1]
    heads = x.reshape(len(x), x.shape[1] // attrs["head_dim"], attrs["head_dim"])
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    y = np.concatenate([low * cosine - high * sine, high * cosine + low * sine, rest], axis=-1).reshape(x.shape)
    return y * position_factors(inputs["positions"], attrs)[:, None]


def check_rotation(use: Use, sizes: Sizes) -> None:
    """The table has a row for every position of the bundle's context."""
    if "table" not in use.shapes:
        return
    positions, half, _ = use.shapes["table"]
    enough = isinstance(positions, int) and positions >= sizes.context
    fits = isinstance(half, int) and 2 * half <= sizes.spec.largest_head_dim
    require_use(enough and fits, f"rotation table has {positions} positions of {half} pairs")


def rotation_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    if "table" not in use.shapes:
        return {}
    positions, half, _ = use.shapes["table"]
    return {"positions": positions, "rotary_dim": 2 * half, "appends": "q" not in use.shapes}


def rope_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {**rotation_facts(use, bound), "norm_width": use.shapes["norm"][0] if "norm" in use.shapes else 0}


def position_factors(positions: Array, attrs: Attrs) -> Array:
    """The factor at each position; see `op.POSITION_SCALE`."""
    beta, length = attrs["position_scale"] or (0, 1)
    factors: Array = (1 + beta * np.log1p(positions // length)).astype(np.float32)
    return factors


def infer_attention(shapes: Shapes, attrs: Attrs) -> Type:
    head_dim = head_dim_of(shapes["kv"], attrs)
    require(("norm" in shapes) == (attrs["eps"] is not None), "attention", shapes)
    require("table" in shapes or "norm" not in shapes, "attention", shapes)
    require("norm" not in shapes or shapes["norm"] == (head_dim,), "attention", shapes)
    require("table" not in shapes or 2 * shapes["table"][1] <= head_dim, "attention", shapes)  # type: ignore[operator]
    return require_heads("attention", shapes, attrs, shapes["q"])


def attention(inputs: Inputs, attrs: Attrs) -> Array:
    """softmax(scores) v over the pages of each row's sequence, scores = softcap * tanh(scale * q k^T / softcap).

    q (S, H * D), kv (P, 2, K, page, D), positions (S,), seq_starts (B+1,), page_indptr (B+1,), page_ids (L,), sinks
    (H,) -> (S, H * D). With a ``table``, the queries are rotated first, and normalized before that if there is a
    ``norm`` (D,) with attribute eps; see `rope`. Query head h reads kv head h // (H / K). The row at position p sees
    the keys at positions up to and including p. If the attribute causal is false, it sees all positions of its
    sequence, up to its last new token.
    A ``window`` w restricts it to the positions strictly between p - w and p + w. A ``scale`` of None means 1 /
    sqrt(D); a ``softcap`` of None leaves the scores unchanged. ``sinks`` are scores of one more key a head, which has
    no value. Vaswani et al. 2017; paged: Kwon et al. 2023; sinks: gpt-oss.
    """
    head_dim = head_dim_of(inputs["kv"].shape, attrs)
    q = inputs["q"]
    if "table" in inputs:
        rotation = {role: inputs[role] for role in ("positions", "table", "norm") if role in inputs}
        q = rope({"x": q, **rotation}, {"head_dim": head_dim, "eps": attrs["eps"], "position_scale": None})
    y = np.zeros(q.shape, np.float32)
    for part in attention_weights({**inputs, "q": q}, attrs):
        attended = part.weights @ part.values
        heads = attended.reshape(len(attended), -1, q.shape[1] // (len(attended) * head_dim), head_dim)
        y[part.rows] = heads.swapaxes(0, 1).reshape(-1, q.shape[1])
    return y


@dataclass(frozen=True, slots=True)
class SequenceWeights:
    """The weights (K, rows * H / K, T) with which the ``rows`` of one sequence attend to its T keys and values, both
    (K, T, D); they are stored in ``pages``. ``scale`` and ``bend``: the slope of the scores, and that of their soft-cap
    like ``weights`` if there is one.
    """

    rows: slice
    pages: Array
    keys: Array
    values: Array
    weights: Array
    scale: np.float32
    bend: Array | None


def attention_weights(inputs: Inputs, attrs: Attrs) -> Iterator[SequenceWeights]:
    """The weights of each sequence, for queries that are rotated; see `attention`."""
    kv, positions, head_dim = inputs["kv"], inputs["positions"], head_dim_of(inputs["kv"].shape, attrs)
    num_kv_heads, page_size = kv.shape[2:4]
    queries = inputs["q"].astype(np.float32)
    group = queries.shape[1] // (num_kv_heads * head_dim)
    scale = scale_of(head_dim, attrs)
    for sequence in range(len(inputs["seq_starts"]) - 1):
        rows = slice(*inputs["seq_starts"][sequence : sequence + 2])
        if rows.start == rows.stop:
            continue
        length = int(positions[rows].max()) + 1
        first = inputs["page_indptr"][sequence]
        page_ids = inputs["page_ids"][first : first - (-length // page_size)]
        pages = read_pages(kv[page_ids], attrs)
        keys, values = pages.transpose(1, 2, 0, 3, 4).reshape(2, num_kv_heads, -1, head_dim)[:, :, :length]
        own = (queries[rows] * scale).reshape(-1, num_kv_heads, group, head_dim).swapaxes(0, 1)
        scores = own.reshape(num_kv_heads, -1, head_dim) @ keys.swapaxes(1, 2)
        seen = visible(positions[rows], length, attrs)
        # Pages that no row sees may hold anything.
        values = np.where(np.any(seen, axis=0)[None, :, None], values, 0)
        bend = None
        if attrs["softcap"] is not None:
            bent = np.tanh(scores / np.float32(attrs["softcap"]))
            scores, bend = np.float32(attrs["softcap"]) * bent, 1 - bent * bent
        scores[:, np.repeat(~seen, group, axis=0)] = -np.inf
        largest = scores.max(axis=-1, keepdims=True)
        rest = np.float32(0)
        if "sinks" in inputs:
            # Row i * group + g of a kv head's scores has query head g of that kv head.
            sinks = np.tile(inputs["sinks"].reshape(num_kv_heads, group), len(seen))[..., None]
            largest = np.maximum(largest, sinks)
            rest = np.exp(sinks - largest)
        weights = np.exp(scores - largest)
        weights /= weights.sum(axis=-1, keepdims=True) + rest
        yield SequenceWeights(rows, page_ids, keys, values, weights, scale, bend)


def visible(positions: Array, length: int, attrs: Attrs) -> Array:
    """(rows, length): whether the row at each position sees each key."""
    distance = positions[:, None] - np.arange(length)[None, :]
    seen = distance >= 0 if attrs["causal"] else np.ones(distance.shape, bool)
    return seen if attrs["window"] is None else seen & (np.abs(distance) < attrs["window"])


def scale_of(head_dim: int, attrs: Attrs) -> np.float32:
    return np.float32(1 / np.sqrt(head_dim) if attrs["scale"] is None else attrs["scale"])


def infer_rope_append(shapes: Shapes, attrs: Attrs) -> Type:
    rows, width = shapes["qkv"]
    head_dim = head_dim_of(shapes["kv"], attrs)
    require(isinstance(width, int), "rope_append", shapes)
    require(("qk_norm" in shapes) == (attrs["eps"] is not None), "rope_append", shapes)
    require("qk_norm" in shapes or not attrs["norms_values"], "rope_append", shapes)
    require(("qk_norm" in shapes and "table" in shapes) or not attrs["norm_after"], "rope_append", shapes)
    scaled = attrs["position_scale"] is not None
    require(not scaled or ("table" in shapes and not attrs["norm_after"]), "rope_append", shapes)
    widths = ((2 * head_dim,), (int(width) - int(shapes["kv"][2]) * head_dim,))  # type: ignore[arg-type]
    require("qk_norm" not in shapes or shapes["qk_norm"] in widths, "rope_append", shapes)
    is_wide = "qk_norm" in shapes and shapes["qk_norm"] != (2 * head_dim,)
    require(not (is_wide and attrs["norms_values"]), "rope_append", shapes)
    require("table" not in shapes or 2 * shapes["table"][1] <= head_dim, "rope_append", shapes)  # type: ignore[operator]
    return require_heads("rope_append", shapes, attrs, (rows, width - 2 * shapes["kv"][2] * head_dim))  # type: ignore[operator]


def require_heads(op: str, shapes: Shapes, attrs: Attrs, q: tuple[object, ...]) -> Type:
    """The type of q, which must hold a multiple of the pages' kv heads."""
    width, kv_width = q[1], shapes["kv"][2] * head_dim_of(shapes["kv"], attrs)
    require(isinstance(width, int) and width > 0 and width % kv_width == 0, op, shapes)  # type: ignore[operator]
    return (q[0], width), "activation"  # type: ignore[return-value]


def attention_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {**page_facts(use, bound, use.shapes["q"]), **rotation_facts(use, bound)}


def rope_append_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    pages = page_facts(use, bound, use.op.infer(use.shapes, use.attrs)[0])
    norm_wide = "qk_norm" in use.shapes and use.shapes["qk_norm"] != (2 * pages["head_dim"],)
    return {**pages, **rotation_facts(use, bound), "norm_wide": norm_wide}


def rope_append(inputs: Inputs, attrs: Attrs) -> Array:
    """Normalize (if qk_norm is present) and rotate (if a table is present) q and k of a joint projection, append k and
    v to the pages, return q. With ``norms_values``, normalize v too, without weights.

    qkv (S, (H + 2K) * D), qk_norm (2D,) for norms of each head or ((H + K) * D,) for norms over all heads of q and of
    k, q's weights before k's, with attribute eps, positions, slots (S,), table, kv -> (S, H * D). With ``norm_after``,
    the norms follow the rotation, which must not change the length of a head: the table's scale is 1. With
    ``position_scale``, rotated queries are multiplied by the factors of their positions.
    """
    kv, qkv = inputs["kv"], inputs["qkv"].astype(np.float32)
    head_dim = head_dim_of(kv.shape, attrs)
    kv_width = kv.shape[2] * head_dim
    q, k, v = np.split(qkv, [qkv.shape[1] - 2 * kv_width, qkv.shape[1] - kv_width], axis=1)
    weights: Sequence[Array | None] = (None, None)
    if "qk_norm" in inputs:
        is_wide = len(inputs["qk_norm"]) != 2 * head_dim
        weights = np.split(inputs["qk_norm"], [q.shape[1] if is_wide else head_dim])
    if attrs["norms_values"]:
        v = rms_norm({"x": v, "weight": np.ones(head_dim, np.float32)}, attrs)
    table = {role: inputs[role] for role in ("positions", "table")} if "table" in inputs else None

    def prepared(x: Array, weight: Array | None, scale: Sequence[float] | None) -> Array:
        for step in ("rotate", "norm") if attrs["norm_after"] else ("norm", "rotate"):
            if step == "norm" and weight is not None:
                x = rms_norm({"x": x, "weight": weight}, attrs)
            if step == "rotate" and table is not None:
                x = rope({"x": x, **table}, {"head_dim": head_dim, "position_scale": scale})
        return x

    q, k = prepared(q, weights[0], attrs["position_scale"]), prepared(k, weights[1], None)
    append_kv({"k": k, "v": v, "kv": kv, "slots": inputs["slots"]}, attrs)
    return q


def rope_attention(inputs: Inputs, attrs: Attrs) -> Array:
    """rope_append, then attention with the q that it returns; the inputs are those of both except q. -> (S, H * D)."""
    pages = {role: inputs[role] for role in PAGE_INPUTS}
    return attention({"q": rope_append(inputs, attrs), **pages}, attrs)


SCORES = {
    "scale": positive(None),
    "window": count(None, least=1),
    "softcap": positive(None),
    "causal": choice(True, True, False),
}
PREPARATION = {
    "eps": NORM_EPS,
    "norms_values": choice(False, False, True),
    "norm_after": choice(False, False, True),
    "position_scale": POSITION_SCALE,
}
APPEND_INPUTS = {"qkv": ACTIVATION, "positions": INTEGERS, "slots": INTEGERS, "kv": PAGES}
PAGE_INPUTS = {
    "kv": PAGES,
    "positions": INTEGERS,
    "seq_starts": INTEGERS,
    "page_indptr": INTEGERS,
    "page_ids": INTEGERS,
}
PAGED: dict[str, Any] = {"checks": (check_pages, check_rotation), "states": ("kv",)}
OPS = {
    "rope": Op(
        infer_rope,
        rope,
        inputs={"x": FLOATS, "positions": INTEGERS, "table": ROPE},
        optional={"norm": VECTOR},
        attrs={"head_dim": count(least=2), "dtype": DTYPE, "eps": NORM_EPS, "position_scale": POSITION_SCALE},
        facts=rope_facts,
        checks=(check_rotation,),
    ),
    "attention": Op(
        infer_attention,
        attention,
        inputs={"q": ACTIVATION, **PAGE_INPUTS},
        optional={"sinks": VECTOR, "table": ROPE, "norm": VECTOR},
        attrs={"eps": NORM_EPS, **SCORES, "kv": KV},
        facts=attention_facts,
        **PAGED,
    ),
    "rope_append": Op(
        infer_rope_append,
        rope_append,
        inputs=APPEND_INPUTS,
        optional={"table": ROPE, "qk_norm": VECTOR},
        attrs={**PREPARATION, "kv": KV},
        result="q",
        facts=rope_append_facts,
        **PAGED,
    ),
    "rope_attention": Op(
        infer_rope_append,
        rope_attention,
        inputs={**APPEND_INPUTS, **PAGE_INPUTS},
        optional={"table": ROPE, "qk_norm": VECTOR},
        attrs={**PREPARATION, **SCORES, "kv": KV},
        facts=rope_append_facts,
        **PAGED,
    ),
}
