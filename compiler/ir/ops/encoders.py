"""Ops of models that read complete texts without KV pages: embed_positions, rope_heads, ragged_attention, near_rows,
pool_rows.

The rows of a batch are those of its texts, one text after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..spec import KEY_TILE
from .attention import (
    PREPARATION,
    PREPARING,
    SCORES,
    Sequence,
    attended,
    check_rotation,
    preparation_facts,
    prepare,
    require_preparation,
    score_facts,
)
from .norms import STORE
from .op import (
    ACTIVATION,
    FLOAT32,
    INTEGERS,
    MATRIX,
    NORM_EPS,
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
    head_dim, kv_width = attrs["head_dim"], attrs["head_dim"] * attrs["num_kv_heads"]
    q_width = require_joint("rope_heads", shapes, attrs) * head_dim
    require("table" in shapes or "qk_norm" in shapes, "rope_heads", shapes)
    # A table with a row for each row of the step needs no positions.
    require("positions" in shapes or len(shapes.get("table", ())) == 2, "rope_heads", shapes)
    require_preparation("rope_heads", shapes, attrs, head_dim, q_width, kv_width)
    require("qk_norm" not in shapes or shapes["qk_norm"] == (2 * head_dim,), "rope_heads", shapes)
    return shapes["qkv"], "activation"


def require_joint(op: str, shapes: Shapes, attrs: Attrs) -> int:
    """The number of query heads in a joint projection of queries, keys and values."""
    width, head_dim, kv_heads = shapes["qkv"][1], attrs["head_dim"], attrs["num_kv_heads"]
    require(isinstance(width, int) and width % head_dim == 0, op, shapes)
    heads: int = int(width) // head_dim - 2 * kv_heads  # type: ignore[arg-type]
    require(heads > 0 and heads % kv_heads == 0, op, shapes)
    return heads


def check_joint(use: Use, sizes: Sizes) -> None:
    heads = use.attrs["num_kv_heads"], use.attrs["head_dim"]
    require_use(heads in sizes.spec.kinds_of_heads, f"has {heads[0]} kv heads of {heads[1]}, which no layer has")


def joint_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    heads = {name: use.attrs[name] for name in HEADS}
    return {**heads, "num_heads": require_joint("heads", use.shapes, use.attrs), "rows": use.shapes["qkv"][0]}


def rope_heads_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {**joint_facts(use, bound), **preparation_facts(use, use.attrs["head_dim"])}


def rope_heads(inputs: Inputs, attrs: Attrs) -> Array:
    """The heads of a joint projection, prepared: see `prepare`. qkv (S, (H + 2K) * D) -> like qkv."""
    return np.concatenate(prepare(inputs, attrs, attrs["head_dim"], attrs["num_kv_heads"] * attrs["head_dim"]), axis=1)


def infer_ragged_attention(shapes: Shapes, attrs: Attrs) -> Type:
    heads = require_joint("ragged_attention", shapes, attrs)
    columns = heads * attrs["head_dim"]
    require(shapes.get("sinks", (heads,)) == (heads,), "ragged_attention", shapes)
    by_position = attrs["causal"] or attrs["window"] is not None or shapes.keys() & {"distance_bias", "distance_heads"}
    require("positions" in shapes or not by_position, "ragged_attention", shapes)
    if "distance_bias" in shapes:
        (size,) = shapes["distance_bias"]
        require(isinstance(size, int) and size % heads == 0 and size // heads % 2 == 1, "ragged_attention", shapes)
    require("distance_heads" in shapes or "distance_rows" not in shapes, "ragged_attention", shapes)
    if "distance_heads" in shapes:
        (size,) = shapes["distance_heads"]
        assert isinstance(size, int)
        if "distance_rows" in shapes:
            (distances,) = shapes["distance_rows"]
            assert isinstance(distances, int)
            fits = size % (2 * columns) == 0 and distances % 2 == 1
            fits = fits and "distance_bias" not in shapes and size != 2 * columns * distances
        else:
            (biases,) = shapes.get("distance_bias", (0,))
            fits = size == biases * attrs["head_dim"]
        plain = heads == attrs["num_kv_heads"] and (attrs["softcap"] is None or "distance_bias" not in shapes)
        require(fits and plain, "ragged_attention", shapes)
    if "weight" not in shapes:
        require("bias" not in shapes and not attrs["store"], "ragged_attention", shapes)
        return (shapes["qkv"][0], columns), "activation"
    outputs, weight_columns = shapes["weight"]
    made: Type = ((shapes["qkv"][0], outputs), "float32")
    fits = columns == weight_columns and shapes.get("bias", (outputs,)) == (outputs,)
    require(fits and STORE.infer(shapes, attrs, made) == made, "ragged_attention", shapes)
    return made


def ragged_attention(inputs: Inputs, attrs: Attrs) -> Array:
    """`attention` over the rows of each row's text. With a weight, the result is projected as by `linear`:
    store(result @ weight.T + bias).

    qkv (S, (H + 2K) * D) holds the heads of q, then those of k, then those of v; positions (S,), seq_starts (B+1,),
    sinks (H,), weight (N, H * D), bias (N,) -> (S, H * D), or (S, N). distance_bias is as in `distance_biases`,
    distance_heads and distance_rows as in `distance_products`. Positions are only read if scores depend on them. Of
    pictures, the rows are V patches of I tiles.
    """
    num_kv_heads, head_dim = attrs["num_kv_heads"], attrs["head_dim"]
    heads = inputs["qkv"].astype(np.float32).reshape(len(inputs["qkv"]), -1, head_dim)
    q, k, v = np.split(heads, [-2 * num_kv_heads, -num_kv_heads], axis=1)
    starts = inputs["seq_starts"]
    positions = np.arange(len(heads)) - np.repeat(starts[:-1], np.diff(starts))
    texts = [
        Sequence(slice(start, stop), k[start:stop].swapaxes(0, 1), v[start:stop].swapaxes(0, 1))
        for start, stop in pairwise(starts.tolist())
    ]
    y = attended({"positions": positions, **inputs, "q": q.reshape(len(q), -1)}, attrs, texts)
    if "weight" not in inputs:
        return y
    y = y @ inputs["weight"].T
    return STORE.fold(inputs, attrs, y + inputs["bias"] if "bias" in inputs else y)


def ragged_attention_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    facts = {**joint_facts(use, bound), **score_facts(use, use.attrs["head_dim"])}
    if "distance_bias" in use.shapes:
        facts["scores"] = replace(facts["scores"], distances=use.shapes["distance_bias"][0] // facts["num_heads"])
    if "distance_heads" in use.shapes and "distance_rows" not in use.shapes:
        facts["scores"] = replace(facts["scores"], distance_heads=facts["scores"].distances)
    elif "distance_heads" in use.shapes:
        rows = use.shapes["distance_heads"][0] // (2 * facts["num_heads"] * facts["head_dim"])
        facts["scores"] = replace(facts["scores"], distances=use.shapes["distance_rows"][0], distance_heads=rows)
    if "weight" not in use.shapes:
        return facts
    outputs, columns = use.shapes["weight"]
    parts = {"bias": "bias" in use.shapes, "load": [], "store": STORE.facts(use.shapes, use.attrs)}
    return {**facts, "batch": facts["rows"], "columns": columns, "outputs": outputs, "width": 0, "offset": 0, **parts}


def check_distances(use: Use, sizes: Sizes) -> None:
    """There are numbers for every distance of two tokens, and of a token from the keys that fill up a tile."""
    needed, heads = 2 * (sizes.context + KEY_TILE) - 1, require_joint("ragged_attention", use.shapes, use.attrs)
    for role, each in (("distance_bias", heads), ("distance_rows", 1)):
        (size,) = use.shapes.get(role, (needed * each,))
        require_use(isinstance(size, int) and size // each >= needed, f"has a {role} of fewer than {needed} distances")


def infer_near_rows(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    require(isinstance(columns, int) and attrs["size"] % 2 == 1, "near_rows", shapes)
    return (rows, int(columns) * attrs["size"]), "float32"  # type: ignore[arg-type]


def near_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """The ``size`` rows around each row, itself in the middle, one behind the other; zeros for those that are not of
    its text. A projection of them is a convolution.

    x (S, E), positions (S,) -> (S, size * E).
    """
    x, positions, size = inputs["x"], inputs["positions"], attrs["size"]
    y = np.zeros((len(x), size, x.shape[1]), np.float32)
    rows = np.arange(len(x))
    for index in range(size):
        away = index - size // 2
        near = np.clip(rows + away, 0, len(x) - 1)
        # A text's positions count from 0, so another text has no row with this position here.
        own = positions[near] == positions + away
        y[own, index] = x[near[own]]
    return y.reshape(len(x), -1)


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
        inputs={"qkv": ACTIVATION},
        optional={"positions": INTEGERS, **PREPARING},
        attrs={**HEADS, "eps": NORM_EPS, "norms_values": PREPARATION["norms_values"]},
        facts=rope_heads_facts,
        checks=(check_joint, check_rotation),
    ),
    "ragged_attention": Op(
        infer_ragged_attention,
        ragged_attention,
        inputs={"qkv": ACTIVATION, "seq_starts": INTEGERS},
        optional={
            "positions": INTEGERS,
            "sinks": VECTOR,
            "distance_bias": VECTOR,
            "distance_heads": VECTOR,
            "distance_rows": VECTOR,
            "weight": MATRIX,
            "bias": VECTOR,
        },
        attrs={**HEADS, **SCORES, "store": STORE.attr},
        of_parts=STORE.roles,
        facts=ragged_attention_facts,
        checks=(check_joint, check_distances),
    ),
    "near_rows": Op(
        infer_near_rows,
        near_rows,
        inputs={"x": FLOAT32, "positions": INTEGERS},
        attrs={"size": count(least=1)},
        checks=(check_rows_of_tokens,),
    ),
    "pool_rows": Op(
        infer_pool_rows,
        pool_rows,
        inputs={"x": FLOAT32, "seq_starts": INTEGERS},
        attrs={"mode": choice("mean", *POOLINGS)},
        checks=(check_rows_of_tokens,),
    ),
}
