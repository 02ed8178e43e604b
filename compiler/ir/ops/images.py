"""Ops of models that see pictures: mix_rows and fold_rows, which make features of patches, and place_rows, which puts
features in the places of tokens.

The V patches of a batch are those of its I tiles, one tile after the other, and inside a tile block after block. A
block of patches becomes one of F features; its patches are consecutive rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .op import (
    FLOAT32,
    INTEGERS,
    MATRIX,
    Array,
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
    count, columns = shapes["features"]
    require(shapes["feature_rows"] == (count,) and shapes["into"][1] == columns, "place_rows", shapes)
    return shapes["into"], "float32"


def place_rows(inputs: Inputs, attrs: Attrs) -> Array:
    """Rows of a batch, of which some are replaced by features. into (S, E), features (F, E), feature_rows (F,) ->
    (S, E). No two features have the same row.
    """
    y = inputs["into"]
    if len(inputs["feature_rows"]):
        y[inputs["feature_rows"]] = inputs["features"]
    return y


def check_place_rows(use: Use, sizes: Sizes) -> None:
    vision, (rows, columns) = sizes.spec.vision, use.shapes["into"]
    require_use(
        vision is not None and columns == sizes.spec.hidden_size, "is for embeddings of models that see pictures"
    )
    require_use(rows == "S" and use.shapes["features"] == ("F", columns), "must place features in rows of tokens")


def place_rows_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {"columns": use.shapes["into"][1]}


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
        facts=place_rows_facts,
        checks=(check_place_rows,),
        names={"features": "features", "feature_rows": "feature_rows"},
    ),
}
