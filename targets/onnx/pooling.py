"""pool_rows -> the row of each padded text, computed in float32 from the rows of its own tokens; near_rows -> padded
texts, moved by some tokens.
"""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.graph import Node

from .builder import ELEMENT_TYPES, Builder
from .emitter import Emitter

LOWEST = float(np.finfo(np.float32).min)


def add_pool_rows(emitter: Emitter, node: Node) -> None:
    builder, y, mode = emitter.builder, node.outputs["y"], node.attr("mode")
    add, integers = builder.add, builder.integers
    if mode in ("cls", "last_token"):
        index = add(
            "ArgMax", [token_mask(builder)], f"{y}.index", axis=1, keepdims=0, select_last_index=int(mode != "cls")
        )
        counts = add("Split", ["ids_shape", integers(1, 1)], f"{y}.batch", f"{y}.columns", axis=0)
        number = add("Squeeze", [counts, integers(0)], f"{y}.number")
        texts = add("Range", [builder.integer(0), number, builder.integer(1)], f"{y}.texts")
        rows = add("Add", [add("Mul", [texts, f"{y}.columns"], f"{y}.first"), index], f"{y}.rows")
        emitter.names[y] = add("Gather", [emitter.rows(node.inputs["x"]), rows], y, axis=0)
        return
    x = add("Cast", [emitter.sequences(node.inputs["x"], f"{y}.x")], f"{y}.float32", to=ELEMENT_TYPES["float32"])
    mask = add("Unsqueeze", [token_mask(builder), integers(2)], f"{y}.mask")
    if mode == "max":
        own = add("Cast", [mask], f"{y}.own", to=ELEMENT_TYPES["bool"])
        lowest = builder.constant("lowest", np.array(LOWEST, np.float32))
        pooled = add("ReduceMax", [add("Where", [own, x, lowest], f"{y}.kept"), integers(1)], f"{y}.max", keepdims=0)
    else:
        total = add("ReduceSum", [add("Mul", [x, mask], f"{y}.kept"), integers(1)], f"{y}.sum", keepdims=0)
        length = add("ReduceSum", [mask, integers(1)], f"{y}.count", keepdims=0)
        length = add("Sqrt", [length], f"{y}.root") if mode == "mean_sqrt_len" else length
        pooled = add("Div", [total, length], f"{y}.{mode}")
    emitter.names[y] = add("Cast", [pooled], y, to=ELEMENT_TYPES[emitter.activation])


def add_near_rows(emitter: Emitter, node: Node) -> None:
    """Each sequence is moved by some tokens, between zeros, for each place around a token."""
    builder, y, size = emitter.builder, node.outputs["y"], node.attr("size")
    add, integers = builder.add, builder.integers
    x = emitter.sequences(node.inputs["x"], f"{y}.x")
    if builder.has_input("attention_mask"):
        x = without_padding(emitter, x)
    side = size // 2
    parts = []
    for away in range(-side, side + 1):
        pads = integers(0, max(-away, 0), 0, 0, max(away, 0), 0)
        bounds = [integers(max(away, 0)), integers(2**31 - 1 if away >= 0 else away), integers(1)]
        parts.append(add("Slice", [add("Pad", [x, pads], f"{y}.padded{away}"), *bounds], f"{y}.near{away}"))
    columns = emitter.graph.shape_of(y)[1]
    assert isinstance(columns, int), y
    emitter.names[y] = add("Reshape", [add("Concat", parts, f"{y}.wide", axis=2), integers(-1, columns)], y)


def without_padding(emitter: Emitter, x: str) -> str:
    """Sequences (batch, sequence, C) with zeros in place of padding."""
    builder, add = emitter.builder, emitter.builder.add
    mask = add("Unsqueeze", [token_mask(builder), builder.integers(2)], f"{x}.mask")
    mask = add("Cast", [mask], f"{x}.own", to=ELEMENT_TYPES[emitter.activation])
    return add("Mul", [x, mask], f"{x}.kept")


def token_mask(builder: Builder) -> str:
    """1 for tokens and 0 for padding, (batch, sequence) float32."""
    if not any("mask.float32" in node.output for node in builder.nodes):
        builder.add("Cast", ["attention_mask"], "mask.float32", to=ELEMENT_TYPES["float32"])
    return "mask.float32"


def normalized(builder: Builder, x: str) -> str:
    """Rows of length 1; zeros stay zeros."""
    length = builder.add("ReduceL2", [x, builder.integers(1)], f"{x}.norm", keepdims=1)
    least = builder.constant("least_length", np.array(1e-12, np.float32))
    return builder.add("Div", [x, builder.add("Max", [length, least], f"{x}.length")], f"{x}.unit")
