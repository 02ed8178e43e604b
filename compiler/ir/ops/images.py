"""Ops of models that see pictures: mix_rows and fold_rows, which make features of patches, place_rows, which puts
features of pictures and sound in the places of tokens, and rope_rows, for rotations by several axes.

The V patches of a batch are those of its I tiles, one tile after the other, and inside a tile block after block. A
block of patches becomes one of F features; its patches are consecutive rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .op import (
    FLOAT32,
    INTEGERS,
    MATRIX,
    ROPE,
    Array,
    Attr,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shapes,
    Sizes,
    Type,
    Use,
    choice,
    count,
    facts_of_rows,
    require,
    require_use,
)

FOLDS = ("join", "mean")


def infer_mix_rows(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    places = shapes["patch_rows"]
    fits = len(places) == 2 and places[0] == rows and isinstance(places[1], int) and shapes["patch_weights"] == places
    require(fits and shapes["table"][1] == columns, "mix_rows", shapes)
    return (rows, columns), "float32"


def mix_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """x plus a weighted sum of rows of a table: the embeddings of the places that a patch is between.

    x (V, E), table (P, E), patch_rows, patch_weights (V, k) -> (V, E).
    """
    mixed: Array = inputs["x"]
    for rows, weights in zip(inputs["patch_rows"].T, inputs["patch_weights"].T, strict=True):
        mixed = mixed + weights[:, None] * inputs["table"][rows]
    return mixed


def check_mix_rows(use: Use, sizes: Sizes) -> None:
    vision, images = sizes.spec.vision, sizes.images
    require_use(vision is not None and images is not None, "is for models that see pictures")
    assert vision is not None
    assert images is not None
    found = (use.shapes["table"][0], use.shapes["patch_rows"])
    expected = (vision.positions, ("V", images.positions.taps))
    require_use(found == expected, f"mixes {found[1]} of {found[0]} rows; the tower has {expected[1]} of {expected[0]}")


def mix_rows_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {**facts_of_rows(use), "positions": use.shapes["table"][0], "taps": use.shapes["patch_rows"][1]}


def infer_fold_rows(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    require(rows == "V" and isinstance(columns, int), "fold_rows", shapes)
    return ("F", attrs["size"] * columns if attrs["mode"] == "join" else columns), "float32"


def fold_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """Each ``size`` consecutive rows become one: one behind the other ("join"), or their mean.

    x (V, E) -> (F, size * E), or (F, E), F = V / size.
    """
    x, size = inputs["x"], attrs["size"]
    blocks = x.reshape(len(x) // size, size, -1)
    folded: Array = blocks.reshape(len(blocks), -1) if attrs["mode"] == "join" else blocks.mean(axis=1)
    return folded


def check_fold_rows(use: Use, sizes: Sizes) -> None:
    vision = sizes.spec.vision
    require_use(
        vision is not None and vision.block**2 == use.attrs["size"], f"folds blocks of {use.attrs['size']} patches"
    )


def infer_place_rows(shapes: Shapes, attrs: Attrs) -> Type:
    (rows, width), columns = shapes["features"], shapes["into"][1]
    whole = isinstance(width, int) and isinstance(columns, int) and attrs["first"] + columns <= width
    require(shapes["feature_rows"] == (rows,) and whole, "place_rows", shapes)
    return shapes["into"], "float32"


def place_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """Rows of a batch, of which some are replaced by E columns of features, from ``first`` on; or with ``adds``, these
    are added to them. into (S, E), features (F, N), feature_rows (F,) -> (S, E), or for patches (V, E) with what (C, E)
    adds to some of them. No two features have the same row.
    """
    y, rows = inputs["into"], inputs["feature_rows"]
    if len(rows):
        own = inputs["features"][:, attrs["first"] : attrs["first"] + y.shape[1]]
        y[rows] = y[rows] + own if attrs["adds"] else own
    return y


def check_place_rows(use: Use, sizes: Sizes) -> None:
    (rows, columns), vision = use.shapes["into"], sizes.spec.vision
    require_use(vision is not None or sizes.spec.hearing is not None, "is for models that see pictures or hear")
    own, features = (
        (vision.hidden_size, ("C", vision.hidden_size))
        if rows == "V" and vision is not None and vision.frames > 1
        else (sizes.spec.hidden_size, ("F", sizes.spec.feature_size))
    )
    fits = rows in ("S", "V") and (rows == "V") == (features[0] == "C")
    require_use(columns == own, "is for embeddings of models that see pictures")
    require_use(fits and use.shapes["features"] == features, "must place features in rows of tokens")


def place_rows_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    rows, columns = use.shapes["into"]
    dims = {} if rows == "S" else {"batch": rows, "features": use.shapes["features"][0]}
    return {**use.attrs, "columns": columns, "width": use.shapes["features"][1], **dims}


def infer_rope_rows(shapes: Shapes, attrs: Attrs) -> Type:
    half, (rows, axes) = shapes["table"][1], shapes["axis_positions"]
    require(isinstance(half, int) and isinstance(axes, int), "rope_rows", shapes)
    fits = all(axis < axes and stop <= half for axis, _, stop, _ in attrs["axes"])
    require(fits, "rope_rows", shapes)
    return (rows, 2 * half), "float32"


def rope_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """The rotation of rows that have a position on each of several axes: each pair of elements turns by that on its
    axis. Wang et al. 2024 (M-RoPE).

    table (positions, R/2, 2), axis_positions (S, A) -> (S, R), a row of cosines and sines for each row. ``axes`` has
    lists [axis, first, stop, step]: the pairs from ``first`` to before ``stop``, each ``step``-th of them, turn by
    that axis. The others turn by axis 0.
    """
    axis_of = pair_axes(inputs["table"].shape[1], attrs["axes"])
    turned: Array = inputs["table"][inputs["axis_positions"][:, axis_of], np.arange(len(axis_of))[None]]
    return turned.reshape(len(turned), -1)


def pair_axes(pairs: int, axes: Sequence[Sequence[int]]) -> Array:
    """The axis by which each pair turns."""
    axis_of: Array = np.zeros(pairs, np.int64)
    for axis, first, stop, step in axes:
        axis_of[first:stop:step] = axis
    return axis_of


def check_rope_rows(use: Use, sizes: Sizes) -> None:
    """The table has a row for every position of the context, or for each patch of a side of the largest tile."""
    vision, (rows, axes) = sizes.spec.vision, use.shapes["axis_positions"]
    require_use(vision is not None, "is for models that see pictures")
    assert vision is not None
    needed, expected = (vision.tile_side, 2) if rows == "V" else (sizes.context, 3)
    positions = use.shapes["table"][0]
    enough = isinstance(positions, int) and positions >= needed > 0
    require_use(rows in ("S", "V") and axes == expected and enough, f"has a table of {positions} positions")


def rope_rows_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    positions, half, _ = use.shapes["table"]
    rows, num_axes = use.shapes["axis_positions"]
    return {"batch": rows, "positions": positions, "half": half, "num_axes": num_axes, "axes": use.attrs["axes"]}


def are_axes(value: Any) -> bool:
    """Whether these are lists [axis, first, stop, step] of numbers."""
    return isinstance(value, list | tuple) and all(
        isinstance(each, list | tuple)
        and len(each) == 4
        and all(type(number) is int and number >= 0 for number in each)
        and each[1] < each[2]
        and each[3] > 0
        for each in value
    )


OPS = {
    "mix_rows": Op(
        infer_mix_rows,
        mix_rows,
        inputs={"x": FLOAT32, "table": MATRIX, "patch_rows": INTEGERS, "patch_weights": FLOAT32},
        facts=mix_rows_facts,
        checks=(check_mix_rows,),
        names={"patch_rows": "patch_rows", "patch_weights": "patch_weights"},
    ),
    "fold_rows": Op(
        infer_fold_rows,
        fold_rows,
        inputs={"x": FLOAT32},
        attrs={"size": count(least=1), "mode": choice("join", *FOLDS)},
        checks=(check_fold_rows,),
    ),
    "place_rows": Op(
        infer_place_rows,
        place_rows,
        inputs={"into": FLOAT32, "features": FLOAT32, "feature_rows": INTEGERS},
        attrs={"first": count(0), "adds": choice(False, False, True)},
        facts=place_rows_facts,
        checks=(check_place_rows,),
        names={"features": "features", "feature_rows": "feature_rows"},
    ),
    "rope_rows": Op(
        infer_rope_rows,
        rope_rows,
        inputs={"table": ROPE, "axis_positions": INTEGERS},
        attrs={"axes": Attr([], "lists of axis, first pair, end and step", are_axes)},
        facts=rope_rows_facts,
        checks=(check_rope_rows,),
        names={"axis_positions": "rope_positions"},
    ),
}
