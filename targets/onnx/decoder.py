"""Decoder: convert our graph of a forward pass to ONNX nodes, op by op, up to the logits.

Our graph is for a ragged batch and pages of keys and values; the ONNX graph is for rows of equal length, padded at
their end, with one cache per sequence. A state would read the padding, so a graph with states fails on padded rows
instead of answering. The ops that depend on sequences change: lengths follow from
``attention_mask``, append_kv and attention become one GroupQueryAttention (`attention.py`), and the sampled rows are
the last of each sequence. All other ops work on rows (batch * sequence, columns) of the activation dtype.

    input_ids (batch, sequence) int64       new tokens
    attention_mask (batch, total) int64     ones, as many as the sequence has tokens, past and new, then zeros
    past_key_values.N.key, .value (batch, kv_heads, past, head_dim)
    inputs_embeds (batch, sequence, N)      instead of input_ids, in a model that sees pictures; see `embeddings.py`
    -> logits (batch, 1, vocab) float32, present.N.key, .value (batch, kv_heads, total, head_dim)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.ir.graph import Node, Parameter
from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.runtime.errors import QuantizationError, UnsupportedModel

from .attention import add_append, add_attention
from .builder import ELEMENT_TYPES, MICROSOFT, Builder
from .emitter import Emit, Emitter
from .experts import add_mixture, defer_part
from .gates import add_activate, add_clip, add_gate, add_gate_halves, add_soft_cap
from .matmul_nbits import ACCURACY_LEVEL
from .rotation import defer_rotation
from .states import add_causal_conv, add_gated_delta, add_ssm_scan


def build_decoder(emitter: Emitter, forms: Mapping[str, Form] | None = None) -> None:
    """Fill the emitter's builder. ``forms`` are instead of FORMS, whose inputs have then been added.

    Raises UnsupportedModel for an op, or an attribute of one, that has no ONNX form; RequestError and QuantizationError
    for input that ONNX Runtime's kernels do not support.
    """
    if forms is None:
        add_inputs(emitter)
    logits = emitter.graph.outputs["logits"]
    emitter.builder.add_output("logits", "float32", ("batch_size", 1, emitter.spec.vocab_size))
    for node in emitter.graph.nodes:
        if node.outputs.get("y") == logits:
            break
        form_of(node, forms).emit(emitter, node)
    if emitter.appends:
        raise UnsupportedModel(
            f"no attention follows the keys and values appended to {next(iter(emitter.appends))}, and ONNX Runtime "
            f"appends them in one; "
            "use --target webgpu, cpu or cuda"
        )
    # The output has one more axis and its own dtype, so our value gets another name.
    form_of(node, forms).emit(emitter, Node(node.op, node.inputs, {"y": "logits_rows"}, node.attrs))
    rows = emitter.rows("logits_rows")
    if emitter.activation != "float32":
        rows = emitter.builder.add("Cast", [rows], "logits_float32", to=ELEMENT_TYPES["float32"])
    emitter.builder.add("Unsqueeze", [rows, emitter.builder.integers(1)], "logits")


def form_of(node: Node, forms: Mapping[str, Form] | None = None) -> Form:
    """Raises UnsupportedModel for an op, an input or an attribute that has no ONNX form: omitting it would change the
    answers.
    """
    form = (forms or FORMS).get(node.op)
    known = () if form is None else (*OPS[node.op].inputs, *form.optional)
    unknown = [f"input {role!r}" for role in node.inputs if role not in known]
    unknown += (
        [] if form is None else [f"{name} {value!r}" for name, value in node.attrs.items() if name not in form.attrs]
    )
    if form is not None and not unknown:
        return form
    found = node.op if form is None else f"{node.op} with {unknown[0]}"
    raise UnsupportedModel(
        f"the model has {found}, which has no form in --target onnx; use --target webgpu, cpu or cuda"
    )


def add_inputs(emitter: Emitter) -> None:
    """Add tokens and mask, and values computed from them: lengths, and the last row of each sequence."""
    builder = emitter.builder
    add = builder.add
    builder.add_input("input_ids", "int64", AXES)
    add("Shape", ["input_ids"], "ids_shape")
    emitter.names["token_ids"] = add("Reshape", ["input_ids", builder.integers(-1)], "token_ids")
    add_mask(emitter)


def add_mask(emitter: Emitter) -> None:
    """Add the mask, and what `add_rows` adds, given ids_shape."""
    builder = emitter.builder
    add, integer = builder.add, builder.integer
    builder.add_input("attention_mask", "int64", ("batch_size", "total_sequence_length"))
    add("ReduceSum", ["attention_mask", builder.integers(1)], "lengths", keepdims=0)
    add("Shape", ["attention_mask"], "mask_shape")
    add("Gather", ["mask_shape", integer(1)], "total_length", axis=0)
    add_rows(emitter)


def add_rows(emitter: Emitter) -> None:
    """Add values computed from ids_shape (batch, sequence), lengths (batch,) and total_length: what attention needs,
    and the last row of each sequence.
    """
    builder = emitter.builder
    add, integer = builder.add, builder.integer
    add("Concat", ["ids_shape", builder.integers(-1)], "sequences_shape", axis=0)
    add("Sub", ["lengths", integer(1)], "last_positions")
    add("Cast", ["last_positions"], "seqlens_k", to=ELEMENT_TYPES["int32"])
    add("Cast", ["total_length"], "total_sequence_length", to=ELEMENT_TYPES["int32"])
    # GroupQueryAttention supports several new tokens of several sequences only without a past. So a sequence's last row
    # is the row of its last position, or, for a single sequence, the last row of all.
    add("Gather", ["ids_shape", integer(0)], "num_sequences", axis=0)
    add("Gather", ["ids_shape", integer(1)], "num_new", axis=0)
    add("Sub", ["num_new", integer(1)], "last_new")
    add("Min", ["last_positions", "last_new"], "last_rows")
    add("Range", [integer(0), "num_sequences", integer(1)], "sequence_numbers")
    add("Mul", ["sequence_numbers", "num_new"], "first_rows")
    recurrent = any(node.op in STATE_OPS for node in emitter.graph.nodes)
    last_rows = last_rows_unpadded(builder) if recurrent else "last_rows"
    add("Add", ["first_rows", last_rows], "sample_rows")
    emitter.names["sample_rows"] = "sample_rows"


def last_rows_unpadded(builder: Builder) -> str:
    """The last rows, if every row has at least as many tokens as are new; else the call fails, and the runtime's
    message names this node. Several new tokens of several rows have no past, so a shorter row is a padded one.
    """
    add, integer = builder.add, builder.integer
    padding = add("Max", [add("Sub", ["num_new", "lengths"], "missing_new"), integer(0)], "padding")
    total = add("ReduceSum", [padding, builder.integers(0)], "padding_total", keepdims=1)
    # A reshape to another size is the error.
    count = add("Add", [add("Shape", ["last_rows"], "last_rows_shape"), total], "unpadded_shape")
    return add("Reshape", ["last_rows", count], UNPADDED)


def add_embed(emitter: Emitter, node: Node) -> None:
    table = emitter.graph.parameters[node.inputs["table"]]
    (token_ids,), y = emitter.inputs(node, "token_ids"), node.outputs["y"]
    emitter.names[y] = scaled(emitter, node, table_rows(emitter, table, token_ids, y))


def table_rows(emitter: Emitter, table: Parameter, token_ids: str, y: str) -> str:
    """The rows of a table with these numbers, for the result y."""
    add = emitter.builder.add
    if not emitter.packed(table):
        rows = add("Gather", [emitter.dense(table), token_ids], f"{y}.stored", axis=0)
        if emitter.dense_dtype(table) != emitter.activation:
            rows = add("Cast", [rows], f"{y}.activations", to=ELEMENT_TYPES[emitter.activation])
        return rows
    # The blob of MatMulNBits, so that a tied head shares it: blocks are a separate axis, and scales have the same
    # number of axes as codes.
    bits, block = emitter.bits(table), emitter.block(table)
    if emitter.has_zeros(table):
        raise QuantizationError(
            f"{table.name} is an embedding with zero points, which the ONNX target does not read; add --requantize to "
            "convert the weights",
            tensor=table.name,
        )
    inputs = [emitter.codes(table), token_ids, emitter.scales(table, trailing=(1,))]
    attrs = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 2}
    blocks = add("GatherBlockQuantized", inputs, f"{y}.blocks", domain=MICROSOFT, **attrs)
    columns, integers = table.shape[1], emitter.builder.integers
    padded = -(-columns // block) * block
    rows = add("Reshape", [blocks, integers(-1, padded)], f"{y}.padded")
    if padded == columns:
        return rows
    return add("Slice", [rows, integers(0), integers(columns), integers(1)], f"{y}.columns")


def scaled(emitter: Emitter, node: Node, rows: str) -> str:
    """The embedding times the node's scale."""
    scale = node.attr("scale")
    if scale == 1:
        return rows
    factor = emitter.factor(scale)
    return emitter.builder.add("Mul", [rows, factor], node.outputs["y"])


def add_slice_columns(emitter: Emitter, node: Node) -> None:
    """Emit all slices of a value at the first one, if they are in order and cover the value; else only this one."""
    y, add, integers = node.outputs["y"], emitter.builder.add, emitter.builder.integers
    if y in emitter.names:
        return
    slices = [each for each in emitter.graph.users(node.inputs["x"]) if each.op == "slice_columns"]
    bounds = [(each.attrs["start"], each.attrs["stop"]) for each in slices]
    ends = [0, *(stop for _, stop in bounds)]
    if [start for start, _ in bounds] == ends[:-1] and ends[-1] == emitter.columns(node.inputs["x"]):
        names = [each.outputs["y"] for each in slices]
        add("Split", [*emitter.inputs(node, "x"), integers(*(stop - start for start, stop in bounds))], *names, axis=1)
        emitter.names |= {name: name for name in names}
    else:
        start, stop = node.attrs["start"], node.attrs["stop"]
        emitter.names[y] = add("Slice", [*emitter.inputs(node, "x"), integers(start), integers(stop), integers(1)], y)


def add_linear(emitter: Emitter, node: Node) -> None:
    weight = emitter.graph.parameters[node.inputs["weight"]]
    (x,), y = emitter.inputs(node, "x"), node.outputs["y"]
    bias = emitter.vector(node.inputs["bias"]) if "bias" in node.inputs else None
    add = emitter.builder.add
    if emitter.packed(weight):
        inputs = [x, emitter.codes(weight), emitter.scales(weight)]
        if bias or emitter.has_zeros(weight):
            inputs += [emitter.zeros(weight), *(["", bias] if bias else [])]
        bits, block = emitter.bits(weight), emitter.block(weight)
        attrs = {"K": weight.shape[1], "N": weight.rows, "bits": bits, "block_size": block}
        emitter.names[y] = add("MatMulNBits", inputs, y, domain=MICROSOFT, accuracy_level=ACCURACY_LEVEL, **attrs)
    else:
        inputs = [x, emitter.dense_activation(weight), *([bias] if bias else [])]
        emitter.names[y] = add("Gemm", inputs, y, transB=1)


def add_rms_norm(emitter: Emitter, node: Node) -> None:
    """A norm of heads is deferred on devices whose attention can do it."""
    width = emitter.graph.parameters[node.inputs["weight"]].rows
    if node.attr("groups") > 1:
        add_group_norm(emitter, node)
    elif width == emitter.columns(node.inputs["x"]):
        add_row_norm(emitter, node)
    elif emitter.device.norms_heads and not is_layer_norm(node):
        emitter.defer(node, add_head_norm)
    else:
        add_head_norm(emitter, node)


def add_head_norm(emitter: Emitter, node: Node) -> None:
    y, width = node.outputs["y"], emitter.graph.parameters[node.inputs["weight"]].rows
    heads = emitter.builder.add(
        "Reshape", [emitter.name(node.inputs["x"]), emitter.builder.integers(-1, width)], f"{y}.heads"
    )
    emitter.names[y] = norm_rows(emitter, heads, node)
    emitter.reshaped.add(y)


def add_group_norm(emitter: Emitter, node: Node) -> None:
    """The norm of each of several equal parts of a row, times weights of the whole row."""
    builder, y, width = emitter.builder, node.outputs["y"], emitter.columns(node.inputs["x"])
    size = width // node.attrs["groups"]
    ones = builder.constant(f"ones_{size}", np.ones(size, emitter.activation))
    (x,) = emitter.inputs(node, "x")
    parts = builder.add("Reshape", [x, builder.integers(-1, size)], f"{y}.parts")
    parts = norm_of(emitter, parts, ones, node.attrs["eps"], f"{y}.unit_parts")
    rows = builder.add("Reshape", [parts, builder.integers(-1, width)], f"{y}.unit_rows")
    emitter.names[y] = builder.add("Mul", [rows, *norm_vectors(emitter, node)], y)


def add_row_norm(emitter: Emitter, node: Node) -> None:
    x, y, eps = node.inputs["x"], node.outputs["y"], node.attrs["eps"]
    total = emitter.deferred_node(x, "add")
    if total is None or ("bias" in node.inputs and not is_layer_norm(node)):
        emitter.names[y] = norm_rows(emitter, emitter.rows(x), node)
        return
    emitter.claim(total)
    inputs = [*emitter.inputs(total, "a", "b"), *norm_vectors(emitter, node)]
    op = "SkipLayerNormalization" if is_layer_norm(node) else "SkipSimplifiedLayerNormalization"
    emitter.builder.add(op, inputs, y, "", "", x, domain=MICROSOFT, epsilon=eps)
    emitter.names |= {x: x, y: y}


def is_layer_norm(node: Node) -> bool:
    """Whether a norm subtracts the mean."""
    return bool(node.attr("centered"))


def norm_vectors(emitter: Emitter, node: Node) -> list[str]:
    return [emitter.vector(node.inputs[role]) for role in ("weight", "bias") if role in node.inputs]


def norm_rows(emitter: Emitter, x: str, node: Node) -> str:
    y, eps, (gamma, *bias) = node.outputs["y"], node.attrs["eps"], norm_vectors(emitter, node)
    if is_layer_norm(node):
        return emitter.builder.add("LayerNormalization", [x, gamma, *bias], y, epsilon=eps, axis=-1)
    if not bias:
        return norm_of(emitter, x, gamma, eps, y)
    return emitter.builder.add("Add", [norm_of(emitter, x, gamma, eps, f"{y}.unbiased"), *bias], y)


def norm_of(emitter: Emitter, x: str, gamma: str, eps: float, y: str) -> str:
    """The RMS norm of each row, for the result y, as one op or as the ops that it consists of."""
    builder, add = emitter.builder, emitter.builder.add
    if emitter.device.fused_norms:
        return add("SimplifiedLayerNormalization", [x, gamma], y, epsilon=eps, axis=-1)
    mean = add("ReduceMean", [add("Mul", [x, x], f"{y}.squares"), builder.integers(-1)], f"{y}.mean", keepdims=1)
    epsilon = builder.constant(f"epsilon_{eps}", np.array([eps], emitter.activation))
    root = add("Sqrt", [add("Add", [mean, epsilon], f"{y}.mean_epsilon")], f"{y}.root")
    return add("Mul", [add("Div", [x, root], f"{y}.unit"), gamma], y)


def defer_sum(emitter: Emitter, node: Node) -> None:
    """A sum is deferred on devices whose norms can do it."""
    if emitter.device.fused_norms:
        emitter.defer(node, add_sum)
    else:
        add_sum(emitter, node)


def add_sum(emitter: Emitter, node: Node) -> None:
    y = node.outputs["y"]
    emitter.names[y] = emitter.builder.add("Add", emitter.inputs(node, "a", "b"), y)


def add_scale(emitter: Emitter, node: Node) -> None:
    y = node.outputs["y"]
    emitter.names[y] = emitter.builder.add(
        "Mul", [*emitter.inputs(node, "x"), emitter.vector(node.inputs["factor"])], y
    )


def add_take_rows(emitter: Emitter, node: Node) -> None:
    emitter.names[node.outputs["y"]] = emitter.builder.add(
        "Gather", emitter.inputs(node, "x", "rows"), node.outputs["y"], axis=0
    )


@dataclass(frozen=True, slots=True)
class Form:
    """The function that writes an op, and the attributes and optional inputs that it supports."""

    emit: Emit
    attrs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


# Transformers.js identifies axes by these names.
AXES = ("batch_size", "sequence_length")
STATE_OPS = ("causal_conv", "gated_delta", "ssm_scan")
# The name of a node, which a user of another runtime reads in its message.
UNPADDED = "rows_of_a_model_with_states_must_not_be_padded"
# All values have the dtype of activations, whatever their dtype in the graph.
FORMS: dict[str, Form] = {
    "embed": Form(add_embed, ("scale",), ("sampled",)),
    "linear": Form(add_linear, ("dtype",), ("bias",)),
    "slice_columns": Form(add_slice_columns, ("start", "stop", "dtype")),
    "rms_norm": Form(add_rms_norm, ("eps", "dtype", "centered", "groups"), ("bias",)),
    "add": Form(defer_sum),
    "gate": Form(add_gate, ("activation",)),
    "gate_halves": Form(add_gate_halves, ("activation", "limit", "slope", "shift")),
    "activate": Form(add_activate, ("activation",)),
    "soft_cap": Form(add_soft_cap, ("scale", "cap")),
    "scale": Form(add_scale),
    "clip": Form(add_clip, ("limit", "dtype")),
    "take_rows": Form(add_take_rows),
    "rope": Form(defer_rotation, ("head_dim", "dtype")),
    "append_kv": Form(add_append),
    "attention": Form(add_attention, ("scale", "window", "softcap"), ("q", "sinks")),
    "causal_conv": Form(add_causal_conv, ("activation", "start", "gated"), ("bias",)),
    "gated_delta": Form(add_gated_delta, ("a_start", "b_start", "z_start", "eps")),
    "ssm_scan": Form(add_ssm_scan, ("dt_start", "z_start")),
    "route": Form(defer_part, ("chosen", "router", "normalized", "scale"), ("bias", "scales")),
    "expert_linear": Form(defer_part, ("experts", "dtype"), ("bias",)),
    "combine": Form(add_mixture),
}
