"""Vision: convert the graph of a tower to ONNX nodes: pictures, as a model's own processor prepares them, become
features.

The inputs have the names and shapes that transformers and Transformers.js give them; `vision_inputs.py` makes our
patches of them, in the order of blocks, of T tiles with as many patches each. Patches that do not exist are not seen by
others.

    pixel_values, and what says where its pixels are
    -> image_features float32: (tiles, features of a tile, N), or (features of all tiles, N) if tiles differ in size

N is the length of a row of embeddings, which `embeddings.py` describes.
"""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.errors import UnsupportedModel

from .builder import ELEMENT_TYPES
from .decoder import FORMS, Form, form_of, table_rows
from .embeddings import PLACE_ROWS, ROPE_ROWS, marks_features, row_columns
from .emitter import Emitter
from .encoder import ENCODER_FORMS, float32
from .encoder_mask import HIDDEN
from .vision_inputs import FEATURES, INPUTS, INT64, VISIBLE, WEIGHTS

IMAGE_FEATURES = "image_features"


def build_vision(emitter: Emitter, images: ImageSpec) -> None:
    """Fill the emitter's builder. Raises UnsupportedModel for a tower whose inputs or ops have no form."""
    vision, builder = emitter.spec.vision, emitter.builder
    assert vision is not None
    INPUTS[images.positions.rule](emitter, images)
    emitter.bias = add_bias(emitter) if VISIBLE in emitter.names else ""
    for node in emitter.graph.nodes:
        form_of(node, TOWER_FORMS).emit(emitter, node)
    features = float32(emitter, emitter.rows(emitter.graph.outputs["features"]))
    columns = row_columns(emitter.spec)
    if marks_features(emitter.spec):
        one = builder.constant("mark", np.array(1, np.float32))
        features = builder.add("Pad", [features, builder.integers(0, 0, 0, 1), one], "features.marked")
    if FEATURES in emitter.names:
        builder.add("Compress", [features, emitter.names[FEATURES]], IMAGE_FEATURES, axis=0)
        builder.add_output(IMAGE_FEATURES, "float32", ("num_features", columns))
    else:
        count = vision.tile_patches // vision.block**2
        builder.add("Reshape", [features, builder.integers(-1, count, columns)], IMAGE_FEATURES)
        builder.add_output(IMAGE_FEATURES, "float32", ("num_tiles", count, columns))


def add_bias(emitter: Emitter) -> str:
    """What is added to scores, (T, 1, patches, patches): patches that are not visible have no weight. If all are, as
    those of a single picture, it is nothing.
    """
    main, visible = emitter.builder, emitter.names[VISIBLE]
    ones = main.add("Cast", [main.add("Not", [visible], "bias.hidden_patches")], "bias.ones", to=INT64)
    most = main.add("ReduceMax", [ones], "bias.most", keepdims=0)
    emitter.hides = main.add("Cast", [most], "bias.hides", to=ELEMENT_TYPES["bool"])
    builder, none = main.branch(), main.branch()
    add, integers = builder.add, builder.integers
    zero, hidden = (
        builder.constant(f"bias.{part}", np.array(value, emitter.activation))
        for part, value in (("zero", 0), ("hidden", HIDDEN[emitter.activation]))
    )
    row = add("Where", [visible, zero, hidden], "bias.of_patches")
    row = add("Reshape", [row, add("Concat", ["ids_shape", integers(1, 1)], "bias.shape", axis=0)], "bias.columns")
    row = add("Transpose", [row], "bias.row", perm=[0, 2, 3, 1])
    # ONNX Runtime's kernel repeats the bias for sequences and heads, but not for rows.
    ones = integers(1)
    patches = add("Gather", ["ids_shape", ones], "bias.patches", axis=0)
    shape = add("Concat", [ones, ones, patches, ones], "bias.square", axis=0)
    builder.add_output(add("Expand", [row, shape], "bias.expanded"), emitter.activation, ())
    none.add_output(none.add("Identity", [zero], "bias.none"), emitter.activation, ())
    return main.choose(emitter.hides, ["bias"], builder, none, emitter.activation)


def add_mix_rows(emitter: Emitter, node: Node) -> None:
    """Each patch has a weight for every row of the table, or it has one row, or several that have weights or are
    added.
    """
    builder, y, table = emitter.builder, node.outputs["y"], emitter.graph.parameters[node.inputs["table"]]
    add, integers = builder.add, builder.integers
    taps = emitter.columns(node.inputs["patch_rows"])
    if WEIGHTS in emitter.names:
        numbers = builder.constant(f"{y}.numbers", np.arange(table.rows))
        rows = table_rows(emitter, table, numbers, f"{y}.rows")
        mixed = add("MatMul", [emitter.names[WEIGHTS], rows], f"{y}.mixed")
    else:
        numbers = add("Reshape", [emitter.name(node.inputs["patch_rows"]), integers(-1)], f"{y}.numbers")
        mixed = table_rows(emitter, table, numbers, f"{y}.rows")
    if taps > 1 and WEIGHTS not in emitter.names:
        mixed = add("Reshape", [mixed, integers(-1, taps, emitter.columns(y))], f"{y}.taps")
        if node.inputs["patch_weights"] in emitter.names:
            weights = add("Unsqueeze", [emitter.name(node.inputs["patch_weights"]), integers(2)], f"{y}.weights")
            mixed = add("Mul", [mixed, weights], f"{y}.weighted")
        mixed = add("ReduceSum", [mixed, integers(1)], f"{y}.mixed", keepdims=0)
    emitter.names[y] = add("Add", [*emitter.inputs(node, "x"), mixed], y)


def add_fold_rows(emitter: Emitter, node: Node) -> None:
    """The patches of a block one behind the other, or their mean."""
    add, integers, y = emitter.builder.add, emitter.builder.integers, node.outputs["y"]
    (x,), columns = emitter.inputs(node, "x"), emitter.columns(y)
    if node.attr("mode") == "join":
        emitter.names[y] = add("Reshape", [x, integers(-1, columns)], y)
        return
    blocks = add("Reshape", [x, integers(-1, node.attrs["size"], columns)], f"{y}.blocks")
    emitter.names[y] = add("ReduceMean", [blocks, integers(1)], y, keepdims=0)


def add_part(emitter: Emitter, node: Node) -> None:
    """A projection, perhaps one that fills columns of a value behind those that others have written. Raises
    UnsupportedModel for columns in another order, and for what else is done with the results.
    """
    if node.attr("columns") is None and not node.attr("store"):
        FORMS["linear"].emit(emitter, node)
        return
    add, integers, y = emitter.builder.add, emitter.builder.integers, node.outputs["y"]
    into, start = node.inputs.get("into"), node.attr("offset")
    before = None if into is None else emitter.graph.makers()[into]
    other = [part["op"] for part in node.attr("store") if part != {"op": "clamp"}]
    if start != (0 if before is None else end_of_part(emitter, before)) or other:
        raise UnsupportedModel(
            f"{y} fills columns from {start} on{''.join(f', with {op}' for op in other)}, which has no form in "
            "--target onnx; use --target webgpu, cpu or cuda"
        )
    own, end = f"{y}.own", end_of_part(emitter, node)
    product = Node("linear", {role: node.inputs[role] for role in ("x", "weight")}, {"y": own})
    FORMS["linear"].emit(emitter, product)
    part = emitter.names[own]
    if "bias" in node.inputs:
        bounds = integers(start), integers(end)
        bias = add("Slice", [emitter.vector(node.inputs["bias"]), *bounds], f"{y}.bias")
        part = add("Add", [part, bias], f"{y}.biased")
    for index in range(len(node.attr("store"))):
        part = clamped(emitter, part, node.inputs[f"store{index}_bounds"], f"{y}.clamped{index}")
    emitter.names[y] = part if into is None else add("Concat", [emitter.name(into), part], y, axis=1)


def end_of_part(emitter: Emitter, node: Node) -> int:
    return int(node.attr("offset")) + emitter.graph.parameters[node.inputs["weight"]].rows


def add_clamp(emitter: Emitter, node: Node) -> None:
    (x,), y = emitter.inputs(node, "x"), node.outputs["y"]
    emitter.names[y] = clamped(emitter, x, node.inputs["bounds"], y)


def clamped(emitter: Emitter, x: str, bounds: str, y: str) -> str:
    add, integers, vector = emitter.builder.add, emitter.builder.integers, emitter.vector(bounds)
    low, high = (
        add("Slice", [vector, integers(index), integers(index + 1)], f"{y}.{name}")
        for index, name in enumerate(("low", "high"))
    )
    return add("Max", [add("Min", [x, high], f"{y}.below"), low], y)


TOWER_FORMS: dict[str, Form] = {
    **{name: FORMS[name] for name in ("rms_norm", "add", "activate", "gate", "gate_halves")},
    **{name: ENCODER_FORMS[name] for name in ("rope_heads", "ragged_attention")},
    "linear": Form(add_part, ("dtype", "columns", "offset", "store"), ("bias", "into", "store0_bounds")),
    "clamp": Form(add_clamp),
    "place_rows": PLACE_ROWS,
    "rope_rows": ROPE_ROWS,
    "mix_rows": Form(add_mix_rows),
    "fold_rows": Form(add_fold_rows, ("size", "mode")),
}
