"""Ops of models that read complete texts without KV pages: embed_positions, rope_heads, ragged_attention,
ragged_attention_linear, pool_rows.

The rows of a batch are those of its texts, one text after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from .attention import SCORES, check_rotation, rope, rotation_facts, scale_of, visible
from .elementwise import rms_norm
from .op import (
    ACTIVATION,
    FLOAT32,
    INTEGERS,
    MATRIX,
    NORM_EPS,
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
    facts_of_rows,
    require,
    require_use,
)
from .rows import check_rows_of_tokens

POOLINGS = ("mean", "cls", "last_token", "max", "mean_sqrt_len")


def infer_embed_positions(shapes: Shapes, attrs: Attrs) -> Type:
    tables = [shapes[role] for role in ("position_table", "type_table") if role in shapes]
    require(bool(tables) and all(table[1] == shapes["x"][1] for table in tables), "embed_positions", shapes)
    require(("type_table" in shapes) == ("token_types" in shapes), "embed_positions", shapes)
    return shapes["x"], "float32"


def embed_positions(inputs: Inputs, attrs: Attrs) -> Array:
    """x + position_table[positions + first_position] + type_table[token_types]; a term without its table is omitted.
    Devlin et al. 2018.

    x (S, E), positions, token_types (S,), position_table (P, E), type_table (T, E) -> (S, E).
    """
    y: Array = inputs["x"]
    if "position_table" in inputs:
        y = y + inputs["position_table"][inputs["positions"] + attrs["first_position"]]
    return y + inputs["type_table"][inputs["token_types"]] if "type_table" in inputs else y


def check_tables(use: Use, sizes: Sizes) -> None:
    """The tables have a row for every position of the bundle's context, and for every type of token."""
    rows = {role: use.shapes[role][0] for role in ("position_table", "type_table") if role in use.shapes}
    needed, types = sizes.context + use.attrs["first_position"], sizes.spec.num_token_types
    found = rows.get("position_table", needed)
    require_use(isinstance(found, int) and found >= needed, f"has a table of {found} positions")
    found = rows.get("type_table", types)
    require_use(isinstance(found, int) and found >= types, f"has a table of {found} types")


def embed_positions_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    tables = {"positions": "position_table", "types": "type_table"}
    return {**facts_of_rows(use), **{name: use.shapes.get(role, (0,))[0] for name, role in tables.items()}}


def infer_rope_heads(shapes: Shapes, attrs: Attrs) -> Type:
    require_joint("rope_heads", shapes, attrs)
    head_dim = attrs["head_dim"]
    require("table" in shapes or "qk_norm" in shapes, "rope_heads", shapes)
    require(("qk_norm" in shapes) == (attrs["eps"] is not None), "rope_heads", shapes)
    require("qk_norm" not in shapes or shapes["qk_norm"] == (2 * head_dim,), "rope_heads", shapes)
    require("table" not in shapes or 2 * shapes["table"][1] <= head_dim, "rope_heads", shapes)
    return shapes["qkv"], "activation"


def require_joint(op: str, shapes: Shapes, attrs: Attrs) -> int:
    """The number of query heads in a joint projection of queries, keys and values."""
    width, head_dim, kv_heads = shapes["qkv"][1], attrs["head_dim"], attrs["num_kv_heads"]
    require(isinstance(width, int) and width % head_dim == 0, op, shapes)
    heads: int = int(width) // head_dim - 2 * kv_heads  # type: ignore[arg-type]
    require(heads > 0 and heads % kv_heads == 0, op, shapes)
    return heads


def check_joint(use: Use, sizes: Sizes) -> None:
    spec, heads = sizes.spec, (use.attrs["num_kv_heads"], use.attrs["head_dim"])
    known = any(spec.heads_of(layer) == heads for layer in range(spec.num_layers))
    require_use(known, f"has {heads[0]} kv heads of {heads[1]}, which no layer has")


def joint_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    heads = {name: use.attrs[name] for name in HEADS}
    num_heads = require_joint("heads", use.shapes, use.attrs)
    return {**rotation_facts(use, bound), **heads, "num_heads": num_heads, "rows": "S"}


def rope_heads(inputs: Inputs, attrs: Attrs) -> Array:
    """Normalize (if qk_norm is present) and rotate (if a table is present) q and k of a joint projection; v stays.

    qkv (S, (H + 2K) * D), qk_norm (2D,), q's weights before k's, with attribute eps, positions (S,), table -> like qkv.
    """
    qkv, head_dim = inputs["qkv"].astype(np.float32), attrs["head_dim"]
    kv_width = attrs["num_kv_heads"] * head_dim
    parts = np.split(qkv, [qkv.shape[1] - 2 * kv_width, qkv.shape[1] - kv_width], axis=1)
    if "qk_norm" in inputs:
        for index, weight in enumerate(np.split(inputs["qk_norm"], 2)):
            parts[index] = rms_norm({"x": parts[index], "weight": weight}, attrs)
    if "table" in inputs:
        where = {"positions": inputs["positions"], "table": inputs["table"]}
        parts[:2] = [
            rope({"x": x, **where}, {"head_dim": head_dim, "eps": None, "position_scale": None}) for x in parts[:2]
        ]
    return np.concatenate(parts, axis=1)


def infer_ragged_attention(shapes: Shapes, attrs: Attrs) -> Type:
    return (shapes["qkv"][0], require_joint("ragged_attention", shapes, attrs) * attrs["head_dim"]), "activation"


def ragged_attention(inputs: Inputs, attrs: Attrs) -> Array:
    """softmax(scores) v over the rows of each row's text, scores = softcap * tanh(scale * q k^T / softcap).

    qkv (S, (H + 2K) * D) holds the heads of q, then those of k, then those of v; positions (S,), seq_starts (B+1,) ->
    (S, H * D). Query head h reads kv head h // (H / K). ``causal``, ``window``, ``scale`` and ``softcap`` are those of
    `attention`. Vaswani et al. 2017.
    """
    qkv, head_dim, num_kv_heads = inputs["qkv"].astype(np.float32), attrs["head_dim"], attrs["num_kv_heads"]
    heads = qkv.reshape(len(qkv), -1, head_dim)
    group = (heads.shape[1] - 2 * num_kv_heads) // num_kv_heads
    y = np.zeros((len(qkv), num_kv_heads * group * head_dim), np.float32)
    for start, stop in pairwise(inputs["seq_starts"].tolist()):
        own = heads[start:stop].swapaxes(0, 1)
        q, k, v = np.split(own, [-2 * num_kv_heads, -num_kv_heads])
        scores = (q * scale_of(head_dim, attrs)) @ np.repeat(k, group, axis=0).swapaxes(1, 2)
        if attrs["softcap"] is not None:
            scores = np.float32(attrs["softcap"]) * np.tanh(scores / np.float32(attrs["softcap"]))
        scores[:, ~visible(inputs["positions"][start:stop], stop - start, attrs)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        y[start:stop] = (weights @ np.repeat(v, group, axis=0)).swapaxes(0, 1).reshape(stop - start, -1)
    return y


def infer_ragged_attention_linear(shapes: Shapes, attrs: Attrs) -> Type:
    (rows, columns), (outputs, weight_columns) = infer_ragged_attention(shapes, attrs)[0], shapes["weight"]
    fits = all(shapes[role][-1] == outputs for role in ("bias", "residual") if role in shapes)
    require(columns == weight_columns and fits, "ragged_attention_linear", shapes)
    return (rows, outputs), "float32"


def ragged_attention_linear(inputs: Inputs, attrs: Attrs) -> Array:
    """ragged_attention(qkv) @ weight.T + bias + residual; a term without its input is omitted.

    qkv, positions, seq_starts as in `ragged_attention`, weight (N, H * D), bias (N,), residual (S, N) -> (S, N).
    """
    y: Array = ragged_attention(inputs, attrs) @ inputs["weight"].T
    if "bias" in inputs:
        y = y + inputs["bias"]
    return y + inputs["residual"] if "residual" in inputs else y


def attention_linear_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    outputs, columns = use.shapes["weight"]
    sizes = {"batch": "S", "columns": columns, "outputs": outputs, "width": 0, "offset": 0, "gated": False}
    added = {role: role in use.shapes for role in ("bias", "residual")}
    return {**joint_facts(use, bound), **sizes, **added}


def infer_pool_rows(shapes: Shapes, attrs: Attrs) -> Type:
    return ("B", shapes["x"][1]), "float32"


def pool_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """One row of those of each text: their ``mean``, that of the first token ("cls") or of the last one, the largest
    of each column ("max"), or the sum divided by the square root of their number. Reimers & Gurevych 2019.

    x (S, E), seq_starts (B+1,) -> (B, E).
    """
    x, starts, mode = inputs["x"], inputs["seq_starts"], attrs["mode"]
    if mode in ("cls", "last_token"):
        chosen: Array = x[starts[:-1] if mode == "cls" else starts[1:] - 1]
        return chosen
    texts = [x[start:stop] for start, stop in pairwise(starts.tolist())]
    if mode == "max":
        return np.stack([text.max(axis=0) for text in texts])
    return np.stack([text.sum(axis=0) / (len(text) if mode == "mean" else np.sqrt(len(text))) for text in texts])


HEADS = {"head_dim": count(least=2), "num_kv_heads": count(least=1)}
OPS = {
    "embed_positions": Op(
        infer_embed_positions,
        embed_positions,
        inputs={"x": FLOAT32},
        optional={"positions": INTEGERS, "position_table": MATRIX, "token_types": INTEGERS, "type_table": MATRIX},
        attrs={"first_position": count(0)},
        facts=embed_positions_facts,
        checks=(check_tables,),
    ),
    "rope_heads": Op(
        infer_rope_heads,
        rope_heads,
        inputs={"qkv": ACTIVATION, "positions": INTEGERS},
        optional={"table": ROPE, "qk_norm": VECTOR},
        attrs={**HEADS, "eps": NORM_EPS},
        facts=joint_facts,
        checks=(check_joint, check_rotation),
    ),
    "ragged_attention": Op(
        infer_ragged_attention,
        ragged_attention,
        inputs={"qkv": ACTIVATION, "positions": INTEGERS, "seq_starts": INTEGERS},
        attrs={**HEADS, **SCORES},
        facts=joint_facts,
        checks=(check_joint,),
    ),
    "ragged_attention_linear": Op(
        infer_ragged_attention_linear,
        ragged_attention_linear,
        inputs={"qkv": ACTIVATION, "positions": INTEGERS, "seq_starts": INTEGERS, "weight": MATRIX},
        optional={"bias": VECTOR, "residual": FLOAT32},
        attrs={**HEADS, **SCORES},
        facts=attention_linear_facts,
        checks=(check_joint,),
    ),
    "pool_rows": Op(
        infer_pool_rows,
        pool_rows,
        inputs={"x": FLOAT32, "seq_starts": INTEGERS},
        attrs={"mode": choice("mean", *POOLINGS)},
        checks=(check_rows_of_tokens,),
    ),
}
