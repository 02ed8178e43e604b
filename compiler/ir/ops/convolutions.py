"""convolve: filters over time, and over the places of a spectrum, of texts that are complete in a batch.

A row of the batch holds several steps of time, one behind the other: a convolution with a stride halves their number,
so that all its layers have the batch's rows. A step has places, such as bands of frequencies, each with channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .op import (
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
    choice,
    count,
    require,
)
from .rows import check_rows_of_tokens


def channels_of(shapes: Shapes, attrs: Attrs) -> tuple[int, int]:
    """The channels of a place of x, and of one of the result."""
    columns, (weights,) = shapes["x"][1], shapes["weight"]
    assert isinstance(columns, int)
    assert isinstance(weights, int)
    channels = columns // (attrs["steps"] * attrs["places"])
    filters = attrs["size"] * attrs["width"] * channels
    return channels, channels if attrs["depthwise"] else weights // max(filters, 1)


def infer_convolve(shapes: Shapes, attrs: Attrs) -> Type:
    rows, columns = shapes["x"]
    inputs, outputs = channels_of(shapes, attrs)
    steps, places, stride = attrs["steps"], attrs["places"], attrs["stride"]
    weights = attrs["size"] * attrs["width"] * outputs * (1 if attrs["depthwise"] else inputs)
    fits = columns == steps * places * inputs and shapes["weight"] == (weights,) and weights > 0 and steps % stride == 0
    fits = fits and attrs["width"] % 2 == 1 and attrs["before"] < attrs["size"]
    fits = fits and shapes.get("bias", (outputs,)) == (outputs,) and shapes.get("row_frames", (rows,)) == (rows,)
    fits = fits and ("row_frames" in shapes) == (attrs["frames"] > 0) and attrs["frames"] % steps == 0
    require(fits, "convolve", shapes)
    return (rows, steps // stride * -(-places // stride) * outputs), "float32"


def convolve(inputs: Inputs, attrs: Attrs) -> Array:
    """Filters of ``size`` steps, ``before`` of them earlier, by ``width`` places around each, for every ``stride``-th
    step and place. What a filter reads of another text, or beyond the first or last place, is zero.

    x (S, steps * places * C), positions (S,), weight (size * width * C * N,): in the order (size, width, C, N), or if
    ``depthwise``, with one filter for each channel, (size, width, C); bias (N,) -> (S, steps / stride * ceil(places /
    stride) * N). ``row_frames`` (S,): how many of the ``frames`` of a row exist, so that the steps that begin behind
    them are zero too; a step has frames / steps of them.
    """
    steps, places, stride, before = (attrs[name] for name in ("steps", "places", "stride", "before"))
    x, positions, size, width = inputs["x"], inputs["positions"], attrs["size"], attrs["width"]
    channels, outputs = channels_of({role: array.shape for role, array in inputs.items()}, attrs)
    image = x.reshape(len(x) * steps, places, channels)
    row, step = np.divmod(np.arange(len(image)), steps)
    if "row_frames" in inputs:
        exists = step * (attrs["frames"] // steps) < inputs["row_frames"][row]
        image = np.where(exists[:, None, None], image, np.float32(0))
    image = np.pad(image, ((0, 0), (width // 2, width // 2), (0, 0)))
    made = np.arange(0, len(x) * steps, stride)
    columns = -(-places // stride)
    weight = inputs["weight"].reshape(size, width, channels, *(() if attrs["depthwise"] else (outputs,)))
    y = np.zeros((len(made), columns, outputs), np.float32)
    for tap in range(size):
        near = made + tap - before
        inside = np.clip(near, 0, len(image) - 1)
        # A text's positions count from 0, so another text has no row with this position here.
        same = positions[row[inside]] - row[inside] == positions[row[made]] - row[made]
        own = np.where((same & (near == inside))[:, None, None], image[inside], np.float32(0))
        for place in range(width):
            part = own[:, place : place + (columns - 1) * stride + 1 : stride]
            y += part * weight[tap, place] if attrs["depthwise"] else part @ weight[tap, place]
    y = y + inputs["bias"] if "bias" in inputs else y
    return y.reshape(len(x), -1)


def convolve_facts(use: Use, bound: Bound) -> Mapping[str, Any]:
    channels, outputs = channels_of(use.shapes, use.attrs)
    return {**use.attrs, "channels": channels, "outputs": outputs, "bias": "bias" in use.shapes}


OPS = {
    "convolve": Op(
        infer_convolve,
        convolve,
        inputs={"x": FLOAT32, "positions": INTEGERS, "weight": VECTOR},
        optional={"bias": VECTOR, "row_frames": INTEGERS},
        attrs={
            "size": count(least=1),
            "before": count(),
            "width": count(1, least=1),
            "steps": count(1, least=1),
            "places": count(1, least=1),
            "stride": count(1, least=1),
            "frames": count(0),
            "depthwise": choice(False, False, True),
        },
        facts=convolve_facts,
        checks=(check_rows_of_tokens,),
        names={"row_frames": "row_frames"},
    ),
}
