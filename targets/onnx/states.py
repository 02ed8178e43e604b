"""Ops with a state for each sequence: causal_conv -> CausalConvWithState, gated_delta and ssm_scan -> LinearAttention.

A state is an input and an output of the graph, with the names that Transformers.js gives them: past_conv.N and
present_conv.N (batch, channels, taps - 1), past_recurrent.N or past_ssm.N (batch, heads, keys, values) of layer N. It
counts every token of a row, so the rows of a batch must have as many new tokens each, without padding. The graph
refuses others; see `decoder.py`.

A graph of complete texts has no such inputs and outputs. Its states begin with zeros, and stay so through padding in
front of a text, whose inputs are zeros.
"""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.ir.ops.states import L2_EPS
from nearfar.compiler.runtime.errors import UnsupportedModel

from .builder import MICROSOFT
from .emitter import Emitter, layer_of
from .gates import activated
from .pooling import without_padding


def add_causal_conv(emitter: Emitter, node: Node) -> None:
    add, y = emitter.builder.add, node.outputs["y"]
    (x,), (_, kept, channels) = emitter.inputs(node, "x"), emitter.graph.states[node.inputs["state"]].shape
    assert isinstance(kept, int)
    assert isinstance(channels, int)
    x, gate = columns_from(emitter, x, node.attr("start"), channels, f"{y}.x"), ""
    if node.attr("gated"):
        (first,), start = emitter.inputs(node, "x"), node.attr("start")
        gate, inner = (
            columns_from(emitter, first, start + part * channels, channels, f"{y}.{name}")
            for part, name in ((1, "c"), (2, "u"))
        )
        x = add("Mul", [x, inner], f"{y}.gated_input")
    past, present = add_state(emitter, node, "conv", (channels, kept))
    weight = emitter.vector(node.inputs["weight"], (channels, 1, kept + 1))
    bias = emitter.vector(node.inputs["bias"]) if "bias" in node.inputs else ""
    sequences = add("Reshape", [x, "sequences_shape"], f"{y}.sequences")
    sequences = without_padding(emitter, sequences) if reads_texts(emitter) else sequences
    columns = add("Transpose", [sequences], f"{y}.channels", perm=[0, 2, 1])
    attrs = {"ndim": 1, "activation": node.attr("activation")}
    inputs = [columns, weight, bias, past]
    result = add("CausalConvWithState", inputs, f"{y}.result", present, domain=MICROSOFT, **attrs)
    result = add("Transpose", [result], f"{y}.result_sequences", perm=[0, 2, 1])
    # A bias makes other numbers of zeros.
    result = without_padding(emitter, result) if bias and reads_texts(emitter) else result
    result = add("Reshape", [result, emitter.builder.integers(-1, channels)], f"{y}.rows" if gate else y)
    emitter.names[y] = add("Mul", [result, gate], y) if gate else result


def add_gated_delta(emitter: Emitter, node: Node) -> None:
    builder, add, y = emitter.builder, emitter.builder.add, node.outputs["y"]
    heads, dk, dv = sizes_of_state(emitter, node)
    qkv, abz = emitter.inputs(node, "qkv", "abz")
    width = heads * dv
    keys = (emitter.columns(node.inputs["qkv"]) - width) // 2
    parts = [f"{y}.{name}" for name in ("qk", "v")]
    add("Split", [qkv, builder.integers(2 * keys, width)], *parts, axis=1)
    # The norm of a vector of length 1: an RMS norm divided by the root of the number of elements.
    unit = builder.constant(f"unit_{dk}", np.full(dk, dk**-0.5, emitter.activation))
    rows = add("Reshape", [parts[0], builder.integers(-1, dk)], f"{y}.qk_heads")
    rows = add("SimplifiedLayerNormalization", [rows, unit], f"{y}.qk_unit", epsilon=float(L2_EPS) / dk, axis=-1)
    rows = add("Reshape", [rows, builder.integers(-1, 2 * keys)], f"{y}.qk_rows")
    q, k = f"{y}.q", f"{y}.k"
    add("Split", [rows, builder.integers(keys, keys)], q, k, axis=1)
    a, b, z = (
        columns_from(emitter, abz, node.attr(f"{name}_start"), count, f"{y}.{name}")
        for name, count in (("a", heads), ("b", heads), ("z", width))
    )
    a_log, dt_bias, weight = split_vector(emitter, node, ("a_log", heads), ("dt_bias", heads), ("norm", dv))
    decay = decays(emitter, a_log, step_size(emitter, a, dt_bias, y), y)
    beta = add("Sigmoid", [b], f"{y}.beta")
    attrs: dict[str, int | float | str] = {
        "q_num_heads": keys // dk,
        "kv_num_heads": heads,
        "update_rule": "gated_delta",
    }
    mixed = linear_attention(emitter, node, "recurrent", [q, k, parts[1], decay, beta], **attrs)
    by_head = add("Reshape", [mixed, builder.integers(-1, dv)], f"{y}.by_head")
    normed = add("SimplifiedLayerNormalization", [by_head, weight], f"{y}.normed", epsilon=node.attr("eps"), axis=-1)
    normed = add("Reshape", [normed, builder.integers(-1, width)], f"{y}.normed_rows")
    emitter.names[y] = add("Mul", [normed, activated(emitter, "silu", z, y)], y)


def add_ssm_scan(emitter: Emitter, node: Node) -> None:
    """With dt as the size of a step, keys are B, queries C and values dt * x; D * x is added."""
    builder, add, y = emitter.builder, emitter.builder.add, node.outputs["y"]
    heads, head_dim, state_dim = sizes_of_state(emitter, node)
    xbc, beside = emitter.inputs(node, "xbc", "dt")
    width = heads * head_dim
    keys = (emitter.columns(node.inputs["xbc"]) - width) // 2
    x, k, q = (f"{y}.{name}" for name in ("x", "b", "c"))
    add("Split", [xbc, builder.integers(width, keys, keys)], x, k, q, axis=1)
    a_log, d, dt_bias = split_vector(emitter, node, ("a_log", heads), ("d", heads), ("dt_bias", heads))
    dt = step_size(emitter, columns_from(emitter, beside, node.attr("dt_start"), heads, f"{y}.dt"), dt_bias, y)
    by_head = add("Reshape", [x, builder.integers(-1, heads, head_dim)], f"{y}.x_heads")
    each = add("Unsqueeze", [dt, builder.integers(-1)], f"{y}.dt_heads")
    values = add("Reshape", [add("Mul", [by_head, each], f"{y}.dt_x"), builder.integers(-1, width)], f"{y}.values")
    attrs: dict[str, int | float | str] = {
        "q_num_heads": keys // state_dim,
        "kv_num_heads": heads,
        "update_rule": "gated",
        "scale": 1.0,
    }
    mixed = linear_attention(emitter, node, "ssm", [q, k, values, decays(emitter, a_log, dt, y)], **attrs)
    passed = add("Mul", [by_head, add("Unsqueeze", [d, builder.integers(-1)], f"{y}.d_heads")], f"{y}.d_x")
    mixed = add("Reshape", [mixed, builder.integers(-1, heads, head_dim)], f"{y}.mixed_heads")
    total = add("Add", [mixed, passed], f"{y}.sum")
    start = node.attr("z_start")
    rows = add("Reshape", [total, builder.integers(-1, width)], y if start is None else f"{y}.rows")
    if start is not None:
        z = columns_from(emitter, beside, start, width, f"{y}.z")
        rows = add("Mul", [rows, activated(emitter, "silu", z, y)], y)
    emitter.names[y] = rows


def linear_attention(emitter: Emitter, node: Node, kind: str, rows: list[str], **attrs: int | float | str) -> str:
    """Queries, keys, values, decays and perhaps betas, as rows -> (batch, sequence, heads * values). Raises
    UnsupportedModel for keys that the device's kernel does not support.
    """
    add, y = emitter.builder.add, node.outputs["y"]
    heads, first, second = sizes_of_state(emitter, node)
    # Keys come first in the state of LinearAttention.
    shape = (heads, second, first) if kind == "ssm" else (heads, first, second)
    most = emitter.device.state_keys
    if most is not None and shape[1] > most:
        raise UnsupportedModel(
            f"{node.inputs['state']}: the model has {node.op} with keys of {shape[1]} elements, and ONNX Runtime's "
            f"LinearAttention supports at most {most} on this device; use --device cpu, or --target webgpu, cpu or cuda"
        )
    past, present = add_state(emitter, node, kind, shape)
    sequences = [add("Reshape", [each, "sequences_shape"], f"{each}.sequences") for each in rows]
    inputs = [*sequences[:3], past, *sequences[3:]]
    return add("LinearAttention", inputs, f"{y}.mixed", present, domain=MICROSOFT, **attrs)


def step_size(emitter: Emitter, raw: str, bias: str, y: str) -> str:
    add = emitter.builder.add
    return add("Softplus", [add("Add", [raw, bias], f"{y}.biased")], f"{y}.step")


def decays(emitter: Emitter, a_log: str, step: str, y: str) -> str:
    """The logarithms of what a state is multiplied by."""
    add = emitter.builder.add
    rate = add("Neg", [add("Exp", [a_log], f"{y}.rate")], f"{y}.minus_rate")
    return add("Mul", [rate, step], f"{y}.decay")


def split_vector(emitter: Emitter, node: Node, *parts: tuple[str, int]) -> list[str]:
    """The parts of the node's vectors, by name and size."""
    names = [f"{node.outputs['y']}.{name}" for name, _ in parts]
    sizes = emitter.builder.integers(*(size for _, size in parts))
    emitter.builder.add("Split", [emitter.vector(node.inputs["vectors"]), sizes], *names, axis=0)
    return names


def columns_from(emitter: Emitter, x: str, start: int, count: int, name: str) -> str:
    """Columns [start, start + count) of rows."""
    integers = emitter.builder.integers
    return emitter.builder.add("Slice", [x, integers(start), integers(start + count), integers(1)], name)


def sizes_of_state(emitter: Emitter, node: Node) -> tuple[int, int, int]:
    _, *sizes = emitter.graph.states[node.inputs["state"]].shape
    heads, first, second = (size for size in sizes if isinstance(size, int))
    return heads, first, second


def add_state(emitter: Emitter, node: Node, kind: str, shape: tuple[int, ...]) -> tuple[str, str]:
    """The states of a layer before and after the new rows: an input and an output of the graph. Complete texts begin
    with zeros, and nothing reads the states after them.
    """
    layer = layer_of(node.inputs["state"])
    past, present = f"past_{kind}.{layer}", f"present_{kind}.{layer}"
    if reads_texts(emitter):
        return "", present
    emitter.builder.add_input(past, emitter.activation, ("batch_size", *shape))
    emitter.builder.add_output(present, emitter.activation, ("batch_size", *shape))
    return past, present


def reads_texts(emitter: Emitter) -> bool:
    """Whether a call has complete texts."""
    return "page_ids" not in emitter.graph.inputs
