"""rope -> RotaryEmbedding, for a rotation that GroupQueryAttention cannot do itself, and the tables that both read."""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.graph import Node
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
    rotated = 2 * emitter.graph.constants[node.inputs["table"]].shape[1]
    inputs = [
        emitter.sequences(node.inputs["x"], f"{y}.unrotated"),
        positions(emitter),
        *rope_caches(emitter, node.inputs["table"]),
    ]
    attrs = {"num_heads": emitter.columns(y) // head_dim, "rotary_embedding_dim": rotated if rotated < head_dim else 0}
    emitter.names[y] = emitter.builder.add("RotaryEmbedding", inputs, y, domain=MICROSOFT, **attrs)
    emitter.reshaped.add(y)


def rotated_width(emitter: Emitter, value: str) -> int:
    """The number of rotated elements in each head of a value; 0 if it is not the result of a rope."""
    maker = next((node for node in emitter.graph.nodes if value in node.outputs.values()), None)
    return (
        2 * emitter.graph.constants[maker.inputs["table"]].shape[1] if maker is not None and maker.op == "rope" else 0
    )


def positions(emitter: Emitter) -> str:
    """The position of each new token, (batch, sequence) int64, as GroupQueryAttention counts them: from the end of each
    row's past, or from 0 in a first call, whose rows may be padded at their end.
    """
    builder = emitter.builder
    add, integer = builder.add, builder.integer
    if "positions" not in emitter.names:
        last = add("Cast", ["seqlens_k"], "positions.last", to=ELEMENT_TYPES["int64"])
        before_new = add("Sub", [last, "last_new"], "positions.before_new")
        first = add("Max", [before_new, integer(0)], "positions.first")
        column = add("Unsqueeze", [first, builder.integers(1)], "positions.column")
        steps = add("Range", [integer(0), "num_new", integer(1)], "positions.steps")
        emitter.names["positions"] = add("Add", [column, steps], "positions")
    return emitter.names["positions"]


def rope_caches(emitter: Emitter, name: str) -> list[str]:
    """Cosines and sines (context, rotated / 2) as constants."""
    constant = emitter.graph.constants[name]
    if f"{name}.cos" not in emitter.builder.constants:
        table = constant.table()
        for index, part in enumerate(("cos", "sin")):
            emitter.builder.constant(f"{name}.{part}", table[..., index].astype(np.dtype(emitter.activation)))
    return [f"{name}.cos", f"{name}.sin"]
