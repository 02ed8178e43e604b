"""Small graphs with one op each of the attention family: on complete texts, and on pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from graph_builder import Build, Builder

from nearfar.compiler.ir.graph import Constant, Graph
from nearfar.compiler.ir.kv_format import kv_format
from nearfar.compiler.ir.ops import OPS

HEADS, KV_HEADS, HEAD_DIM, PAGE = 4, 2, 24, 16
# Of the output projection behind the heads.
OUTPUTS = 45
# More than those of the longest text's tokens.
DISTANCES = 2 * 400 - 1


def text_graphs() -> Iterator[tuple[str, str, Build]]:
    """Of complete texts, as `graphs` of `one_op.py`."""
    yield "rope_heads", "partial", partial(over_texts, "rope_heads", rotary_dim=8)
    yield "rope_heads", "normed", partial(over_texts, "rope_heads", rotary_dim=HEAD_DIM, eps=1e-5)
    yield "rope_heads", "values", partial(over_texts, "rope_heads", rotary_dim=HEAD_DIM, eps=1e-5, norms_values=True)
    yield "rope_heads", "by_row", partial(over_texts, "rope_heads", rotary_dim=HEAD_DIM, by_row=True)
    yield "rope_heads", "patches", partial(over_texts, "rope_heads", rotary_dim=8, rows="V", by_row=True)
    yield "ragged_attention", "plain", partial(over_texts, "ragged_attention", causal=False)
    bent: dict[str, Any] = {"window": 5, "softcap": 30.0, "scale": 0.2}
    yield "ragged_attention", "window", partial(over_texts, "ragged_attention", causal=False, **bent)
    yield "ragged_attention", "causal", partial(over_texts, "ragged_attention")
    yield "ragged_attention", "distances", partial(over_texts, "ragged_attention", causal=False, more=True)
    yield "ragged_attention", "distance_heads", partial(over_texts, "ragged_attention", window=9, distance_rows=7)
    near: dict[str, Any] = {"window": 9, "softcap": 3.0, "distance_rows": 7}
    yield "ragged_attention", "capped_heads", partial(over_texts, "ragged_attention", **near)
    yield "ragged_attention", "own_heads", partial(over_texts, "ragged_attention", causal=False, own_heads=True)
    fused: dict[str, Any] = {"output": OUTPUTS, "causal": False}
    yield "ragged_attention", "linear_plain", partial(over_texts, "ragged_attention", residual=True, **fused)
    yield "ragged_attention", "linear_window", partial(over_texts, "ragged_attention", **(fused | bent))
    yield "ragged_attention", "linear_distances", partial(over_texts, "ragged_attention", more=True, **fused)
    yield "ragged_attention", "linear_causal", partial(over_texts, "ragged_attention", output=130)
    yield "ragged_attention", "patches", partial(over_texts, "ragged_attention", rows="V", causal=False)
    yield "ragged_attention", "linear_patches", partial(over_texts, "ragged_attention", rows="V", **fused)


def page_graphs() -> Iterator[tuple[str, str, Build]]:
    """Of pages, likewise."""
    for op in ("rope", "append_kv", "attention"):
        yield op, "plain", partial(over_pages, op)
    yield "rope", "norm", partial(over_pages, "rope", norm_width=3 * HEAD_DIM)
    scores: dict[str, Any] = {"window": 5, "softcap": 30.0, "scale": 0.2, "causal": False}
    yield "attention", "stored_plain", partial(over_pages, "attention", rotary_dim=0)
    yield "attention", "sinks", partial(over_pages, "attention", sinks=True, **scores)
    yield "attention", "rotated", partial(over_pages, "attention", rotary_dim=8, sinks=True, **scores)
    rotated: dict[str, Any] = {"norm_width": HEAD_DIM, "eps": 1e-5, "window": 5}
    yield "attention", "normed_rotated", partial(over_pages, "attention", rotary_dim=8, **rotated)
    yield "append_kv", "q8", partial(over_pages, "append_kv", kv="q8")
    yield "attention", "q4", partial(over_pages, "attention", kv="q4")
    new: dict[str, Any] = {"joint": True}
    yield "attention", "new", partial(over_pages, "attention", **new)
    values: dict[str, Any] = {"norm_width": 2 * HEAD_DIM, "eps": 1e-5, "norms_values": True}
    yield "attention", "new_values", partial(over_pages, "attention", window=5, **values, **new)
    wide: dict[str, Any] = {"norm_width": (HEADS + KV_HEADS) * HEAD_DIM, "eps": 1e-5}
    yield "attention", "new_wide", partial(over_pages, "attention", norm_after=True, **wide, **new)
    growth = (0.5, 20)
    yield "rope", "scaled", partial(over_pages, "rope", position_scale=growth)
    yield "attention", "new_scaled", partial(over_pages, "attention", position_scale=growth, **new)
    yield "rope", "by_row", partial(over_pages, "rope", norm_width=3 * HEAD_DIM, by_row=True)
    yield "attention", "by_row", partial(over_pages, "attention", rotary_dim=8, by_row=True)
    yield "attention", "new_by_row", partial(over_pages, "attention", by_row=True, **new)
    yield "attention", "new_window", partial(over_pages, "attention", window=5, rotary_dim=8, **new)
    yield "attention", "new_reach", partial(over_pages, "attention", window=5, rotary_dim=8, reach=True, **new)
    yield "attention", "new_sinks", partial(over_pages, "attention", rotary_dim=0, sinks=True, **new)


def over_texts(
    op: str,
    *,
    rotary_dim: int = 0,
    output: int = 0,
    residual: bool = False,
    more: bool = False,
    distance_rows: int = 0,
    own_heads: bool = False,
    rows: str = "S",
    by_row: bool = False,
    **attrs: Any,
) -> Graph:
    """An op on the joint projection of queries, keys and values of complete texts. ``output``: the outputs of an op
    that projects, which has a bias then. ``more``: scores have sinks, and biases of distances. ``distance_rows``: the
    number of heads for distances; each query head has its own keys then.
    ``own_heads``: each distance has its own heads and biases. ``rows``: "V" for the patches of pictures.
    ``by_row``: the rotation table has a row for each row.
    """
    graph = Builder()
    kv_heads = HEADS if distance_rows or own_heads else KV_HEADS
    inputs = {"qkv": graph.value("qkv", (rows, (HEADS + 2 * kv_heads) * HEAD_DIM), "activation")}
    if rows == "S":
        inputs["positions"] = graph.value("positions", ("S",), "int32")
    if op != "rope_heads":
        sequences = "B" if rows == "S" else "I"
        inputs["seq_starts"] = graph.value("seq_starts", (["add", sequences, 1],), "int32")
    if more:
        inputs["distance_bias"] = graph.vector("distance_bias", HEADS * DISTANCES)
        inputs["sinks"] = graph.vector("sinks", HEADS)
    if own_heads:
        inputs["distance_bias"] = graph.vector("distance_bias", HEADS * DISTANCES)
        inputs["distance_heads"] = graph.vector("distance_heads", HEADS * DISTANCES * HEAD_DIM)
    if distance_rows:
        inputs["distance_heads"] = graph.vector("distance_heads", 2 * HEADS * distance_rows * HEAD_DIM)
        inputs["distance_rows"] = graph.vector("distance_rows", DISTANCES)
    if output:
        inputs |= {"weight": graph.matrix("weight", output, HEADS * HEAD_DIM), "bias": graph.vector("bias", output)}
    if residual:
        inputs["store0_b"], attrs["store"] = graph.value("residual", (rows, output)), [{"op": "add"}]
    if rotary_dim:
        inputs["table"] = rope_table(graph, rotary_dim, rows if by_row else None)
    if "eps" in attrs:
        inputs["qk_norm"] = graph.vector("qk_norm", 2 * HEAD_DIM)
    return graph.ends(graph.add(op, inputs, name="y", head_dim=HEAD_DIM, num_kv_heads=kv_heads, **attrs))


def over_pages(
    op: str,
    *,
    rotary_dim: int = HEAD_DIM,
    joint: bool = False,
    norm_width: int = 0,
    sinks: bool = False,
    reach: bool = False,
    by_row: bool = False,
    **attrs: Any,
) -> Graph:
    """An op of the attention family; ``attrs`` are its own. ``joint``: on a joint projection, which it appends.
    ``by_row``: the rotation table has a row for each row.
    """
    graph = Builder()
    form, each = kv_format(attrs.get("kv", "activation")), ("S", KV_HEADS * HEAD_DIM)
    row = HEAD_DIM if form is None else form.words(HEAD_DIM)
    declare: dict[str, Callable[[], str]] = {
        **{name: partial(graph.value, name, shape, "int32") for name, shape in INTEGER_SHAPES.items()},
        "x": partial(graph.value, "x", ("S", 3 * HEAD_DIM), "activation"),
        "q": partial(graph.value, "q", ("S", HEADS * HEAD_DIM), "activation"),
        "k": partial(graph.value, "k", each, "activation"),
        "v": partial(graph.value, "v", each, "activation"),
        "qkv": partial(graph.value, "qkv", ("S", (HEADS + 2 * KV_HEADS) * HEAD_DIM), "activation"),
        "kv": partial(graph.state, "kv", ("P", 2, KV_HEADS, PAGE, row), "activation" if form is None else "uint32"),
        "table": partial(rope_table, graph, rotary_dim, "S" if by_row else None),
        "sinks": partial(graph.vector, "sinks", HEADS),
        **{role: partial(graph.vector, role, norm_width) for role in ("norm", "qk_norm")},
    }
    given = {"table": rotary_dim > 0, "sinks": sinks, "reach": reach, "norm": norm_width > 0, "qk_norm": norm_width > 0}
    given |= {"q": not joint, "qkv": joint, "slots": joint}
    roles = [*OPS[op].inputs, *(role for role in OPS[op].optional if given[role])]
    rotates = {"head_dim": HEAD_DIM, "dtype": "activation", "eps": 1e-5 if norm_width else None}
    own = {**rotates, **attrs} if op == "rope" else attrs
    result = graph.add(op, {role: declare[role]() for role in roles}, name="y", **own)
    return graph.ends(result) if OPS[op].result else graph


INTEGER_SHAPES: dict[str, tuple[Any, ...]] = {
    "positions": ("S",),
    "slots": ("S",),
    "seq_starts": (["add", "B", 1],),
    "page_indptr": (["add", "B", 1],),
    "page_ids": ("L",),
    "reach": ("S",),
}


def rope_table(graph: Builder, rotary_dim: int, rows: str | None = None) -> str:
    """Of 64 positions, or of ``rows``."""
    if rows is not None:
        return graph.value("table", (rows, rotary_dim))
    attrs = {"inverse_frequencies": [0.5**i for i in range(rotary_dim // 2)], "scale": 1.0}
    graph.constants["table"] = Constant("table", "rope", (64, rotary_dim // 2, 2), attrs)
    return "table"
