"""Decoder: our graph of a forward pass becomes ONNX nodes, op by op, up to the logits.

Our graph is for a ragged batch and pages of keys and values; this one for rows of equal length, padded at their end, and one cache a
sequence. So what knows about sequences changes: lengths follow from ``attention_mask``, rope, append_kv and attention become one
GroupQueryAttention (`attention.py`), and the sampled rows are the last of each sequence. All else works on rows (batch * sequence, columns)
of the activation dtype.

    input_ids (batch, sequence) int64       new tokens
    attention_mask (batch, total) int64     ones, as many as the sequence has tokens, past and new, then zeros
    past_key_values.N.key, .value (batch, kv_heads, past, head_dim)
    -> logits (batch, 1, vocab) float32, present.N.key, .value (batch, kv_heads, total, head_dim)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nearfar.compiler.errors import UnsupportedModel
from nearfar.compiler.ir.graph import Node

from .attention import add_attention
from .builder import ELEMENT_TYPES, MICROSOFT
from .emitter import Emitter
from .matmul_nbits import ACCURACY_LEVEL


def build_decoder(emitter: Emitter) -> None:
    """Fill the emitter's builder.

    Raises UnsupportedModel for what has no form here, RequestError and QuantizationError for what ONNX Runtime's kernels do not take.
    """
    add_inputs(emitter)
    logits = emitter.graph.outputs["logits"]
    emitter.builder.add_output("logits", "float32", ("batch_size", 1, emitter.spec.vocab_size))
    for node in emitter.graph.nodes:
        if node.outputs.get("y") == logits:
            break
        require_known(node)
        EMITTERS[node.op](emitter, node)
    # The output has an axis more and its own dtype, so ours takes another name.
    EMITTERS[node.op](emitter, Node(node.op, node.inputs, {"y": "logits_rows"}, node.attrs))
    rows = emitter.names["logits_rows"]
    if emitter.activation != "float32":
        rows = emitter.builder.add("Cast", [rows], "logits_float32", to=ELEMENT_TYPES["float32"])
    emitter.builder.add("Unsqueeze", [rows, emitter.builder.integers(1)], "logits")


def require_known(node: Node) -> None:
    """Raise UnsupportedModel for an op, or a variation of one, that has no form here: leaving it out would change the answers."""
    unknown = (
        node.op if node.op not in EMITTERS else next((f"{node.op} with {name}" for name in node.attrs if name not in KNOWN_ATTRS), None)
    )
    if unknown:
        raise UnsupportedModel(f"the model has {unknown}, which --target onnx does not write; take --target webgpu, cpu or cuda")


def add_inputs(emitter: Emitter) -> None:
    """Tokens and mask, and what follows from them: lengths, and the last row of each sequence."""
    builder = emitter.builder
    add, integer = builder.add, builder.integer
    # Transformers.js knows axes by these names.
    builder.add_input("input_ids", "int64", ("batch_size", "sequence_length"))
    builder.add_input("attention_mask", "int64", ("batch_size", "total_sequence_length"))
    add("Shape", ["input_ids"], "ids_shape")
    add("Concat", ["ids_shape", builder.integers(-1)], "sequences_shape", axis=0)
    add("Reshape", ["input_ids", builder.integers(-1)], "token_ids")
    add("ReduceSum", ["attention_mask", builder.integers(1)], "lengths", keepdims=0)
    add("Sub", ["lengths", integer(1)], "last_positions")
    add("Cast", ["last_positions"], "seqlens_k", to=ELEMENT_TYPES["int32"])
    add("Shape", ["attention_mask"], "mask_shape")
    add("Gather", ["mask_shape", integer(1)], "total_length", axis=0)
    add("Cast", ["total_length"], "total_sequence_length", to=ELEMENT_TYPES["int32"])
    # GroupQueryAttention takes several new tokens of several sequences only where there is no past. So a sequence's last row is that of its
    # last position, or, where it is the only sequence, the last of all.
    add("Gather", ["ids_shape", integer(0)], "num_sequences", axis=0)
    add("Gather", ["ids_shape", integer(1)], "num_new", axis=0)
    add("Sub", ["num_new", integer(1)], "last_new")
    add("Min", ["last_positions", "last_new"], "last_rows")
    add("Range", [integer(0), "num_sequences", integer(1)], "sequence_numbers")
    add("Mul", ["sequence_numbers", "num_new"], "first_rows")
    add("Add", ["first_rows", "last_rows"], "sample_rows")
    emitter.names |= {"token_ids": "token_ids", "sample_rows": "sample_rows"}


def add_embed(emitter: Emitter, node: Node) -> None:
    table = emitter.graph.parameters[node.inputs["table"]]
    (token_ids,), y = emitter.inputs(node, "token_ids"), node.outputs["y"]
    add = emitter.builder.add
    if not emitter.packed:
        rows = add("Gather", [emitter.dense(table), token_ids], y if emitter.stores_activations else f"{y}.stored", axis=0)
        emitter.names[y] = rows if emitter.stores_activations else add("Cast", [rows], y, to=ELEMENT_TYPES[emitter.activation])
        return
    # The blob of MatMulNBits, so that a tied head shares it: blocks are an axis of their own, and scales have as many axes as codes.
    bits, block = emitter.bits, emitter.block
    inputs = [emitter.codes(table), token_ids, emitter.scales(table, trailing=(1,))]
    attrs = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 2}
    blocks = add("GatherBlockQuantized", inputs, f"{y}.blocks", domain=MICROSOFT, **attrs)
    columns, integers = table.shape[1], emitter.builder.integers
    padded = -(-columns // block) * block
    rows = add("Reshape", [blocks, integers(-1, padded)], y if padded == columns else f"{y}.padded")
    emitter.names[y] = rows if padded == columns else add("Slice", [rows, integers(0), integers(columns), integers(1)], y)


def add_gated_linear(emitter: Emitter, node: Node) -> None:
    """A product that gives gate and up side by side."""
    y = node.outputs["y"]
    both, gate, up = (f"{y}.{part}" for part in ("gate_up", "gate", "up"))
    add_linear(emitter, Node("linear", node.inputs, {"y": both}))
    emitter.builder.add("Split", [emitter.names[both]], gate, up, axis=1, num_outputs=2)
    add_silu_product(emitter, gate, up, y)


def add_slice_columns(emitter: Emitter, node: Node) -> None:
    """All slices of a value at once, when the first is met; they are in order and leave nothing out."""
    if node.outputs["y"] in emitter.names:
        return
    slices = emitter.graph.users(node.inputs["x"])
    sizes = [each.attrs["stop"] - each.attrs["start"] for each in slices]
    names = [each.outputs["y"] for each in slices]
    emitter.builder.add("Split", [*emitter.inputs(node, "x"), emitter.builder.integers(*sizes)], *names, axis=1)
    emitter.names |= {name: name for name in names}


def add_linear(emitter: Emitter, node: Node) -> None:
    weight = emitter.graph.parameters[node.inputs["weight"]]
    (x,), y = emitter.inputs(node, "x"), node.outputs["y"]
    bias = emitter.vector(node.inputs["bias"]) if "bias" in node.inputs else None
    add = emitter.builder.add
    if emitter.packed:
        inputs = [x, emitter.codes(weight), emitter.scales(weight), *(["", "", bias] if bias else [])]
        attrs = {"K": weight.shape[1], "N": weight.rows, "bits": emitter.bits, "block_size": emitter.block}
        emitter.names[y] = add("MatMulNBits", inputs, y, domain=MICROSOFT, accuracy_level=ACCURACY_LEVEL, **attrs)
    else:
        inputs = [x, emitter.dense_activation(weight), *([bias] if bias else [])]
        emitter.names[y] = add("Gemm", inputs, y, transB=1)


def add_rms_norm(emitter: Emitter, node: Node) -> None:
    x, y, eps = node.inputs["x"], node.outputs["y"], node.attrs["eps"]
    gamma = emitter.vector(node.inputs["weight"])
    width, columns = emitter.graph.parameters[node.inputs["weight"]].rows, emitter.columns(x)
    add, integers = emitter.builder.add, emitter.builder.integers
    if columns != width and emitter.device.norms_heads:
        emitter.pending[y] = node
    elif columns != width:
        # They stay rows of heads, for the attention gives them its own shape.
        assert all(user.op == "rope" for user in emitter.graph.users(y)), node
        heads = add("Reshape", [emitter.names[x], integers(-1, width)], f"{y}.heads")
        emitter.names[y] = norm_rows(emitter, heads, gamma, eps, y)
    elif x in emitter.pending:
        a, b = emitter.inputs(emitter.pending.pop(x), "a", "b")
        add("SkipSimplifiedLayerNormalization", [a, b, gamma], y, "", "", x, domain=MICROSOFT, epsilon=eps)
        emitter.names |= {x: x, y: y}
    else:
        emitter.names[y] = norm_rows(emitter, emitter.names[x], gamma, eps, y)


def norm_rows(emitter: Emitter, x: str, gamma: str, eps: float, y: str) -> str:
    """The RMS norm of each row, as one op or as the ops that it consists of."""
    builder, add = emitter.builder, emitter.builder.add
    if emitter.device.fused_norms:
        return add("SimplifiedLayerNormalization", [x, gamma], y, epsilon=eps, axis=-1)
    mean = add("ReduceMean", [add("Mul", [x, x], f"{y}.squares"), builder.integers(-1)], f"{y}.mean", keepdims=1)
    epsilon = builder.constant(f"epsilon_{eps}", np.array([eps], emitter.activation))
    root = add("Sqrt", [add("Add", [mean, epsilon], f"{y}.mean_epsilon")], f"{y}.root")
    return add("Mul", [add("Div", [x, root], f"{y}.unit"), gamma], y)


def add_sum(emitter: Emitter, node: Node) -> None:
    y = node.outputs["y"]
    if emitter.device.fused_norms and emitter.graph.users(y)[0].op == "rms_norm":
        emitter.pending[y] = node
    else:
        emitter.names[y] = emitter.builder.add("Add", emitter.inputs(node, "a", "b"), y)


def add_gate(emitter: Emitter, node: Node) -> None:
    gate, up = emitter.inputs(node, "gate", "up")
    add_silu_product(emitter, gate, up, node.outputs["y"])


def add_silu_product(emitter: Emitter, gate: str, up: str, y: str) -> None:
    add = emitter.builder.add
    # ONNX Runtime fuses the first two where the device has a kernel for both.
    sigmoid = add("Sigmoid", [gate], f"{y}.sigmoid")
    silu = add("Mul", [gate, sigmoid], f"{y}.silu")
    emitter.names[y] = add("Mul", [silu, up], y)


def add_take_rows(emitter: Emitter, node: Node) -> None:
    emitter.names[node.outputs["y"]] = emitter.builder.add("Gather", emitter.inputs(node, "x", "rows"), node.outputs["y"], axis=0)


def add_later(emitter: Emitter, node: Node) -> None:
    """A rotation, or keys and values on their way to a cache: the attention behind them takes them in."""
    name = node.inputs["kv"] if node.op == "append_kv" else node.outputs["y"]
    emitter.pending[name] = node


# All values have the dtype of activations, whatever ours have.
KNOWN_ATTRS = ("dtype", "eps", "start", "stop", "head_dim")
EMITTERS: dict[str, Callable[[Emitter, Node], None]] = {
    "embed": add_embed,
    "linear": add_linear,
    "gated_linear": add_gated_linear,
    "slice_columns": add_slice_columns,
    "rms_norm": add_rms_norm,
    "add": add_sum,
    "gate": add_gate,
    "take_rows": add_take_rows,
    "rope": add_later,
    "append_kv": add_later,
    "attention": add_attention,
}
