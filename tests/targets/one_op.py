"""Small graphs with one op each: every op with its optional inputs and attributes, at sizes that do not fill a tile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from graph_builder import Build, Builder
from one_attention_op import page_graphs, text_graphs
from one_expert_op import expert_graphs
from one_image_op import image_graphs
from one_state_op import state_graphs
from projection_parts import parts_of

from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.ops.encoders import POOLINGS
from nearfar.compiler.ir.ops.op import ACTIVATIONS, DType
from nearfar.compiler.ir.sampling import Settings
from nearfar.compiler.ir.watermark import COLUMNS as COLUMNS_OF_MARK

# Columns of x, outputs of a projection, size of the vocabulary, columns of a norm's group.
COLUMNS, OUTPUTS, VOCAB, GROUP = 37, 45, 51, 24
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
    yield "near_rows", "", near_rows
    for name in CONVOLUTIONS:
        yield "convolve", name, partial(convolve, **CONVOLUTIONS[name])
    yield "row_moments", "", row_moments
    yield "clip_norm", "", clip_norm
    yield from text_graphs()
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
    yield "clamp", "plain", clamp
    yield "linear", "row_factors", partial(linear, bias=True, row_factors=True, residual=True)
    yield "scale", "plain", scale
    yield "scale_rows", "plain", scale_rows
    for x_dtype, dtype in (("float32", "activation"), ("activation", "float32")):
        yield "clip", f"{x_dtype}_{dtype}", partial(clip, x_dtype, dtype)
    yield from expert_graphs()
    yield "soft_cap", "capped", partial(soft_cap, 5.0)
    yield "soft_cap", "scaled", partial(soft_cap, None)
    yield from page_graphs()
    for op in ("adjust_logits", "sample", "top_logprobs"):
        yield op, "plain", partial(sampling, op)
    yield "mark_logits", "plain", mark_logits
    yield from state_graphs()
    yield from image_graphs()


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


def near_rows() -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS)), "positions": graph.value("positions", ("S",), "int32")}
    return graph.ends(graph.add("near_rows", inputs, name="y", size=3))


# Filters of places and of time with a stride, of one place, of each channel for itself, of time alone, and causal ones.
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "frames": {"channels": 1, "outputs": 5, "size": 3, "before": 1, "width": 3, "places": 7, "steps": 8, "stride": 2},
    "both": {"channels": 6, "outputs": 5, "size": 3, "before": 1, "width": 3, "places": 4, "steps": 4, "stride": 2},
    "depthwise": {"channels": 5, "size": 3, "before": 1, "width": 3, "places": 5, "steps": 2, "stride": 2},
    "point": {"channels": 6, "outputs": 9, "size": 1, "before": 0, "places": 3, "steps": 2},
    "time": {"channels": COLUMNS, "size": 9, "before": 4, "frames": 0},
    "causal": {"channels": COLUMNS, "size": 5, "before": 4, "frames": 0, "bias": False},
}


def convolve(channels: int, outputs: int | None = None, *, frames: int = 8, bias: bool = True, **attrs: int) -> Graph:
    graph = Builder()
    weights = attrs["size"] * attrs.get("width", 1) * channels * (outputs or 1)
    inputs = {
        "x": graph.value("x", ("S", attrs.get("steps", 1) * attrs.get("places", 1) * channels)),
        "positions": graph.value("positions", ("S",), "int32"),
        "weight": graph.vector("weight", weights),
    }
    if bias:
        inputs["bias"] = graph.vector("bias", outputs or channels)
    if frames:
        inputs["row_frames"] = graph.value("row_frames", ("S",), "int32")
    depthwise = outputs is None
    return graph.ends(graph.add("convolve", inputs, name="y", frames=frames, depthwise=depthwise, **attrs))


def row_moments() -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", 4 * COLUMNS)), "row_frames": graph.value("row_frames", ("S",), "int32")}
    return graph.ends(graph.add("row_moments", inputs, name="y", frame=COLUMNS))


def clip_norm() -> Graph:
    graph = Builder()
    inputs = {
        "x": graph.value("x", ("S", 4 * COLUMNS)),
        "moments": graph.value("moments", ("S", 3)),
        "positions": graph.value("positions", ("S",), "int32"),
        "weight": graph.vector("weight", COLUMNS),
        "bias": graph.vector("bias", COLUMNS),
    }
    return graph.ends(graph.add("clip_norm", inputs, name="y", eps=1e-5))


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
    inputs = {"x": graph.value("x", ("S", 3 * GROUP), x_dtype), "weight": graph.vector("weight", groups * GROUP)}
    if bias:
        inputs["bias"] = graph.vector("bias", GROUP)
    store = []
    if residual:
        inputs["store0_b"] = graph.value("residual", ("S", 3 * GROUP))
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


def clamp() -> Graph:
    graph = Builder()
    inputs = {"x": graph.value("x", ("S", COLUMNS)), "bounds": graph.vector("bounds", 2)}
    return graph.ends(graph.add("clamp", inputs, name="y"))


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


def mark_logits() -> Graph:
    graph = Builder()
    inputs = {
        "adjusted": graph.value("adjusted", ("A", VOCAB)),
        "token_ids": graph.value("token_ids", ("S",), "int32"),
        "rows": graph.value("sample_rows", ("R",), "int32"),
        "slots": graph.value("sample_slots", ("R", 2), "int32"),
        "sampled": graph.state("sampled", ("N",), "int32"),
        "watermark": graph.state("watermark", (1, COLUMNS_OF_MARK), "int32"),
    }
    graph.add("mark_logits", inputs, name="y")
    return graph


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
