"""convolve, row_moments and clip_norm -> ops on the steps of each sound of a batch: those of its rows, one behind the
other. Our value "row_frames" (batch * rows,) int64 says how many frames of each row exist; others count as zeros.
"""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.ir.ops.convolutions import channels_of
from nearfar.compiler.ir.speech import ROW_FRAMES

from .builder import ELEMENT_TYPES
from .emitter import Emitter

CONVOLVE = ("size", "before", "width", "steps", "places", "stride", "frames", "depthwise")


def add_convolve(emitter: Emitter, node: Node) -> None:
    """A Conv over steps and places, whose channels come first."""
    builder, graph, y = emitter.builder, emitter.graph, node.outputs["y"]
    add, integers = builder.add, builder.integers
    attrs = {name: node.attr(name) for name in CONVOLVE}
    size, before, width, steps, places, stride, frames, depthwise = attrs.values()
    channels, outputs = channels_of({role: graph.shape_of(name) for role, name in node.inputs.items()}, attrs)
    (x,) = emitter.inputs(node, "x")
    if ROW_FRAMES in emitter.names:
        of_steps = add("Reshape", [x, integers(-1, steps, places * channels)], f"{y}.steps")
        exists = existing(emitter, steps, frames // steps)
        x = add("Mul", [of_steps, add("Unsqueeze", [exists, integers(2)], f"{y}.exists")], f"{y}.existing")
    shape = add("Concat", ["batch", integers(-1, places, channels)], f"{y}.shape", axis=0)
    image = add("Transpose", [add("Reshape", [x, shape], f"{y}.places")], f"{y}.image", perm=[0, 3, 1, 2])
    filters = (size, width, channels) if depthwise else (size, width, channels, outputs)
    weight = add("Reshape", [emitter.vector(node.inputs["weight"]), integers(*filters)], f"{y}.filters")
    if depthwise:
        weight = add("Unsqueeze", [weight, integers(2)], f"{y}.filters_of_one")
    weight = add("Transpose", [weight], f"{y}.weight", perm=[3, 2, 0, 1])
    bias = [emitter.vector(node.inputs["bias"])] if "bias" in node.inputs else []
    side = width // 2
    image = add(
        "Conv",
        [image, weight, *bias],
        f"{y}.convolved",
        kernel_shape=[size, width],
        strides=[stride, stride],
        pads=[before, side, size - 1 - before, side],
        group=channels if depthwise else 1,
    )
    last = add("Transpose", [image], f"{y}.channels_last", perm=[0, 2, 3, 1])
    emitter.names[y] = add("Reshape", [last, integers(-1, emitter.columns(y))], y)


def existing(emitter: Emitter, steps: int, frames: int) -> str:
    """1 for the steps of each row that begin in one of its frames, else 0: (batch * rows, steps). A step has
    ``frames`` frames.
    """
    builder, name = emitter.builder, f"{ROW_FRAMES}.steps_{steps}_{frames}"
    if any(name in node.output for node in builder.nodes):
        return name
    starts = builder.constant(f"{name}.starts", np.arange(steps) * frames)
    counts = builder.add("Unsqueeze", [emitter.names[ROW_FRAMES], builder.integers(1)], f"{name}.counts")
    exists = builder.add("Less", [starts, counts], f"{name}.exists")
    return builder.add("Cast", [exists], name, to=ELEMENT_TYPES[emitter.activation])


def add_row_moments(emitter: Emitter, node: Node) -> None:
    """In float32, because a sum over a clip exceeds float16."""
    builder, y, frame = emitter.builder, node.outputs["y"], node.attr("frame")
    add, integers = builder.add, builder.integers
    count = emitter.columns(node.inputs["x"]) // frame
    exists = add("Cast", [existing(emitter, count, 1)], f"{y}.exists", to=ELEMENT_TYPES["float32"])
    of_frames = add("Unsqueeze", [exists, integers(2)], f"{y}.of_frames")
    x = add("Reshape", [*emitter.inputs(node, "x"), integers(-1, count, frame)], f"{y}.frames")
    x = add("Cast", [x], f"{y}.float32", to=ELEMENT_TYPES["float32"])
    size, one = (builder.constant(f"float_{number}", np.array(number, np.float32)) for number in (frame, 1))
    frames = add("ReduceSum", [exists, integers(1)], f"{y}.existing", keepdims=1)
    counts = add("Mul", [frames, size], f"{y}.counts")
    least = add("Max", [counts, one], f"{y}.least")
    total = add("ReduceSum", [add("Mul", [x, of_frames], f"{y}.own"), integers(1, 2)], f"{y}.total", keepdims=0)
    total = add("Unsqueeze", [total, integers(1)], f"{y}.totals")
    mean = add("Div", [total, least], f"{y}.mean")
    away = add("Sub", [x, add("Unsqueeze", [mean, integers(2)], f"{y}.means")], f"{y}.away")
    squares = add("Mul", [add("Mul", [away, away], f"{y}.squared"), of_frames], f"{y}.own_squares")
    squares = add("ReduceSum", [squares, integers(1, 2)], f"{y}.sum", keepdims=0)
    squares = add("Unsqueeze", [squares, integers(1)], f"{y}.squares")
    emitter.names[y] = add("Concat", [counts, mean, squares], y, axis=1)


def add_clip_norm(emitter: Emitter, node: Node) -> None:
    builder, y = emitter.builder, node.outputs["y"]
    add, integers = builder.add, builder.integers
    of_rows = add("Reshape", [*emitter.inputs(node, "moments"), "sequences_shape"], f"{y}.of_rows")
    parts = [f"{y}.{part}" for part in ("counts", "means", "squares")]
    counts, means, squares = add("Split", [of_rows, integers(1, 1, 1)], *parts, axis=2), *parts[1:]
    total = add("ReduceSum", [counts, integers(1)], f"{y}.count", keepdims=1)
    total = add("Max", [total, builder.constant("float_1", np.array(1, np.float32))], f"{y}.number")
    sums = add("Mul", [counts, means], f"{y}.sums")
    mean = add("Div", [add("ReduceSum", [sums, integers(1)], f"{y}.sum", keepdims=1), total], f"{y}.mean")
    away = add("Sub", [means, mean], f"{y}.away")
    between = add("Mul", [counts, add("Mul", [away, away], f"{y}.away_squared")], f"{y}.between")
    within = add("Add", [squares, between], f"{y}.within")
    within = add("ReduceSum", [within, integers(1)], f"{y}.all_squares", keepdims=1)
    variance = add("Div", [within, total], f"{y}.variance")
    epsilon = builder.constant(f"{y}.epsilon", np.array(node.attr("eps"), np.float32))
    deviation = add("Sqrt", [add("Add", [variance, epsilon], f"{y}.above_zero")], f"{y}.deviation")
    x = add("Cast", [emitter.sequences(node.inputs["x"], f"{y}.x")], f"{y}.float32", to=ELEMENT_TYPES["float32"])
    unit = add("Div", [add("Sub", [x, mean], f"{y}.centered"), deviation], f"{y}.unit")
    unit = add("Cast", [unit], f"{y}.activations", to=ELEMENT_TYPES[emitter.activation])
    (size,) = emitter.graph.parameters[node.inputs["weight"]].shape
    frames = add("Reshape", [unit, integers(-1, size)], f"{y}.frames")
    scaled = add("Mul", [frames, emitter.vector(node.inputs["weight"])], f"{y}.scaled")
    shifted = add("Add", [scaled, emitter.vector(node.inputs["bias"])], f"{y}.shifted")
    emitter.names[y] = add("Reshape", [shifted, integers(-1, emitter.columns(y))], y)
