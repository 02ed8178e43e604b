"""Attention in which the tokens of a picture see all of it, and not only those before them (Gemma 3).

GroupQueryAttention is causal. So a call with features has another form of the same attention, an If with both: keys and
values are appended by Concat, and a bias hides what a row does not see. Pictures are runs of marked rows; a call must
have all rows of a picture.
"""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.runtime.errors import UnsupportedModel

from .attention import GroupQuery, add_attention, group_query
from .builder import ELEMENT_TYPES, MICROSOFT, Builder
from .emitter import Emitter
from .encoder_mask import HIDDEN
from .rotation import positions

# Whether each new row (batch, sequence) is a feature.
MARKS = "marks"


def add_attention_both_ways(emitter: Emitter, node: Node) -> None:
    """Raises UnsupportedModel for a soft-cap or sinks; see also `add_attention`."""
    if "reach" not in node.inputs:
        add_attention(emitter, node)
        return
    if node.attr("softcap") is not None or "sinks" in node.inputs:
        raise UnsupportedModel(
            f"{node.outputs['y']}: sees pictures both ways, with a soft-cap or sinks, which has no form in --target "
            "onnx; use --target webgpu, cpu or cuda"
        )
    builder, y = emitter.builder, node.outputs["y"]
    query = group_query(emitter, node, claims=False)
    bias = seen_bias(emitter, node.attr("window"))
    causal, both = builder.branch(), builder.branch()
    for branch, emit in ((causal, emit_causal), (both, emit_both)):
        emitter.builder = branch
        for name in emit(emitter, query, y, bias):
            branch.add_output(name, emitter.activation, ())
    emitter.builder = builder
    outputs = [f"{y}.sequences", *query.present]
    emitter.names[y] = builder.choose(has_marks(emitter), outputs, both, causal, emitter.activation)
    emitter.reshaped.add(y)


def emit_causal(emitter: Emitter, query: GroupQuery, y: str, _: str) -> list[str]:
    names = [f"{name}.causal" for name in (y, *query.present)]
    emitter.builder.add("GroupQueryAttention", query.inputs, *names, domain=MICROSOFT, **query.attrs)
    return names


def emit_both(emitter: Emitter, query: GroupQuery, y: str, bias: str) -> list[str]:
    builder, (q, k, v, *past) = emitter.builder, query.inputs[:5]
    add, integers = builder.add, builder.integers
    heads, kv_heads = (int(query.attrs[name]) for name in ("num_heads", "kv_num_heads"))
    present, repeated = [], []
    for name, new, before in zip(query.present, (k, v), past, strict=True):
        rows = add("Reshape", [new, integers(0, 0, kv_heads, query.head_dim)], f"{name}.heads")
        rows = add("Transpose", [rows], f"{name}.new", perm=[0, 2, 1, 3])
        rows = add("Concat", [before, rows], f"{name}.both", axis=2)
        present.append(rows)
        if kv_heads < heads:
            rows = add("Unsqueeze", [rows, integers(2)], f"{name}.groups")
            rows = add("Expand", [rows, integers(1, 1, heads // kv_heads, 1, 1)], f"{name}.expanded")
            rows = add("Reshape", [rows, integers(0, heads, -1, query.head_dim)], f"{name}.repeated")
        repeated.append(rows)
    scale = {"scale": query.attrs["scale"]} if "scale" in query.attrs else {}
    inputs = [q, *repeated, "", "", bias]
    result = add("MultiHeadAttention", inputs, f"{y}.both", domain=MICROSOFT, num_heads=heads, **scale)
    return [result, *present]


def has_marks(emitter: Emitter) -> str:
    """Whether any new row is a feature."""
    builder, name = emitter.builder, f"{MARKS}.any"
    if not builder.has_value(name):
        numbers = builder.add("Cast", [MARKS], f"{MARKS}.integers", to=ELEMENT_TYPES["int64"])
        most = builder.add("ReduceMax", [numbers], f"{MARKS}.most", keepdims=0)
        builder.add("Cast", [most], name, to=ELEMENT_TYPES["bool"])
    return name


def seen_bias(emitter: Emitter, window: int | None) -> str:
    """What is added to scores (batch, 1, sequence, total sequence) if any row is marked: 0 for keys that are seen.
    Layers with the same window share it.
    """
    builder, name = emitter.builder, f"seen_{window}"
    if builder.has_value(name):
        return name
    place, some = positions(emitter), has_marks(emitter)
    inner, none = builder.branch(), builder.branch()
    visible = add_visible(inner, name, place, window)
    zero, hidden = (
        builder.constant(f"seen.{part}", np.array(value, emitter.activation))
        for part, value in (("zero", 0), ("hidden", HIDDEN[emitter.activation]))
    )
    bias = inner.add("Where", [visible, zero, hidden], f"{name}.bias")
    inner.add_output(inner.add("Unsqueeze", [bias, inner.integers(1)], f"{name}.of_heads"), emitter.activation, ())
    none.add_output(none.add("Identity", [zero], f"{name}.unused"), emitter.activation, ())
    return builder.choose(some, [name], inner, none, emitter.activation)


def add_visible(builder: Builder, name: str, place: str, window: int | None) -> str:
    """Which keys each row sees, (batch, sequence, total sequence). ``place`` are the rows' positions. A window hides
    only keys before a row, as in `ops/attention.py`.
    """
    add, integers, integer = builder.add, builder.integers, builder.integer
    ones = add("Cast", [MARKS], f"{name}.ones", to=ELEMENT_TYPES["int64"])
    before = add("Pad", [ones, integers(0, 1, 0, -1)], f"{name}.before")
    begins = add("Cast", [add("Greater", [ones, before], f"{name}.first")], f"{name}.begins", to=ELEMENT_TYPES["int64"])
    pictures = add("CumSum", [begins, integer(1)], f"{name}.pictures")
    # Rows and keys that are not of a picture have numbers that are those of no key and no row.
    of_rows = add("Where", [MARKS, pictures, integer(-1)], f"{name}.of_rows")
    of_new = add("Where", [MARKS, pictures, integer(-2)], f"{name}.of_new")
    past = add("Unsqueeze", [add("Sub", ["total_length", "num_new"], f"{name}.past"), integers(0)], f"{name}.past_list")
    pads = add("Concat", [integers(0), past, integers(0, 0)], f"{name}.pads", axis=0)
    of_keys = add("Pad", [of_new, pads, integer(-2)], f"{name}.of_keys")
    of_rows, row = (add("Unsqueeze", [each, integers(2)], f"{name}.{each}.row") for each in (of_rows, place))
    together = add("Equal", [of_rows, add("Unsqueeze", [of_keys, integers(1)], f"{name}.column")], f"{name}.together")
    keys = add("Range", [integer(0), "total_length", integer(1)], f"{name}.keys")
    seen = add("Or", [add("LessOrEqual", [keys, row], f"{name}.earlier"), together], f"{name}.reached")
    if window is None:
        return seen
    last_hidden = add("Sub", [row, integers(window)], f"{name}.last_hidden")
    return add("And", [seen, add("Greater", [keys, last_hidden], f"{name}.near")], f"{name}.within")
