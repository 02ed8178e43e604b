"""Small graphs with one op each: every op with its optional inputs and attributes, at sizes that do not fill a tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from graph_builder import Build, Builder
from one_expert_op import expert_graphs
from one_state_op import state_graphs
from projection_parts import parts_of

from nearfar.compiler.ir.graph import Constant, Graph
from nearfar.compiler.ir.kv_format import kv_format
from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.ops.encoders import POOLINGS
from nearfar.compiler.ir.ops.op import ACTIVATIONS, DType
from nearfar.compiler.ir.sampling import Settings

# Columns of x, outputs of a projection, size of the vocabulary; sizes of heads and pages.
COLUMNS, OUTPUTS, VOCAB = 37, 45, 51
HEADS, KV_HEADS, HEAD_DIM, PAGE = 4, 2, 24, 16
# More than those of the longest text's tokens.
DISTANCES = 2 * 400 - 1
DTYPES: tuple[DType, ...] = ("float32", "activation")


def graphs() -> Iterator[tuple[str, str, Build]]:
    """(op, name for tests, function that builds the graph). The op is that of the graph's last node."""
    yield "embed", "whole", embed
    yield "embed", "first_part", partial(embed, first_row=3)
    yield "embed", "later_part", partial(embed, first_row=0, later=20)
    yield "embed", "without_samples", partial(embed, samples=False)
    yield "embed_positions", "both", embed_positions
    yield "embed_positions", "types", partial(embed_positions, positions=False)
    for mode in POOLINGS:
        yield "pool_rows", mode, partial(pool_rows, mode)
    yield "rope_heads", "partial", partial(over_texts, "rope_heads", rotary_dim=8)
    yield "rope_heads", "normed", partial(over_texts, "rope_heads", rotary_dim=HEAD_DIM, eps=1e-5)
    yield "rope_heads", "values", partial(over_texts, "rope_heads", rotary_dim=HEAD_DIM, eps=1e-5, norms_values=True)
    yield "ragged_attention", "plain", partial(over_texts, "ragged_attention", causal=False)
    bent: dict[str, Any] = {"window": 5, "softcap": 30.0, "scale": 0.2}
    yield "ragged_attention", "window", partial(over_texts, "ragged_attention", causal=False, **bent)
    yield "ragged_attention", "causal", partial(over_texts, "ragged_attention")
    yield "ragged_attention", "distances", partial(over_texts, "ragged_attention", causal=False, more=True)
    yield "ragged_attention", "distance_heads", partial(over_texts, "ragged_attention", window=9, distance_rows=7)
    fused: dict[str, Any] = {"output": OUTPUTS, "causal": False}
    yield "ragged_attention", "linear_plain", partial(over_texts, "ragged_attention", residual=True, **fused)
    yield "ragged_attention", "linear_window", partial(over_texts, "ragged_attention", **(fused | bent))
    yield "ragged_attention", "linear_distances", partial(over_texts, "ragged_attention", more=True, **fused)
    yield "ragged_attention", "linear_causal", partial(over_texts, "ragged_attention", output=130)
    yield "take_rows", "plain", take_rows
    for x_dtype, dtype in product(DTYPES, DTYPES):
        yield "slice_columns", f"{x_dtype}_{dtype}", partial(slice_columns, x_dtype, dtype)
        yield "rms_norm", f"{x_dtype}_{dtype}", partial(rms_norm, x_dtype, dtype)
        for norm in (False, True):
            name = f"{x_dtype}_{dtype}" + "_norm" * norm
            yield "linear", name, partial(linear, x_dtype, dtype, norm=norm)
            yield "add_lora", name, partial(add_lora, x_dtype, dtype, norm=norm)
    yield "rms_norm", "residual", partial(rms_norm, "float32", "float32", residual=True)
    for bias in (False, True):
        yield "rms_norm", "centered" + "_bias" * bias, partial(rms_norm, "float32", "float32", centered=True, bias=bias)
    yield "rms_norm", "groups", partial(rms_norm, "float32", "float32", groups=3)
    yield "rms_norm", "factor", partial(rms_norm, "float32", "float32", residual=True, factor=True)
    for bias, residual in ((True, False), (False, True), (True, True)):
        yield "linear", "bias" * bias + "residual" * residual, partial(linear, bias=bias, residual=residual, norm=True)
    part: dict[str, Any] = {"columns": OUTPUTS + 20, "offset": 7, "bias": True}
    later: dict[str, Any] = {"columns": OUTPUTS + 20, "offset": 20, "later": True}
    yield "linear", "first_part", partial(linear, **part)
    yield "linear", "later_part", partial(linear, "float32", "activation", residual=True, **later)
    yield "linear", "side_gate", partial(linear, norm=True, bias=True, up_start=9, activation="gelu_tanh")
    for optional in (("norm",), ("norm", "bias", "factor"), ()):
        yield "linear", "_".join(("stream", *optional)), partial(in_stream, optional)
    yield "linear", "gated_stream", partial(in_stream, ("norm",), gated=True)
    for activation in ("gelu", "relu", "tanh"):
        yield "linear", f"then_{activation}", partial(linear, bias=True, residual=True, y_activation=activation)
    yield "linear", "layer_norm", partial(linear, norm=True, centered=True, norm_bias=True, bias=True)
    yield "linear", "keeps_norm", partial(linear, norm=True, centered=True, norm_bias=True, keeps_norm=True)
    yield "linear", "rounded_input", partial(linear, bias=True, x_step=0.25)
    yield "linear", "rounded_activation", partial(linear, "activation", "activation", residual=True, x_step=0.25)
    yield "add", "plain", add
    for x_dtype, dtype in (("float32", "activation"), ("activation", "float32")):
        yield "fake_quantize", f"{x_dtype}_{dtype}", partial(fake_quantize, x_dtype, dtype)
    yield "gate", "wide", partial(gate, "silu", start=3)
    for activation in ACTIVATIONS:
        yield "activate", activation, partial(activate, activation)
        yield "gate", activation, partial(gate, activation)
        yield "gate_halves", activation, partial(gate_halves, activation)
        yield "linear", f"gated_{activation}", partial(linear, gated=activation)
    yield "linear", "gated_norm_bias", partial(linear, "activation", gated="gelu", norm=True, bias=True)
    yield "linear", "gated_layer_norm", partial(linear, gated="silu", norm=True, centered=True)
    yield "linear", "gated_first_part", partial(linear, gated="silu", **part)
    yield "linear", "gated_later_part", partial(linear, gated="relu2", **later)
    yield "gate", "limited", partial(gate, "silu", limit=2.0, slope=1.702, shift=1.0)
    yield "gate_halves", "limited", partial(gate_halves, "silu", limit=2.0, slope=1.702, shift=1.0)
    yield "linear", "gated_limited", partial(linear, gated="silu", limit=2.0)
    yield "xielu", "plain", xielu
    yield "linear", "row_factors", partial(linear, bias=True, row_factors=True, residual=True)
    yield "scale", "plain", scale
    yield "scale_rows", "plain", scale_rows
    for x_dtype, dtype in (("float32", "activation"), ("activation", "float32")):
        yield "clip", f"{x_dtype}_{dtype}", partial(clip, x_dtype, dtype)
    yield from expert_graphs()
    yield "soft_cap", "capped", partial(soft_cap, 5.0)
    yield "soft_cap", "scaled", partial(soft_cap, None)
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
    yield "attention", "new_window", partial(over_pages, "attention", window=5, rotary_dim=8, **new)
    yield "attention", "new_sinks", partial(over_pages, "attention", rotary_dim=0, sinks=True, **new)
    for op in ("adjust_logits", "sample", "top_logprobs"):
        yield op, "plain", partial(sampling, op)
    yield from state_graphs()


def embed(first_row: int | None = None, later: int | None = None, *, samples: bool = True) -> Graph:
    graph = Builder()
    where = {"token_ids": graph.value("token_ids", ("S",), "int32")}
    if samples:
        where["sampled"] = graph.state("sampled", ("N",), "int32")
    table = graph.matrix("table", 20 if later else VOCAB, COLUMNS)
    graph.add("embed", {"table": table, **where}, name="y", first_row=first_row, scale=2.5)
    if later is None:
        return graph.ends("y")
    second = graph.matrix("second_table", VOCAB - 20, COLUMNS)
    return graph.ends(graph.add("embed", {"table": second, **where, "into": "y"}, name="z", first_row=later, scale=2.5))


def embed_positions(*, positions: bool = True) -> Graph:
    graph = Builder()
    inputs = {
        "x": graph.value("x", ("S", COLUMNS)),
        "token_types": graph.value("token_types", ("S",), "int32"),
        "type_table": graph.matrix("type_table", 2, COLUMNS),
    }
    if positions:
        inputs["positions"] = graph.value("positions", ("S",), "int32")
        inputs["position_table"] = graph.matrix("position_table", 40, COLUMNS)
    attrs = {"first_position": 2} if positions else {}
    return graph.ends(graph.add("embed_positions", inputs, name="y", **attrs))


def pool_rows(mode: str) -> Graph:
    graph = Builder()
    starts = graph.value("seq_starts", (["add", "B", 1],), "int32")
    return graph.ends(
        graph.add("pool_rows", {"x": graph.value("x", ("S", COLUMNS)), "seq_starts": starts}, name="y", mode=mode)
    )


def over_texts(
    op: str,
    *,
    rotary_dim: int = 0,
    output: int = 0,
    residual: bool = False,
    more: bool = False,
    distance_rows: int = 0,
    **attrs: Any,
) -> Graph:
    """An op on the joint projection of queries, keys and values of complete texts. ``output``: the outputs of an op
    that projects, which has a bias then. ``more``: scores have sinks, and biases of distances. ``distance_rows``: the
    number of heads for distances; each query head has its own keys then.
    """
    graph = Builder()
    kv_heads = HEADS if distance_rows else KV_HEADS
    inputs = {
        "qkv": graph.value("qkv", ("S", (HEADS + 2 * kv_heads) * HEAD_DIM), "activation"),
        "positions": graph.value("positions", ("S",), "int32"),
    }
    if op != "rope_heads":
        inputs["seq_starts"] = graph.value("seq_starts", (["add", "B", 1],), "int32")
    if more:
        inputs["distance_bias"] = graph.vector("distance_bias", HEADS * DISTANCES)
        inputs["sinks"] = graph.vector("sinks", HEADS)
    if distance_rows:
        inputs["distance_heads"] = graph.vector("distance_heads", 2 * HEADS * distance_rows * HEAD_DIM)
        inputs["distance_rows"] = graph.vector("distance_rows", DISTANCES)
    if output:
        inputs |= {"weight": graph.matrix("weight", output, HEADS * HEAD_DIM), "bias": graph.vector("bias", output)}
    if residual:
        inputs["store0_b"], attrs["store"] = graph.value("residual", ("S", output)), [{"op": "add"}]
    if rotary_dim:
        inputs["table"] = rope_table(graph, rotary_dim)
    if "eps" in attrs:
        inputs["qk_norm"] = graph.vector("qk_norm", 2 * HEAD_DIM)
    return graph.ends(graph.add(op, inputs, name="y", head_dim=HEAD_DIM, num_kv_heads=kv_heads, **attrs))


def take_rows() -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS)), "rows": graph.value("rows", ("R",), "int32")}
    return graph.ends(graph.add("take_rows", inputs, name="y"))


def slice_columns(x_dtype: DType, dtype: DType) -> Graph:
    graph = Builder()
    return graph.ends(
        graph.add(
            "slice_columns", {"x": graph.value("x", ("S", COLUMNS), x_dtype)}, name="y", start=5, stop=30, dtype=dtype
        )
    )


def rms_norm(
    x_dtype: DType,
    dtype: DType,
    *,
    centered: bool = False,
    bias: bool = False,
    residual: bool = False,
    factor: bool = False,
    groups: int = 1,
) -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", 3 * HEAD_DIM), x_dtype), "weight": graph.vector("weight", groups * HEAD_DIM)}
    if bias:
        inputs["bias"] = graph.vector("bias", HEAD_DIM)
    store = []
    if residual:
        inputs["store0_b"] = graph.value("residual", ("S", 3 * HEAD_DIM))
        store.append({"op": "add"})
    if factor:
        inputs["store1_factor"] = graph.vector("factor", 1)
        store.append({"op": "scale"})
    return graph.ends(
        graph.add("rms_norm", inputs, name="y", eps=1e-3, dtype=dtype, centered=centered, groups=groups, store=store)
    )


def add() -> Graph:
    graph = Builder()
    return graph.ends(
        graph.add("add", {"a": graph.value("a", ("S", COLUMNS)), "b": graph.value("b", ("S", COLUMNS))}, name="y")
    )


def fake_quantize(x_dtype: DType, dtype: DType) -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS), x_dtype)}
    return graph.ends(graph.add("fake_quantize", inputs, name="y", scale=0.25, dtype=dtype))


def activate(activation: str) -> Graph:
    graph = Builder()
    return graph.ends(graph.add("activate", {"x": graph.value("x", ("S", COLUMNS))}, name="y", activation=activation))


def xielu() -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS)), "alphas": graph.vector("alphas", 4)}
    return graph.ends(graph.add("xielu", inputs, name="y"))


def gate(activation: str, start: int = 0, **attrs: float) -> Graph:
    graph = Builder()
    up = graph.value("up", ("S", COLUMNS + 2 * start), "activation" if start else "float32")
    inputs = {"gate": graph.value("gate", ("S", COLUMNS)), "up": up}
    return graph.ends(graph.add("gate", inputs, name="y", activation=activation, start=start, **attrs))


def gate_halves(activation: str, **attrs: float) -> Graph:
    graph = Builder()
    return graph.ends(
        graph.add("gate_halves", {"x": graph.value("x", ("S", 2 * COLUMNS))}, name="y", activation=activation, **attrs)
    )


def scale_rows() -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS)), "factors": graph.value("factors", ("S",))}
    return graph.ends(graph.add("scale_rows", inputs, name="y"))


def clip(x_dtype: DType, dtype: DType) -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS), x_dtype)}
    return graph.ends(graph.add("clip", inputs, name="y", limit=0.7, dtype=dtype))


def scale() -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS)), "factor": graph.vector("factor", 1)}
    return graph.ends(graph.add("scale", inputs, name="y"))


def soft_cap(cap: float | None) -> Graph:
    graph = Builder()
    return graph.ends(graph.add("soft_cap", {"x": graph.value("x", ("S", COLUMNS))}, name="y", scale=0.3, cap=cap))


def linear(
    x_dtype: DType = "float32",
    dtype: DType = "float32",
    *,
    norm: bool = False,
    bias: bool = False,
    residual: bool = False,
    gated: str | None = None,
    columns: int | None = None,
    offset: int = 0,
    later: bool = False,
    x_step: float | None = None,
    up_start: int | None = None,
    activation: str = "silu",
    y_activation: str | None = None,
    centered: bool = False,
    norm_bias: bool = False,
    keeps_norm: bool = False,
    row_factors: bool = False,
    limit: float | None = None,
) -> Graph:
    """``later``: another projection has written the ``offset`` columns before it. ``gated``: the activation of a gate
    of halves. ``up_start``: it gates columns of another value.
    """
    graph = Builder()
    x, width, into, halves = graph.value("x", ("S", COLUMNS), x_dtype), columns or OUTPUTS, None, 2 if gated else 1
    parts = parts_of(
        COLUMNS,
        width,
        norm_eps=1e-3 if norm else None,
        norm_bias=norm_bias,
        centered=centered,
        keeps_norm=keeps_norm,
        x_step=x_step,
        gated=gated is not None,
        activation=gated or activation,
        up_width=0 if up_start is None else up_start + width + 5,
        up_start=up_start or 0,
        y_activation=y_activation,
        row_factors=row_factors,
        limit=limit,
        residual=residual,
    )
    if later:
        inputs = {"x": x, "weight": graph.matrix("first", halves * offset, COLUMNS)}
        into = graph.add(
            "linear", inputs, name="z", dtype=dtype, columns=columns, store=parts.store[:1] if gated else []
        )
    given = {
        "x": x,
        "weight": graph.matrix("weight", halves * OUTPUTS, COLUMNS),
        "bias": graph.vector("bias", 2 * OUTPUTS if gated else width) if bias else None,
        "into": into,
        **graph.declare(parts),
    }
    y = graph.add("linear", given, name="y", dtype=dtype, columns=columns, offset=offset, **parts.attrs)
    if keeps_norm:
        graph.outputs["normed"] = "y.load0"
    return graph.ends(y)


def in_stream(optional: tuple[str, ...], *, gated: bool = False) -> Graph:
    """A projection of the residual stream plus the norm of x."""
    graph = Builder()
    outputs = 2 * OUTPUTS if gated else OUTPUTS
    norm, factor = "norm" in optional, "factor" in optional
    eps = 1e-3 if norm else None
    parts = parts_of(COLUMNS, OUTPUTS, stream_eps=1e-2, stream_factor=factor, norm_eps=eps, joint=norm, gated=gated)
    inputs = {
        "x": graph.value("x", ("S", COLUMNS)),
        "weight": graph.matrix("weight", outputs, COLUMNS),
        "bias": graph.vector("bias", outputs) if "bias" in optional else None,
        **graph.declare(parts),
    }
    if norm:
        inputs[f"load{len(parts.load) - 1}_weight"] = inputs["load0_weight"]
    graph.add("linear", inputs, name="y", dtype="float32", **parts.attrs)
    graph.outputs["summed"] = "y.load2" if factor else "y.load1"
    return graph.ends("y")


def add_lora(x_dtype: DType, dtype: DType, *, norm: bool) -> Graph:
    graph, rank, widths = Builder(), 2, [OUTPUTS - 9, 9]
    x = graph.value("x", ("S", COLUMNS), x_dtype)
    into = graph.add("linear", {"x": x, "weight": graph.matrix("weight", OUTPUTS, COLUMNS)}, name="z", dtype=dtype)
    inputs = {
        "x": x,
        "adapters": graph.value("adapters", ("S",), "int32"),
        "a": graph.state("a", ("M", rank * len(widths), COLUMNS), "float32"),
        "b": graph.state("b", ("M", OUTPUTS, rank), "float32"),
        "load0_weight": graph.vector("norm", COLUMNS) if norm else None,
        "into": into,
    }
    load = [{"op": "rms_norm", "eps": 1e-3}] if norm else []
    return graph.ends(graph.add("add_lora", inputs, name="y", widths=widths, dtype=dtype, load=load))


def over_pages(
    op: str,
    *,
    rotary_dim: int = HEAD_DIM,
    joint: bool = False,
    norm_width: int = 0,
    sinks: bool = False,
    **attrs: Any,
) -> Graph:
    """An op of the attention family; ``attrs`` are its own. ``joint``: on a joint projection, which it appends."""
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
        "table": partial(rope_table, graph, rotary_dim),
        "sinks": partial(graph.vector, "sinks", HEADS),
        **{role: partial(graph.vector, role, norm_width) for role in ("norm", "qk_norm")},
    }
    given = {"table": rotary_dim > 0, "sinks": sinks, "norm": norm_width > 0, "qk_norm": norm_width > 0}
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
}


def rope_table(graph: Graph, rotary_dim: int) -> str:
    attrs = {"inverse_frequencies": [0.5**i for i in range(rotary_dim // 2)], "scale": 1.0}
    graph.constants["table"] = Constant("table", "rope", (64, rotary_dim // 2, 2), attrs)
    return "table"


def sampling(op: str) -> Graph:
    graph = Builder()
    inputs = {"logits": graph.value("logits", ("R", VOCAB))}
    if op != "top_logprobs":
        inputs["settings"] = graph.value("settings", ("R", len(Settings._fields)))
        inputs["slots"] = graph.value("sample_slots", ("R", 2), "int32")
        inputs["counts"] = graph.state("counts", ("N", VOCAB), "int32")
    if op == "adjust_logits":
        inputs["bias"] = graph.state("bias", ("N", VOCAB), "float32")
        inputs["mask"] = graph.state("mask", ("N", -(-VOCAB // 32)), "int32")
    if op == "sample":
        inputs["adjusted"] = graph.value("adjusted", ("A", VOCAB))
        inputs["sampled"] = graph.state("sampled", ("N",), "int32")
    graph.add(op, inputs, name="y")
    return graph
