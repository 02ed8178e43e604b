"""Encoder: convert the graph of a model that reads complete texts to ONNX nodes: embeddings, or scores of labels.

The inputs and outputs have the names that optimum gives them, so onnxruntime's users and Transformers.js find them:

    input_ids, attention_mask (batch, sequence) int64   texts, padded at either end
    token_type_ids (batch, sequence) int64              if the model has types of tokens
    -> last_hidden_state (batch, sequence, E), sentence_embedding (batch, E)    of an embedding model
    -> logits (batch, L), or (batch, sequence, L) if each token has scores      of a classifier

All are float32. ``sentence_embedding`` is pooled, passed through the dense layers, and normalized if the model does
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.ir.ops.attention import scale_of
from nearfar.compiler.ir.ops.encoders import require_joint
from nearfar.compiler.ir.tasks import ClassifierSpec, EmbeddingSpec
from nearfar.compiler.runtime.errors import UnsupportedModel

from .builder import ELEMENT_TYPES, MICROSOFT, Builder
from .decoder import AXES, FORMS, Form, form_of, norm_of, table_rows
from .emitter import Emitter
from .encoder_mask import attention_bias, distances, scores_of, seen_by_distance
from .pooling import add_near_rows, add_pool_rows, normalized
from .rotation import rope_caches, rotated_columns, row_numbers


def build_encoder(emitter: Emitter, task: EmbeddingSpec | ClassifierSpec) -> None:
    """Fill the emitter's builder.

    Raises UnsupportedModel for an op, or an attribute of one, that has no ONNX form, and QuantizationError for weights
    that ONNX Runtime's kernels do not read.
    """
    builder, graph = emitter.builder, emitter.graph
    add_inputs(emitter)
    for node in graph.nodes:
        form_of(node, ENCODER_FORMS).emit(emitter, node)
    (result,) = graph.outputs.values()
    if isinstance(task, EmbeddingSpec):
        (pool,) = (node for node in graph.nodes if node.op == "pool_rows")
        hidden = emitter.sequences(pool.inputs["x"], "last_hidden_state.sequences")
        add_output(emitter, hidden, "last_hidden_state", (*AXES, emitter.columns(pool.inputs["x"])))
        vector = float32(emitter, emitter.rows(result))
        vector = normalized(builder, vector) if task.normalize else vector
        builder.add("Identity", [vector], "sentence_embedding")
        builder.add_output("sentence_embedding", "float32", (AXES[0], task.size))
    elif task.per_token:
        add_output(emitter, emitter.sequences(result, "logits.sequences"), "logits", (*AXES, len(task.labels)))
    else:
        add_output(emitter, emitter.rows(result), "logits", (AXES[0], len(task.labels)))


def add_inputs(emitter: Emitter) -> None:
    """Add the inputs, and the rows of token ids, types and positions (batch * sequence)."""
    builder, names = emitter.builder, emitter.names
    add, integers = builder.add, builder.integers
    # Tokenizers of models with a single type return no types.
    has_types = "token_types" in emitter.graph.inputs and emitter.spec.num_token_types > 1
    for name in ("input_ids", "attention_mask", *["token_type_ids"] * has_types):
        builder.add_input(name, "int64", AXES)
    add("Shape", ["input_ids"], "ids_shape")
    add("Concat", ["ids_shape", integers(-1)], "sequences_shape", axis=0)
    names["token_ids"] = add("Reshape", ["input_ids", integers(-1)], "token_ids")
    if has_types:
        names["token_types"] = add("Reshape", ["token_type_ids", integers(-1)], "token_types")
    elif "token_types" in emitter.graph.inputs:
        names["token_types"] = add("Sub", ["token_ids", "token_ids"], "token_types")
    # A text's positions count its own tokens, wherever the padding is.
    counted = add("CumSum", ["attention_mask", builder.integer(1)], "counted")
    names["position_ids"] = add("Max", [add("Sub", [counted, integers(1)], "last"), integers(0)], "position_ids")
    names["positions"] = add("Reshape", ["position_ids", integers(-1)], "positions")


def add_output(emitter: Emitter, value: str, name: str, shape: tuple[int | str, ...]) -> None:
    emitter.builder.add("Cast", [value], name, to=ELEMENT_TYPES["float32"])
    emitter.builder.add_output(name, "float32", shape)


def float32(emitter: Emitter, value: str) -> str:
    if emitter.activation == "float32":
        return value
    return emitter.builder.add("Cast", [value], f"{value}.float32", to=ELEMENT_TYPES["float32"])


def add_embed_positions(emitter: Emitter, node: Node) -> None:
    add, y, first = emitter.builder.add, node.outputs["y"], node.attr("first_position")
    (total,) = emitter.inputs(node, "x")
    for role, indices in (("position_table", "positions"), ("type_table", "token_types")):
        if role not in node.inputs:
            continue
        ids = emitter.name(indices)
        if first and role == "position_table":
            ids = add("Add", [ids, emitter.builder.integers(first)], f"{y}.first")
        rows = table_rows(emitter, emitter.graph.parameters[node.inputs[role]], ids, f"{y}.{role}")
        total = add("Add", [total, rows], f"{y}.with_{role}")
    emitter.names[y] = total


def add_rope_heads(emitter: Emitter, node: Node) -> None:
    y, head_dim = node.outputs["y"], node.attr("head_dim")
    for index, (part, name) in enumerate(split_heads(emitter, node).items()):
        if "qk_norm" in node.inputs if part != "v" else node.attr("norms_values"):
            name = normed_heads(emitter, node, name, index, f"{y}.{part}")
        if part != "v" and "table" in node.inputs:
            name = rotated_heads(emitter, node, name, head_dim, f"{y}.{part}_rotated")
        emitter.names[f"{y}.{part}"] = name


def split_heads(emitter: Emitter, node: Node) -> dict[str, str]:
    """The parts q, k and v of a joint projection, (batch, sequence, columns) each."""
    qkv, builder = node.inputs["qkv"], emitter.builder
    if f"{qkv}.v" not in emitter.names:
        head_dim, kv_heads = node.attr("head_dim"), node.attr("num_kv_heads")
        heads = require_joint(
            node.op, {"qkv": emitter.graph.shape_of(qkv)}, {"head_dim": head_dim, "num_kv_heads": kv_heads}
        )
        sizes = builder.integers(*(count * head_dim for count in (heads, kv_heads, kv_heads)))
        parts = [f"{qkv}.{part}" for part in "qkv"]
        builder.add("Split", [emitter.sequences(qkv, f"{qkv}.sequences"), sizes], *parts, axis=2)
        emitter.names |= {part: part for part in parts}
    return {part: emitter.names[f"{qkv}.{part}"] for part in "qkv"}


def normed_heads(emitter: Emitter, node: Node, x: str, index: int, y: str) -> str:
    """The RMS norm of each head of q (``index`` 0), k or v: one vector has the weights of q and k, and v has none."""
    builder, head_dim = emitter.builder, node.attr("head_dim")
    add, integers = builder.add, builder.integers
    if index == 2:
        gamma = builder.constant(f"{y}.gamma", np.ones(head_dim, emitter.activation))
    else:
        bounds = [integers(index * head_dim), integers((index + 1) * head_dim)]
        gamma = add("Slice", [emitter.vector(node.inputs["qk_norm"]), *bounds], f"{y}.gamma")
    shape = add("Shape", [x], f"{y}.shape")
    heads = add("Reshape", [x, integers(-1, head_dim)], f"{y}.heads")
    normed = norm_of(emitter, heads, gamma, node.attr("eps"), f"{y}.normed")
    return add("Reshape", [normed, shape], f"{y}.rows")


def rotated_heads(emitter: Emitter, node: Node, x: str, head_dim: int, y: str) -> str:
    table, columns = node.inputs["table"], emitter.columns(node.inputs["qkv"])
    rotated = rotated_columns(emitter, node)
    heads, kv_heads = columns // head_dim - 2 * node.attr("num_kv_heads"), node.attr("num_kv_heads")
    places = emitter.name("position_ids") if table in emitter.graph.constants else row_numbers(emitter)
    return emitter.builder.add(
        "RotaryEmbedding",
        [x, places, *rope_caches(emitter, table)],
        y,
        domain=MICROSOFT,
        num_heads=heads if ".q_" in y else kv_heads,
        rotary_embedding_dim=rotated if rotated < head_dim else 0,
    )


def add_ragged_attention(emitter: Emitter, node: Node) -> None:
    if node.attr("softcap") is not None:
        raise UnsupportedModel("the model caps the scores of attention, which --target onnx cannot without pages")
    builder, y, head_dim = emitter.builder, node.outputs["y"], node.attr("head_dim")
    parts, kv_heads = split_heads(emitter, node), node.attr("num_kv_heads")
    num_heads = emitter.columns(y) // head_dim
    if kv_heads < num_heads:
        parts |= {part: repeated(emitter, parts[part], kv_heads, num_heads, head_dim, f"{y}.{part}") for part in "kv"}
    bias = bias_of(emitter, node)
    if "distance_heads" in node.inputs and "distance_rows" not in node.inputs:
        bias = with_products_of_queries(emitter, node, parts["q"], bias)
    elif "distance_heads" in node.inputs:
        bias = with_distance_products(emitter, node, parts, bias)
    elif "distance_bias" in node.inputs:
        bias = with_distance_bias(emitter, node.inputs["distance_bias"], num_heads, bias)
    scale = node.attr("scale")
    attrs: dict[str, Any] = {"num_heads": num_heads, **({} if scale is None else {"scale": scale})}

    def attend(builder: Builder, bias: str, name: str) -> str:
        inputs = [parts["q"], parts["k"], parts["v"], *(["", "", bias] if bias else [])]
        return builder.add("MultiHeadAttention", inputs, name, domain=MICROSOFT, **attrs)

    emitter.reshaped.add(y)
    if not emitter.hides:
        emitter.names[y] = attend(builder, bias, y)
        return
    # Without a bias, kernels need not have all scores at once.
    then, otherwise = builder.branch(), builder.branch()
    for branch, own, name in ((then, bias, "hiding"), (otherwise, "", "all")):
        branch.add_output(attend(branch, own, f"{y}.{name}"), emitter.activation, ())
    emitter.names[y] = builder.choose(emitter.hides, [y], then, otherwise, emitter.activation)


def bias_of(emitter: Emitter, node: Node) -> str:
    """What is added to the scores of an attention, "" for nothing."""
    window, causal, builder = node.attr("window"), node.attr("causal"), emitter.builder
    if emitter.bias is None:
        return attention_bias(builder, emitter.activation, window, causal=causal)
    kind = f"{emitter.bias}.seen{'_causal' * causal}{'' if window is None else f'_{window}'}"
    if any(f"{kind}.bias" in each.output for each in builder.nodes):
        return f"{kind}.bias"
    seen = seen_by_distance(builder, kind, window, causal=causal)
    if not seen:
        return emitter.bias
    scores = scores_of(builder, emitter.activation, seen, f"{kind}.scores")
    if emitter.bias:
        return builder.add("Add", [emitter.bias, scores], f"{kind}.bias")
    return builder.add("Unsqueeze", [scores, builder.integers(0, 1)], f"{kind}.bias")


def with_distance_bias(emitter: Emitter, bias: str, num_heads: int, mask: str) -> str:
    """A mask of `attention_bias`, "" for none, plus each head's biases of distances: (batch, H, sequence, sequence).
    Layers with the same biases share it.
    """
    builder, name = emitter.builder, f"{mask}.{bias}"
    if builder.has_value(name):
        return name
    add, integers = builder.add, builder.integers
    (size,) = emitter.graph.parameters[bias].shape
    count = size // num_heads
    of_head = add("Reshape", [emitter.vector(bias), integers(num_heads, count)], f"{bias}.of_head")
    places = add("Sub", [integers(count // 2), distances(builder)], f"{bias}.places")
    gathered = add("Gather", [of_head, places], f"{bias}.gathered", axis=1)
    if mask:
        return add("Add", [gathered, mask], name)
    return add("Unsqueeze", [gathered, integers(0)], name)


def with_distance_products(emitter: Emitter, node: Node, parts: Mapping[str, str], mask: str) -> str:
    """A mask of `attention_bias`, plus the scaled products of queries and keys with the heads for their distances:
    (batch, H, sequence, sequence).
    """
    builder, y = emitter.builder, node.outputs["y"]
    head_dim, num_heads = node.attr("head_dim"), node.attr("num_kv_heads")
    add, integers = builder.add, builder.integers
    rows = node.inputs["distance_rows"]
    (count,) = emitter.graph.parameters[rows].shape
    if f"{rows}.chosen" not in emitter.names:
        places = add("Sub", [integers(count // 2), distances(builder)], f"{rows}.places")
        of_pairs = add("Gather", [emitter.vector(rows), places], f"{rows}.of_pairs", axis=0)
        emitter.names[f"{rows}.chosen"] = add("Cast", [of_pairs], f"{rows}.chosen", to=ELEMENT_TYPES["int64"])
    stored = emitter.vector(node.inputs["distance_heads"])
    stored = add("Reshape", [stored, integers(2, num_heads, -1, head_dim)], f"{y}.distance_heads")
    tables = add("Transpose", [stored], f"{y}.distance_columns", perm=[0, 1, 3, 2])
    scale = builder.constant(
        f"{y}.scale", np.array(scale_of(head_dim, {"scale": node.attr("scale")}), emitter.activation)
    )
    total = mask
    for index, part in enumerate("qk"):
        name = f"{y}.{part}_distances"
        table = add("Gather", [tables, integers(index)], f"{name}.table", axis=0)
        heads = add("Reshape", [parts[part], integers(0, 0, num_heads, head_dim)], f"{name}.heads")
        heads = add("Transpose", [heads], f"{name}.by_head", perm=[0, 2, 1, 3])
        products = add("MatMul", [heads, table], f"{name}.products")
        chosen = emitter.names[f"{rows}.chosen"]
        if part == "k":
            chosen = add("Transpose", [chosen], f"{name}.chosen", perm=[1, 0])
        shape = add("Shape", [products], f"{name}.shape", end=3)
        shape = add("Concat", [shape, add("Shape", [chosen], f"{name}.length", start=1)], f"{name}.whole", axis=0)
        chosen = add("Expand", [chosen, shape], f"{name}.everywhere")
        gathered = add("GatherElements", [products, chosen], f"{name}.gathered", axis=3)
        if part == "k":
            gathered = add("Transpose", [gathered], f"{name}.by_row", perm=[0, 1, 3, 2])
        total = add("Add", [total, add("Mul", [gathered, scale], f"{name}.scaled")], f"{name}.total")
    return total


def with_products_of_queries(emitter: Emitter, node: Node, queries: str, mask: str) -> str:
    """A mask, plus the scaled products of queries with the head for each distance, and the bias of each distance:
    (batch, H, sequence, sequence).
    """
    builder, y = emitter.builder, node.outputs["y"]
    head_dim, num_heads = node.attr("head_dim"), node.attr("num_kv_heads")
    add, integers, name = builder.add, builder.integers, f"{y}.distance"
    heads = emitter.graph.parameters[node.inputs["distance_heads"]]
    length = add("Shape", [distances(builder)], f"{name}.length", end=1)
    # Of the N distances, those of this sequence: from 1 - length to length - 1.
    middle = integers(heads.rows // (num_heads * head_dim) // 2)
    bounds = [
        add("Add", [add("Sub", [middle, length], f"{name}.before"), integers(1)], f"{name}.first"),
        add("Add", [middle, length], f"{name}.last"),
        integers(1),
    ]
    table = add("Reshape", [emitter.vector(heads.name), integers(num_heads, -1, head_dim)], f"{name}.heads")
    table = add("Transpose", [add("Slice", [table, *bounds], f"{name}.near")], f"{name}.columns", perm=[0, 2, 1])
    by_head = add("Reshape", [queries, integers(0, 0, num_heads, head_dim)], f"{name}.queries")
    by_head = add("Transpose", [by_head], f"{name}.by_head", perm=[0, 2, 1, 3])
    scale = np.array(scale_of(head_dim, {"scale": node.attr("scale")}), emitter.activation)
    products = add("MatMul", [by_head, table], f"{name}.products")
    products = add("Mul", [products, builder.constant(f"{name}.scale", scale)], f"{name}.scaled")
    if "distance_bias" in node.inputs:
        biases = emitter.vector(node.inputs["distance_bias"])
        biases = add("Reshape", [biases, integers(num_heads, 1, -1)], f"{name}.biases")
        biases = add("Slice", [biases, bounds[0], bounds[1], integers(2)], f"{name}.near_biases")
        products = add("Add", [products, biases], f"{name}.biased")
    scores = by_key(emitter, products, length, name)
    return add("Add", [scores, mask], f"{name}.total") if mask else scores


def by_key(emitter: Emitter, x: str, length: str, name: str) -> str:
    """Numbers of each row for distances from 1 - length to length - 1, as those of each row for each key (batch, H,
    length, length): in memory, the number of key 0 is one place earlier in each further row.
    """
    add, integers = emitter.builder.add, emitter.builder.integers
    padded = add("Pad", [x, integers(0, 0, 0, 0, 0, 0, 0, 1)], f"{name}.padded")
    flat = add("Reshape", [padded, integers(0, 0, -1)], f"{name}.flat")
    first = add("Sub", [length, integers(1)], f"{name}.key_0")
    row = add("Add", [length, first], f"{name}.row")
    stop = add("Add", [first, add("Mul", [length, row], f"{name}.size")], f"{name}.stop")
    used = add("Slice", [flat, first, stop, integers(2)], f"{name}.used")
    rows = add("Concat", [integers(0, 0), length, row], f"{name}.rows", axis=0)
    shifted = add("Reshape", [used, rows], f"{name}.shifted")
    return add("Slice", [shifted, integers(0), length, integers(3)], f"{name}.by_key")


def repeated(emitter: Emitter, x: str, kv_heads: int, num_heads: int, head_dim: int, y: str) -> str:
    """Keys or values of kv heads (batch, sequence, K * D), repeated for the query heads that read them."""
    add, integers = emitter.builder.add, emitter.builder.integers
    heads = add("Reshape", [x, integers(0, 0, kv_heads, 1, head_dim)], f"{y}.heads")
    group = add("Expand", [heads, integers(1, 1, 1, num_heads // kv_heads, 1)], f"{y}.groups")
    return add("Reshape", [group, integers(0, 0, num_heads * head_dim)], f"{y}.repeated")


ENCODER_FORMS: dict[str, Form] = {
    **{name: FORMS[name] for name in ("embed", "linear", "slice_columns", "rms_norm", "add", "gate", "gate_halves")},
    **{name: FORMS[name] for name in ("activate", "scale", "soft_cap", "causal_conv", "gated_delta", "ssm_scan")},
    "embed_positions": Form(
        add_embed_positions, ("first_position",), ("positions", "position_table", "token_types", "type_table")
    ),
    "rope_heads": Form(
        add_rope_heads, ("head_dim", "num_kv_heads", "eps", "norms_values"), ("positions", "table", "qk_norm")
    ),
    "ragged_attention": Form(
        add_ragged_attention,
        ("head_dim", "num_kv_heads", "causal", "window", "scale", "softcap"),
        ("positions", "distance_bias", "distance_heads", "distance_rows"),
    ),
    "near_rows": Form(add_near_rows, ("size",)),
    "pool_rows": Form(add_pool_rows, ("mode",)),
}
