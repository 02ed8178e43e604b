"""Ops of encoders that normalize a clip of sound as a whole: row_moments, clip_norm. A row of a clip holds several
frames, one behind the other; the last rows may have fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .op import (
    EPS,
    FLOAT32,
    INTEGERS,
    VECTOR,
    Array,
    Attrs,
    Bound,
    Inputs,
    Op,
    Shapes,
    Type,
    Use,
    count,
    require,
)
from .rows import check_rows_of_tokens

# Of a row: how many of its elements count, their mean, and the sum of their squared distances from it.
MOMENTS = 3


def infer_row_moments(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    fits = isinstance(columns, int) and columns % attrs["frame"] == 0 and shapes["row_frames"] == (rows,)
    require(fits, "row_moments", shapes)
    return (rows, MOMENTS), "float32"


def row_moments(inputs: Inputs, attrs: Attrs) -> Array:
    """The moments of each row's first frames, which have ``frame`` columns each. x (S, n * frame), row_frames (S,):
    from 0 to n -> (S, 3). Welford 1962.
    """
    x, size = inputs["x"], attrs["frame"]
    counts = np.clip(inputs["row_frames"], 0, x.shape[1] // size) * size
    counted = np.arange(x.shape[1]) < counts[:, None]
    mean = np.where(counted, x, 0).sum(axis=1) / np.maximum(counts, 1)
    squares = np.where(counted, np.square(x - mean[:, None]), 0).sum(axis=1)
    return np.stack([counts, mean, squares], axis=1).astype(np.float32)


def infer_clip_norm(shapes: Shapes, attrs: Attrs) -> Type:
    (rows, columns), (weights,) = shapes["x"], shapes["weight"]
    sizes = isinstance(columns, int) and isinstance(weights, int) and columns % weights == 0
    fits = sizes and shapes["bias"] == (weights,) and shapes["moments"] == (rows, MOMENTS)
    require(fits and shapes["positions"] == (rows,), "clip_norm", shapes)
    return shapes["x"], "float32"


def clip_norm(inputs: Inputs, attrs: Attrs) -> Array:
    """Subtract the mean of all elements of a clip that count, divide by their standard deviation, then scale each frame
    by weight and add bias: GroupNorm (Wu & He 2018) with one group, over channels and time.

    x (S, n * E), moments (S, 3) as of `row_moments`, positions (S,), which are 0 in the first row of each clip, weight
    and bias (E,) -> like x.
    """
    x, moments = inputs["x"], inputs["moments"]
    starts = np.arange(len(x)) - inputs["positions"]
    y = np.empty_like(x)
    for start in np.unique(starts):
        own = starts == start
        counts, means, squares = moments[own].T
        number = max(counts.sum(), np.float32(1))
        mean = (counts * means).sum() / number
        variance = (squares + counts * np.square(means - mean)).sum() / number
        y[own] = (x[own] - mean) / np.sqrt(variance + np.float32(attrs["eps"]))
    frames = y.reshape(len(x), -1, len(inputs["weight"])) * inputs["weight"] + inputs["bias"]
    normed: Array = frames.reshape(x.shape)
    return normed


def clip_norm_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    return {"columns": use.shapes["x"][1], "frame": use.shapes["weight"][0], "eps": use.attrs["eps"]}


OPS = {
    "row_moments": Op(
        infer_row_moments,
        row_moments,
        inputs={"x": FLOAT32, "row_frames": INTEGERS},
        attrs={"frame": count(least=1)},
        checks=(check_rows_of_tokens,),
        names={"row_frames": "row_frames"},
    ),
    "clip_norm": Op(
        infer_clip_norm,
        clip_norm,
        inputs={"x": FLOAT32, "moments": FLOAT32, "positions": INTEGERS, "weight": VECTOR, "bias": VECTOR},
        attrs={"eps": EPS},
        facts=clip_norm_facts,
        checks=(check_rows_of_tokens,),
    ),
}
