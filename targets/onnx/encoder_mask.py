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
        length = add("Gather", ["ids_shape", builder.integer(1)], "length", axis=0)
        steps = add("Range", [builder.integer(0), length, builder.integer(1)], "steps")
        rows, columns = (add("Unsqueeze", [steps, integers(axis)], f"steps.{axis}") for axis in (1, 0))
        # How many tokens a row is behind a column.
        add("Sub", [rows, columns], "distances")
    seen = add("GreaterOrEqual", ["distances", integers(0)], f"{kind}.order") if causal else ""
    if window is not None:
        near = add("Less", [add("Abs", ["distances"], f"{kind}.far"), integers(window)], f"{kind}.near")
        seen = add("And", [seen, near], f"{kind}.both") if seen else near
    seen = seen or add("Equal", ["distances", "distances"], f"{kind}.all")
    visible = add("And", ["token_mask", seen], kind)
    zero, hidden = (
        builder.constant(f"{kind}.{part}", np.array(value, activation))
        for part, value in (("zero", 0), ("hidden", HIDDEN[activation]))
    )
    return add("Where", [visible, zero, hidden], name)
