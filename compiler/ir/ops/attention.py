"""Attention over pages of keys and values, and the rotation of heads: attention, rope.

A step's attributes and inputs determine two records (`ir/heads.py`), which its kernels take as facts: `Preparation`,
what happens to queries and new keys and values before, and `Scores`, how scores are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..expr import Expr
from ..heads import Preparation, Scores
from .kv_pages import append_kv, check_pages, head_dim_of, page_facts, read_pages
from .norms import rms_norm
from .op import (
    ACTIVATION,
    DTYPE,
    FLOATS,
    INTEGERS,
    KV,
    NORM_EPS,
    PAGES,
    POSITION_SCALE,
    ROTATION,
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
    facts_of_rows,
    positive,
    require,
    require_use,
)


def infer_rope(shapes: Shapes, attrs: Attrs) -> Type:
    columns, head_dim, half = shapes["x"][1], attrs["head_dim"], rotation_sizes("rope", shapes)[1]
    require(isinstance(columns, int) and columns % head_dim == 0 and 2 * half <= head_dim, "rope", shapes)
    require(("norm" in shapes) == (attrs["eps"] is not None), "rope", shapes)
    if "norm" in shapes:
        (width,) = shapes["norm"]
        groups = isinstance(width, int) and isinstance(columns, int) and width % head_dim == 0 == columns % width
        require(groups, "rope", shapes)
    return shapes["x"], attrs["dtype"]


def rope(inputs: Inputs, attrs: Attrs) -> Array:
    """Rotate the first R elements of each head by position, as pairs (i, i + R/2); the rest of the head is unchanged.
    Su et al. 2021.

    x (S, n * D), positions (S,), table (positions, R/2, 2), attrs head_dim D -> like x. A table (S, R) has the row of
    each row instead; see `images.rope_rows`. With ``norm`` (E,) and the attribute eps, x is normalized first, in groups
    of E columns. With ``position_scale``, the result is multiplied by the factor of its position.
    """
    table = inputs["table"]
    table = table[inputs["positions"]] if table.ndim == 3 else table.reshape(len(table), -1, 2)
    x = rms_norm({"x": inputs["x"], "weight": inputs["norm"]}, attrs) if "norm" in inputs else inputs["x"]
    x = x.astype(np.float32)
    cosine, sine = table[:, None, :, 0], table[:, None, :, 1]
    half = table.shape[1]
    heads = x.reshape(len(x), x.shape[1] // attrs["head_dim"], attrs["head_dim"])
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    y = np.concatenate([low * cosine - high * sine, high * cosine + low * sine, rest], axis=-1).reshape(x.shape)
    return y if attrs["position_scale"] is None else y * position_factors(inputs["positions"], attrs)[:, None]


def check_rotation(use: Use, sizes: Sizes) -> None:
    """The table has a row for every position of the bundle's context, or one for each row of the step."""
    if "table" not in use.shapes:
        return
    positions, half = rotation_sizes("rotation", use.shapes)
    if use.kinds["table"] == "rope":
        enough = isinstance(positions, int) and positions >= sizes.context
    else:
        enough = positions == next(use.shapes[role] for role in ("x", "q", "qkv") if role in use.shapes)[0]
    vision = sizes.spec.vision
    largest = max(sizes.spec.largest_head_dim, 0 if vision is None else vision.head_dim)
    require_use(enough and 2 * half <= largest, f"rotation table has {positions} positions of {half} pairs")


def rotation_sizes(op: str, shapes: Shapes) -> tuple[Expr, int]:
    """The rows of a step's rotation table, and the pairs of each."""
    rows, columns, *lanes = shapes["table"]
    require(isinstance(columns, int) and (lanes == [2] or (not lanes and columns % 2 == 0)), op, shapes)
    return rows, int(columns) if lanes else int(columns) // 2  # type: ignore[arg-type]


def rope_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    norm_width = use.shapes["norm"][0] if "norm" in use.shapes else 0
    return {**facts_of_rows(use), "norm_width": norm_width, **preparation_facts(use, use.attrs["head_dim"])}


def position_factors(positions: Array, attrs: Attrs) -> Array:
    """The factor at each position; see `op.POSITION_SCALE`."""
    beta, length = attrs["position_scale"] or (0, 1)
    factors: Array = (1 + beta * np.log1p(positions // length)).astype(np.float32)
    return factors


def preparation_facts(use: Use, head_dim: int) -> Mapping[str, Any]:
    """The preparation of a step's queries, and of the keys and values that it has beside them."""
    positions, half = rotation_sizes("rotation", use.shapes) if "table" in use.shapes else (0, 0)
    joint = "qkv" in use.shapes
    wide = joint and "qk_norm" in use.shapes and use.shapes["qk_norm"] != (2 * head_dim,)
    given = {name: use.attrs[name] for name in PREPARATION if name in use.attrs}
    if given.get("position_scale") is not None:
        beta, length = given["position_scale"]
        given["position_scale"] = (float(beta), length)
    return {"preparation": Preparation(positions, 2 * half, appends=joint, norm_wide=wide, **given)}


def require_preparation(op: str, shapes: Shapes, attrs: Attrs, head_dim: int, q_width: int, kv_width: int) -> None:
    """Require what prepares q, or q, k and v of a joint projection, to fit these widths."""
    joint, normed, rotated = "qkv" in shapes, "qk_norm" in shapes, "table" in shapes
    require(normed == (attrs["eps"] is not None), op, shapes)
    require(not rotated or 2 * rotation_sizes(op, shapes)[1] <= head_dim, op, shapes)
    own = [name for name in PREPARATION if name != "eps" and attrs.get(name)]
    if not joint:
        require(not own and (rotated or not normed), op, shapes)
        require(not normed or shapes["qk_norm"] == (head_dim,), op, shapes)
        return
    of_each, of_all = (2 * head_dim,), (q_width + kv_width,)
    require(not normed or shapes["qk_norm"] in (of_each, of_all), op, shapes)
    require("norms_values" not in own or (normed and shapes["qk_norm"] == of_each), op, shapes)
    require("norm_after" not in own or (normed and rotated), op, shapes)
    require("position_scale" not in own or (rotated and "norm_after" not in own), op, shapes)


def prepare(inputs: Inputs, attrs: Attrs, head_dim: int, kv_width: int) -> list[Array]:
    """Normalize (if qk_norm is present) and rotate (if a table is present) q, or q and k of a joint projection. Returns
    q, or q, k and v, float32. With ``norms_values``, normalize v too, without weights.

    q (S, H * D) or qkv (S, (H + 2K) * D), positions (S,), table, qk_norm with attribute eps: (D,) for q, (2D,) for q
    and k, or ((H + K) * D,) for norms over all heads of q and of k, q's weights before k's. With ``norm_after``, the
    norms follow the rotation, which must not change the length of a head: the table's scale is 1. With
    ``position_scale``, rotated queries are multiplied by the factors of their positions.
    """
    if "qkv" not in inputs:
        parts = [inputs["q"].astype(np.float32)]
    else:
        qkv = inputs["qkv"].astype(np.float32)
        parts = np.split(qkv, [qkv.shape[1] - 2 * kv_width, qkv.shape[1] - kv_width], axis=1)
    weights: list[Array] = []
    if "qk_norm" in inputs:
        is_wide = len(inputs["qk_norm"]) not in (head_dim, 2 * head_dim)
        weights = np.split(inputs["qk_norm"], [parts[0].shape[1] if is_wide else head_dim])
    if attrs.get("norms_values"):
        parts[2] = rms_norm({"x": parts[2], "weight": np.ones(head_dim, np.float32)}, attrs)
    for index, part in enumerate(parts[:2]):
        for step in ("rotate", "norm") if attrs.get("norm_after") else ("norm", "rotate"):
            if step == "norm" and weights:
                part = rms_norm({"x": part, "weight": weights[index]}, attrs)
            if step == "rotate" and "table" in inputs:
                rotation = {"x": part, **{role: inputs[role] for role in ("positions", "table") if role in inputs}}
                scale = None if index else attrs.get("position_scale")
                part = rope(rotation, {"head_dim": head_dim, "position_scale": scale})
        parts[index] = part
    return parts


def infer_attention(shapes: Shapes, attrs: Attrs) -> Type:
    joint, head_dim = "qkv" in shapes, head_dim_of(shapes["kv"], attrs)
    require(joint != ("q" in shapes) and joint == ("slots" in shapes), "attention", shapes)
    require(not joint or shapes["slots"] == shapes["positions"], "attention", shapes)
    require(shapes.get("reach", shapes["positions"]) == shapes["positions"], "attention", shapes)
    rows, width = shapes["qkv" if joint else "q"]
    kv_width = int(shapes["kv"][2]) * head_dim  # type: ignore[arg-type]
    q_width = int(width) - 2 * kv_width if joint else int(width)  # type: ignore[arg-type]
    require(q_width > 0 and q_width % kv_width == 0, "attention", shapes)
    require_preparation("attention", shapes, attrs, head_dim, q_width, kv_width)
    return (rows, q_width), "activation"


def attention_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    pages = page_facts(use, bound, use.op.infer(use.shapes, use.attrs)[0])
    return {**pages, **preparation_facts(use, pages["head_dim"]), **score_facts(use, pages["head_dim"])}


def attention(inputs: Inputs, attrs: Attrs) -> Array:
    """softmax(scores) v over the pages of each row's sequence, scores = softcap * tanh(scale * q k^T / softcap).

    q (S, H * D), kv (P, 2, K, page, D), positions (S,), seq_starts (B+1,), page_indptr (B+1,), page_ids (L,), sinks
    (H,) -> (S, H * D). Queries are prepared first, if there is a ``table``; see `prepare`. Instead of q, a step may
    have the joint projection qkv of new tokens, whose keys and values it prepares too and appends at their ``slots``
    (S,); see `append_kv`.

    Query head h reads kv head h // (H / K). The row at position p sees the keys at positions up to and including p. If
    the attribute causal is false, it sees all positions of its sequence, up to its last new token. A ``window`` w
    restricts it to the positions strictly between p - w and p + w. With ``reach`` (S,), which ascends within a
    sequence, a row sees the keys up to its reach instead, and a window restricts only those before it: the tokens of a
    picture see all of it. A ``scale`` of None means 1 / sqrt(D); a ``softcap`` of None leaves the scores unchanged.
    ``sinks`` are scores of one more key a head, which has no value. Distances may change scores: see `distance_biases`,
    which follow the soft-cap, and `distance_products`, which precede it. Vaswani et al. 2017; paged: Kwon et al. 2023;
    sinks: gpt-oss; reach: Gemma 3.
    """
    kv, head_dim = inputs["kv"], head_dim_of(inputs["kv"].shape, attrs)
    q, *new = prepare(inputs, attrs, head_dim, kv.shape[2] * head_dim)
    if new:
        append_kv({"k": new[0], "v": new[1], "kv": kv, "slots": inputs["slots"]}, attrs)
    return attended({**inputs, "q": q}, attrs, read_sequences(inputs, attrs))


@dataclass(frozen=True, slots=True)
class Sequence:
    """The ``rows`` of one sequence of a batch, and the T keys and values that they may see, both (K, T, D). ``pages``
    hold them, if there are any.
    """

    rows: slice
    keys: Array
    values: Array
    pages: Array | None = None


@dataclass(frozen=True, slots=True)
class SequenceWeights:
    """The weights (K, rows * H / K, T) with which the rows of a sequence attend to its values; 0 replaces values that
    no row sees. ``scale`` and ``bend``: the slope of the scores, and that of their soft-cap like ``weights`` if there
    is one.
    """

    values: Array
    weights: Array
    scale: np.float32
    bend: Array | None


def read_sequences(inputs: Inputs, attrs: Attrs) -> Iterator[Sequence]:
    """The sequences of a batch whose keys and values are on pages."""
    kv, starts = inputs["kv"], inputs["seq_starts"].tolist()
    for index, rows in enumerate(slice(*each) for each in pairwise(starts)):
        if rows.start == rows.stop:
            continue
        length = int(inputs["positions"][rows].max()) + 1
        first = inputs["page_indptr"][index]
        page_ids = inputs["page_ids"][first : first - (-length // kv.shape[3])]
        pages = read_pages(kv[page_ids], attrs)
        keys, values = pages.transpose(1, 2, 0, 3, 4).reshape(2, kv.shape[2], -1, pages.shape[-1])[:, :, :length]
        yield Sequence(rows, keys, values, page_ids)


def attended(inputs: Inputs, attrs: Attrs, sequences: Iterable[Sequence]) -> Array:
    """The weighted values of each row, (S, H * D), for queries that are prepared."""
    y: Array = np.zeros(inputs["q"].shape, np.float32)
    for each in sequences:
        part, (num_kv_heads, _, head_dim) = attention_weights(each, inputs, attrs), each.keys.shape
        heads = (part.weights @ part.values).reshape(num_kv_heads, len(y[each.rows]), -1, head_dim)
        y[each.rows] = heads.swapaxes(0, 1).reshape(-1, y.shape[1])
    return y


def attention_weights(sequence: Sequence, inputs: Inputs, attrs: Attrs) -> SequenceWeights:
    """The weights of one sequence, for queries that are prepared; see `attention`."""
    num_kv_heads, length, head_dim = sequence.keys.shape
    scale, queries = scale_of(head_dim, attrs), inputs["q"][sequence.rows].astype(np.float32)
    group = queries.shape[1] // (num_kv_heads * head_dim)
    own = (queries * scale).reshape(-1, num_kv_heads, group, head_dim).swapaxes(0, 1)
    scores = own.reshape(num_kv_heads, -1, head_dim) @ sequence.keys.swapaxes(1, 2)
    reach = inputs["reach"][sequence.rows] if "reach" in inputs else None
    seen = visible(inputs["positions"][sequence.rows], length, attrs, reach)
    # Pages that no row sees may hold anything.
    values = np.where(np.any(seen, axis=0)[None, :, None], sequence.values, 0)
    bend = None
    if "distance_heads" in inputs:
        scores += scale * distance_products(queries, sequence.keys, inputs, inputs["positions"][sequence.rows])
    if attrs["softcap"] is not None:
        bent = np.tanh(scores / np.float32(attrs["softcap"]))
        scores, bend = np.float32(attrs["softcap"]) * bent, 1 - bent * bent
    if "distance_bias" in inputs:
        heads = num_kv_heads * group
        biases = distance_biases(inputs["distance_bias"], heads, inputs["positions"][sequence.rows], length)
        scores += biases.reshape(num_kv_heads, group, -1, length).swapaxes(1, 2).reshape(scores.shape)
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
    return SequenceWeights(values, weights, scale, bend)


def distance_biases(bias: Array, num_heads: int, positions: Array, length: int) -> Array:
    """What is added to the scores (H, rows, length) of rows at these positions: of a head by the key's distance.
    Raffel et al. 2020.

    bias (H * N,) has the N = 2r - 1 distances key - row of each head, from 1 - r to r - 1.
    """
    of_head = bias.reshape(num_heads, -1)
    distances: Array = np.arange(length)[None, :] - positions[:, None]
    biases: Array = of_head[:, distances + of_head.shape[1] // 2]
    return biases


def distance_products(queries: Array, keys: Array, inputs: Inputs, positions: Array) -> Array:
    """What is added to the products (H, rows, T) of queries (rows, H * D) and keys (H, T, D): those of the query, and
    of the key, with heads for their distance. He et al. 2021 (DeBERTa).

    distance_heads (2 * H * M * D,) has M heads for queries and M for keys of each head, and distance_rows (N,) has the
    one of each of the N distances of `distance_biases`. Without distance_rows, distance_heads (H * N * D,) has one of
    each distance, for queries alone. Dai et al. 2019 (Transformer-XL), Shaw et al. 2018.
    """
    num_heads, length, head_dim = keys.shape
    distances: Array = np.arange(length)[None, :] - positions[:, None]
    if "distance_rows" not in inputs:
        own = inputs["distance_heads"].reshape(num_heads, -1, head_dim)
        alone = queries.reshape(-1, num_heads, head_dim).swapaxes(0, 1) @ own.swapaxes(1, 2)
        places = np.broadcast_to(distances + own.shape[1] // 2, (num_heads, *distances.shape))
        of_query: Array = np.take_along_axis(alone, places, axis=2)
        return of_query
    for_queries, for_keys = inputs["distance_heads"].reshape(2, num_heads, -1, head_dim)
    rows = np.clip(inputs["distance_rows"], 0, for_queries.shape[1] - 1).astype(np.int64)
    chosen = np.broadcast_to(rows[distances + len(rows) // 2], (num_heads, *distances.shape))
    by_query = queries.reshape(-1, num_heads, head_dim).swapaxes(0, 1) @ for_queries.swapaxes(1, 2)
    by_key = keys @ for_keys.swapaxes(1, 2)
    products: Array = np.take_along_axis(by_query, chosen, axis=2)
    products += np.take_along_axis(by_key, chosen.swapaxes(1, 2), axis=2).swapaxes(1, 2)
    return products


def visible(positions: Array, length: int, attrs: Attrs, reach: Array | None = None) -> Array:
    """(rows, length): whether the row at each position, of this ``reach``, sees each key."""
    if reach is not None:
        keys, window = np.arange(length)[None, :], attrs["window"] or length
        within: Array = (keys <= reach[:, None]) & (keys > positions[:, None] - window)
        return within
    distance = positions[:, None] - np.arange(length)[None, :]
    seen = distance >= 0 if attrs["causal"] else np.ones(distance.shape, bool)
    return seen if attrs["window"] is None else seen & (np.abs(distance) < attrs["window"])


def scale_of(head_dim: int, attrs: Attrs) -> np.float32:
    return np.float32(1 / np.sqrt(head_dim) if attrs["scale"] is None else attrs["scale"])


def score_facts(use: Use, head_dim: int) -> Mapping[str, Any]:
    """How a step computes its scores."""
    given = {name: use.attrs[name] for name in SCORES}
    given |= {"scale": float(scale_of(head_dim, given)), "sinks": "sinks" in use.shapes, "reach": "reach" in use.shapes}
    return {"scores": Scores(**given)}


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
PREPARING = {"table": ROTATION, "qk_norm": VECTOR}
ROWS = {"positions": INTEGERS, "seq_starts": INTEGERS}
OPS = {
    "rope": Op(
        infer_rope,
        rope,
        inputs={"x": FLOATS, "positions": INTEGERS, "table": ROTATION},
        optional={"norm": VECTOR},
        attrs={"head_dim": count(least=2), "dtype": DTYPE, "eps": NORM_EPS, "position_scale": POSITION_SCALE},
        facts=rope_facts,
        checks=(check_rotation,),
    ),
    "attention": Op(
        infer_attention,
        attention,
        inputs={"kv": PAGES, **ROWS, "page_indptr": INTEGERS, "page_ids": INTEGERS},
        optional={
            "q": ACTIVATION,
            "qkv": ACTIVATION,
            "slots": INTEGERS,
            **PREPARING,
            "sinks": VECTOR,
            "reach": INTEGERS,
        },
        attrs={**PREPARATION, **SCORES, "kv": KV},
        facts=attention_facts,
        checks=(check_pages, check_rotation),
        states=("kv",),
        names={"reach": "reach"},
    ),
}
