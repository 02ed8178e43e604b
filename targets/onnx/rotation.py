"""rope -> RotaryEmbedding, for a rotation that GroupQueryAttention cannot do itself, and the tables that both read."""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.ir.ops.images import pair_axes
from nearfar.compiler.runtime.errors import UnsupportedModel

from .builder import ELEMENT_TYPES, MICROSOFT
from .emitter import Emitter


def defer_rotation(emitter: Emitter, node: Node) -> None:
    """Raises UnsupportedModel for a rotation by positions other than the tokens'."""
    if node.inputs["positions"] != "positions":
        raise UnsupportedModel(
            f"the model rotates by {node.inputs['positions']!r}, and --target onnx writes rotations by the tokens' "
            f"positions; "
            "use --target webgpu, cpu or cuda"
        )
    emitter.defer(node, add_rotation)


def add_rotation(emitter: Emitter, node: Node) -> None:
    y, head_dim = node.outputs["y"], node.attrs["head_dim"]
    rotated, table = rotated_columns(emitter, node), node.inputs["table"]
    inputs = [
        emitter.sequences(node.inputs["x"], f"{y}.unrotated"),
        positions(emitter) if table in emitter.graph.constants else row_numbers(emitter),
        *rope_caches(emitter, table),
    ]
    attrs = {"num_heads": emitter.columns(y) // head_dim, "rotary_embedding_dim": rotated if rotated < head_dim else 0}
    emitter.names[y] = emitter.builder.add("RotaryEmbedding", inputs, y, domain=MICROSOFT, **attrs)
    emitter.reshaped.add(y)


def rotated_width(emitter: Emitter, value: str) -> int:
    """The number of rotated elements in each head of a value; 0 if it is not the result of a rope."""
    maker = next((node for node in emitter.graph.nodes if value in node.outputs.values()), None)
    return rotated_columns(emitter, maker) if maker is not None and maker.op == "rope" else 0


def rotated_columns(emitter: Emitter, node: Node) -> int:
    """The number of elements of each head that a node's table rotates."""
    table = node.inputs["table"]
    constant = emitter.graph.constants.get(table)
    return emitter.columns(table) if constant is None else 2 * constant.shape[1]


def positions(emitter: Emitter) -> str:
    """The position of each new token, (batch, sequence) int64, as GroupQueryAttention counts them: from the end of each
    row's past, or from 0 in a first call, whose rows may be padded at their end.
    """
    builder = emitter.builder
    add, integer = builder.add, builder.integer
    if "position_ids" not in emitter.names:
        last = add("Cast", ["seqlens_k"], "positions.last", to=ELEMENT_TYPES["int64"])
        before_new = add("Sub", [last, "last_new"], "positions.before_new")
        first = add("Max", [before_new, integer(0)], "positions.first")
        column = add("Unsqueeze", [first, builder.integers(1)], "positions.column")
        steps = add("Range", [integer(0), "num_new", integer(1)], "positions.steps")
        emitter.names["position_ids"] = add("Add", [column, steps], "positions")
    return emitter.names["position_ids"]


def row_numbers(emitter: Emitter) -> str:
    """The number of each row (batch, sequence), which is its position in a table that `add_rope_rows` makes."""
    builder = emitter.builder
    add, integer, name = builder.add, builder.integer, "row_numbers"
    if not builder.has_value(name):
        count = add("ReduceProd", ["ids_shape"], f"{name}.count", keepdims=0)
        add("Reshape", [add("Range", [integer(0), count, integer(1)], f"{name}.flat"), "ids_shape"], name)
    return name


def add_rope_rows(emitter: Emitter, node: Node) -> None:
    """Cosines and sines of each row, for its positions on several axes."""
    builder, y, table = emitter.builder, node.outputs["y"], node.inputs["table"]
    axis_of = builder.constant(f"{y}.axes", pair_axes(emitter.graph.constants[table].shape[1], node.attrs["axes"]))
    places = builder.add("Gather", [emitter.name(node.inputs["axis_positions"]), axis_of], f"{y}.places", axis=1)
    for part, values in zip(("cos", "sin"), rope_caches(emitter, table), strict=True):
        builder.add("GatherElements", [values, places], f"{y}.{part}", axis=0)


def rope_caches(emitter: Emitter, name: str) -> list[str]:
    """Cosines and sines (context, rotated / 2) as constants, or those of each row that `add_rope_rows` has made."""
    constant = emitter.graph.constants.get(name)
    if constant is not None and f"{name}.cos" not in emitter.builder.constants:
        table = constant.table()
        for index, part in enumerate(("cos", "sin")):
            emitter.builder.constant(f"{name}.{part}", table[..., index].astype(np.dtype(emitter.activation)))
    return [f"{name}.cos", f"{name}.sin"]
