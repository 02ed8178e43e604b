"""Vision: convert the graph of a tower to ONNX nodes: pictures, as a model's own processor prepares them, become
features.

The inputs have the names and shapes that transformers gives them; `vision_inputs.py` makes our patches of them, in the
order of blocks, of T tiles with as many patches each. Patches that a mask hides are not seen by others.

    pixel_values, pixel_attention_mask, and spatial_shapes of models whose tiles have any size
    -> image_features float32: (tiles, features of a tile, E), or (features of all tiles, E) if tiles differ in size
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.errors import UnsupportedModel

from .decoder import FORMS, Form, form_of, table_rows
from .emitter import Emitter
from .encoder import ENCODER_FORMS, float32
from .encoder_mask import HIDDEN
from .vision_inputs import FEATURES, VISIBLE, WEIGHTS, add_patches, add_squares

IMAGE_FEATURES = "image_features"


def build_vision(emitter: Emitter, images: ImageSpec) -> None:
    """Fill the emitter's builder. Raises UnsupportedModel for a tower whose inputs or ops have no form."""
    vision, builder = emitter.spec.vision, emitter.builder
    assert vision is not None
    reader = READERS.get(vision.model_type)
    if reader is None:
        raise UnsupportedModel(
            f"the tower of {vision.model_type} has no form in --target onnx, which has those of "
            f"{', '.join(sorted(READERS))}; use --target webgpu, cpu or cuda, or --text-only",
            model_type=vision.model_type,
        )
    reader.add_inputs(emitter, images)
    emitter.bias = add_bias(emitter)
    for node in emitter.graph.nodes:
        form_of(node, reader.forms).emit(emitter, node)
    features = float32(emitter, emitter.rows(emitter.graph.outputs["features"]))
    columns = emitter.spec.hidden_size
    if FEATURES in emitter.names:
        builder.add("Compress", [features, emitter.names[FEATURES]], IMAGE_FEATURES, axis=0)
        builder.add_output(IMAGE_FEATURES, "float32", ("num_features", columns))
    else:
        count = vision.tile_patches // vision.block**2
        builder.add("Reshape", [features, builder.integers(-1, count, columns)], IMAGE_FEATURES)
        builder.add_output(IMAGE_FEATURES, "float32", ("num_tiles", count, columns))


def add_bias(emitter: Emitter) -> str:
    """What is added to scores, (T, 1, patches, patches): patches that are not visible have no weight."""
    builder, visible = emitter.builder, emitter.names[VISIBLE]
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
    return add("Expand", [row, shape], "bias")


def add_plain_positions(emitter: Emitter, node: Node) -> None:
    """Each patch has one row of the table."""
    y, table = node.outputs["y"], emitter.graph.parameters[node.inputs["table"]]
    rows = table_rows(emitter, table, emitter.name(node.inputs["patch_rows"]), f"{y}.rows")
    emitter.names[y] = emitter.builder.add("Add", [*emitter.inputs(node, "x"), rows], y)


def add_mixed_positions(emitter: Emitter, node: Node) -> None:
    """Each patch has a weight for every row of the table."""
    builder, y, table = emitter.builder, node.outputs["y"], emitter.graph.parameters[node.inputs["table"]]
    numbers = builder.constant(f"{y}.numbers", np.arange(table.rows))
    rows = table_rows(emitter, table, numbers, f"{y}.rows")
    mixed = builder.add("MatMul", [emitter.names[WEIGHTS], rows], f"{y}.mixed")
    emitter.names[y] = builder.add("Add", [*emitter.inputs(node, "x"), mixed], y)


def add_fold_rows(emitter: Emitter, node: Node) -> None:
    y = node.outputs["y"]
    if node.attr("mode") != "join":
        raise UnsupportedModel(
            f"the tower has fold_rows with mode {node.attr('mode')!r}, which has no form in --target onnx; use "
            "--target webgpu, cpu or cuda"
        )
    shape = emitter.builder.integers(-1, emitter.columns(y))
    emitter.names[y] = emitter.builder.add("Reshape", [*emitter.inputs(node, "x"), shape], y)


@dataclass(frozen=True, slots=True)
class Reader:
    """How a family's inputs become patches, and the forms of its ops."""

    add_inputs: Callable[[Emitter, ImageSpec], None]
    forms: dict[str, Form]


TOWER_FORMS: dict[str, Form] = {
    **{name: FORMS[name] for name in ("linear", "rms_norm", "add", "activate", "gate", "gate_halves")},
    "ragged_attention": ENCODER_FORMS["ragged_attention"],
    "fold_rows": Form(add_fold_rows, ("size", "mode")),
}
SQUARES = Reader(add_squares, {**TOWER_FORMS, "mix_rows": Form(add_plain_positions)})
PATCHES = Reader(add_patches, {**TOWER_FORMS, "mix_rows": Form(add_mixed_positions)})
# By the model_type of the complete model.
READERS = {"idefics3": SQUARES, "smolvlm": SQUARES, "lfm2_vl": PATCHES}
