"""The mask of attention over padded texts: which tokens each token sees."""

from __future__ import annotations

import numpy as np

from .builder import ELEMENT_TYPES, Builder

# What hides a token: its weight is 0, and a sum of it and a score is finite.
HIDDEN = {"float32": -1e9, "float16": -1e4}


def attention_bias(builder: Builder, activation: str, window: int | None, *, causal: bool) -> str:
    """What is added to scores, (batch, 1, sequence, sequence): 0 for tokens that are seen. Padding is not, nor tokens
    ``window`` or more away, nor with ``causal`` later ones. Layers that see alike share it.
    """
    add, integers = builder.add, builder.integers
    kind = f"seen{'_causal' * causal}{'' if window is None else f'_{window}'}"
    name = f"{kind}.bias"
    if builder.has_value(name):
        return name
    if not builder.has_value("token_mask"):
        add("Cast", ["attention_mask"], "token_mask.2d", to=ELEMENT_TYPES["bool"])
        add("Unsqueeze", ["token_mask.2d", integers(1, 2)], "token_mask")
    seen = seen_by_distance(builder, kind, window, causal=causal)
    seen = seen or add("Equal", [distances(builder), distances(builder)], f"{kind}.all")
    return scores_of(builder, activation, add("And", ["token_mask", seen], kind), name)


def seen_by_distance(builder: Builder, kind: str, window: int | None, *, causal: bool) -> str:
    """Which rows each row sees, (sequence, sequence), as of `attention_bias`; "" for all."""
    add, integers = builder.add, builder.integers
    seen = add("GreaterOrEqual", [distances(builder), integers(0)], f"{kind}.order") if causal else ""
    if window is None:
        return seen
    near = add("Less", [add("Abs", [distances(builder)], f"{kind}.far"), integers(window)], f"{kind}.near")
    return add("And", [seen, near], f"{kind}.both") if seen else near


def distances(builder: Builder) -> str:
    """How many rows each row is behind each other one, (sequence, sequence)."""
    if not any("distances" in node.output for node in builder.nodes):
        add, integers = builder.add, builder.integers
        length = add("Gather", ["ids_shape", builder.integer(1)], "length", axis=0)
        steps = add("Range", [builder.integer(0), length, builder.integer(1)], "steps")
        rows, columns = (add("Unsqueeze", [steps, integers(axis)], f"steps.{axis}") for axis in (1, 0))
        add("Sub", [rows, columns], "distances")
    return "distances"


def scores_of(builder: Builder, activation: str, seen: str, name: str) -> str:
    """What is added to scores: 0 for what is ``seen``, a mask of any shape."""
    zero, hidden = (
        builder.constant(f"{part}.{activation}", np.array(value, activation))
        for part, value in (("seen", 0), ("hidden", HIDDEN[activation]))
    )
    return builder.add("Where", [seen, zero, hidden], name)


def hidden_rows(builder: Builder, activation: str, seen: str, name: str) -> str:
    """What is added to the scores of all rows of a sequence, (batch, 1, rows, rows), by the rows that are ``seen``, a
    mask (batch, rows).
    """
    add, integers = builder.add, builder.integers
    row = add("Unsqueeze", [scores_of(builder, activation, seen, f"{name}.of_rows"), integers(1, 2)], f"{name}.row")
    # ONNX Runtime's kernel repeats the bias for sequences and heads, but not for rows.
    length = add("Gather", ["ids_shape", integers(1)], f"{name}.length", axis=0)
    square = add("Concat", [integers(1, 1), length, integers(1)], f"{name}.square", axis=0)
    return add("Expand", [row, square], name)
