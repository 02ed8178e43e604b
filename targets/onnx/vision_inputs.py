"""The inputs of a tower's graph: pictures as transformers' processors prepare them, as patches in the order of blocks.

All of `INPUTS` name: "ids_shape" [T, patches of a tile] and "sequences_shape" [T, patches, -1]; our value "patches"
(rows, elements); and the positions, either our values "patch_rows" and, if rows have any, "patch_weights", or `WEIGHTS`
(rows, rows of the table). `VISIBLE` (T * patches,) bool, if there, says which patches exist, and `FEATURES` which
features are those of a picture, and not of padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.formats.towers import DOUBLING
from nearfar.compiler.ir.images import EvenTiles, FixedSize, ImageSpec
from nearfar.compiler.runtime.errors import UnsupportedModel

from .builder import ELEMENT_TYPES
from .emitter import Emitter

# The name of a node, which a user of another runtime reads in its message.
STILL = "frames_of_a_picture_must_be_equal"
VISIBLE, WEIGHTS, FEATURES = "patches.visible", "patches.weights", "patches.real_features"


def add_squares(emitter: Emitter, images: ImageSpec) -> None:
    """Tiles of one size, and a mask of their pixels. As in transformers, tiles of zeros are padding, which has no
    features.

    pixel_values (batch, images, 3, side, side) float32, pixel_attention_mask (batch, images, side, side) bool
    """
    builder, patch, block = emitter.builder, images.patch, images.block
    add, integers = builder.add, builder.integers
    if not isinstance(images.tiles, EvenTiles):
        raise UnsupportedModel("pictures that are not cut into equal tiles have no form in --target onnx")
    side, across = images.tiles.side, images.tiles.side // patch
    used, blocks = across * patch, across // block
    axes = ("batch_size", "num_images")
    builder.add_input("pixel_values", "float32", (*axes, 3, side, side))
    builder.add_input("pixel_attention_mask", "bool", (*axes, side, side))
    all_tiles = add("Reshape", ["pixel_values", integers(-1, 3, side, side)], "tiles.all")
    largest = add("ReduceMax", [add("Abs", [all_tiles], "tiles.sizes"), integers(1, 2, 3)], "tiles.most", keepdims=0)
    real = add("Greater", [largest, builder.constant("tiles.zero", np.array(0, np.float32))], "tiles.real")
    tiles = add("Compress", [all_tiles, real], "tiles", axis=0)
    masks = add("Reshape", ["pixel_attention_mask", integers(-1, side, side)], "masks.all")
    masks = add("Cast", [add("Compress", [masks, real], "masks", axis=0)], "masks.numbers", to=FLOAT)
    if used < side:
        # Pixels beyond the last patch are not read.
        bounds = [integers(0, 0), integers(used, used)]
        tiles = add("Slice", [tiles, *bounds, integers(2, 3)], "tiles.read")
        masks = add("Slice", [masks, *bounds, integers(1, 2)], "masks.read")
    add_square_patches(emitter, tiles, images, across)
    # A patch is visible if any of its pixels is.
    masks = add("Reshape", [masks, integers(-1, across, patch, across, patch)], "masks.grid")
    masks = add("ReduceMax", [masks, integers(2, 4)], "masks.patches", keepdims=0)
    boundaries = builder.constant("boundaries", table_boundaries(images.positions.side))
    rows, columns = (add_fractions(emitter, masks, boundaries, across, images.positions.side, axis) for axis in (1, 2))
    number = add("Add", [rows, columns], "positions.all")
    visible = add("Cast", [masks], "masks.bool", to=ELEMENT_TYPES["bool"])
    number = add("Where", [visible, number, builder.integer(0)], "positions")
    emitter.names["patch_rows"] = in_blocks(emitter, number, blocks, block, "positions")
    emitter.names[VISIBLE] = in_blocks(emitter, visible, blocks, block, "visible")


def add_square_patches(emitter: Emitter, tiles: str, images: ImageSpec, across: int) -> None:
    """The patches of tiles (T, 3, pixels, pixels), ``across`` on each side."""
    add, integers = emitter.builder.add, emitter.builder.integers
    patch, block, blocks = images.patch, images.block, across // images.block
    # (tile, channel, row of blocks, row in the block, row in the patch, the same of columns)
    pixels = add("Reshape", [tiles, integers(-1, 3, blocks, block, patch, blocks, block, patch)], "tiles.grid")
    inner = [1, 4, 7] if images.order == "channel_row_column" else [4, 7, 1]
    pixels = add("Transpose", [pixels], "tiles.blocks", perm=[0, 2, 5, 3, 6, *inner])
    add_patch_rows(emitter, add("Reshape", [pixels, integers(-1, 3 * patch**2)], "tiles.patches"))
    add_shape(emitter, add("Shape", [tiles], "tiles.count", end=1), integers(across**2))


def table_boundaries(side: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Where the fractions of a side begin that have the next row of the table, from row 1 on; as transformers' model
    computes them.
    """
    step = 1 / side
    return np.asarray(step + step * np.arange(side - 1), np.float32)


def add_fractions(emitter: Emitter, masks: str, boundaries: str, across: int, side: int, axis: int) -> str:
    """What the row (``axis`` 1) or column (2) of a patch adds to its number in the table: the row at the same fraction
    of the visible side.
    """
    builder, name = emitter.builder, f"positions.{axis}"
    add, integers = builder.add, builder.integers
    first = add("Gather", [masks, integers(0)], f"{name}.first", axis=3 - axis)
    count = add("ReduceSum", [first, integers(1, 2)], f"{name}.count", keepdims=1)
    steps = builder.constant("patches.steps", np.arange(across, dtype=np.float32)[:, None])
    one, most = (
        builder.constant(f"fractions.{each}", np.array(value, np.float32))
        for each, value in (("one", 1), ("most", 1 - 1e-6))
    )
    fractions = add("Mul", [steps, add("Div", [one, count], f"{name}.step")], f"{name}.fractions")
    fractions = add("Min", [fractions, most], f"{name}.bounded")
    passed = add("GreaterOrEqual", [fractions, boundaries], f"{name}.passed")
    number = add("ReduceSum", [add("Cast", [passed], f"{name}.ones", to=INT64), integers(2)], f"{name}.row", keepdims=0)
    if axis == 1:
        number = add("Mul", [number, builder.integer(side)], f"{name}.start")
    return add("Unsqueeze", [number, integers(3 - axis)], name)


def in_blocks(emitter: Emitter, grid: str, blocks: int, block: int, name: str) -> str:
    """A value of each patch of a tile (T, rows, columns), in the order of blocks (T * patches,)."""
    add, integers = emitter.builder.add, emitter.builder.integers
    grid = add("Reshape", [grid, integers(-1, blocks, block, blocks, block)], f"{name}.grid")
    grid = add("Transpose", [grid], f"{name}.blocks", perm=[0, 1, 3, 2, 4])
    return add("Reshape", [grid, integers(-1)], f"{name}.rows")


def add_pictures(emitter: Emitter, images: ImageSpec) -> None:
    """Pictures of one size, whose patches have one row of the table each.

    pixel_values (images, 3, side, side) float32
    """
    if not isinstance(images.size, FixedSize) or images.tiles is not None:
        raise UnsupportedModel("pictures of several sizes have no form in --target onnx if the tower has only one")
    builder, side, block = emitter.builder, images.positions.side, images.block
    pixels = side * images.patch
    builder.add_input("pixel_values", "float32", ("num_images", 3, pixels, pixels))
    add_square_patches(emitter, "pixel_values", images, side)
    numbers = np.arange(side**2).reshape(side // block, block, side // block, block).swapaxes(1, 2)
    row = builder.constant("positions.tile", numbers.reshape(1, -1))
    emitter.names["patch_rows"] = builder.add("Expand", [row, "ids_shape"], "positions")


def add_patches(emitter: Emitter, images: ImageSpec) -> None:
    """Patches of tiles of any size, row by row, with padding behind them.

    pixel_values (tiles, patches, elements) float32, pixel_attention_mask (tiles, patches) int64, which says the same as
    spatial_shapes (tiles, 2) int64: rows and columns of patches
    """
    builder, size = emitter.builder, images.positions.side
    add, integers = builder.add, builder.integers
    axes = ("num_tiles", "num_patches")
    builder.add_input("pixel_values", "float32", (*axes, emitter.columns("patches")))
    builder.add_input("pixel_attention_mask", "int64", axes)
    builder.add_input("spatial_shapes", "int64", (axes[0], 2))
    rows, columns = (f"tiles.{name}" for name in ("rows", "columns"))
    add("Split", ["spatial_shapes"], rows, columns, axis=1, num_outputs=2)
    places = add_places(emitter, images.block, rows, columns)
    add_rows_of_tiles(emitter, places)
    by_row, by_column = (
        add("Unsqueeze", [axis_weights(emitter, place, count, size), integers(axis)], f"{place}.{axis}")
        for place, count, axis in ((places.row, rows, 3), (places.column, columns, 2))
    )
    mixed = add("Reshape", [add("Mul", [by_row, by_column], "weights.grid"), integers(-1, size**2)], "weights")
    emitter.names[WEIGHTS] = add("Cast", [mixed], "weights.cast", to=ELEMENT_TYPES[emitter.activation])


def add_placed_patches(emitter: Emitter, images: ImageSpec) -> None:
    """Patches of pictures of any size, row by row, with padding behind them.

    pixel_values (pictures, patches, elements) float32, pixel_position_ids (pictures, patches, 2) int64: the column and
    the row of each patch, or -1
    """
    builder, vision = emitter.builder, emitter.spec.vision
    assert vision is not None
    add, integers, integer = builder.add, builder.integers, builder.integer
    axes = ("num_images", "num_patches")
    builder.add_input("pixel_values", "float32", (*axes, emitter.columns("patches")))
    builder.add_input("pixel_position_ids", "int64", (*axes, 2))
    last = add("ReduceMax", ["pixel_position_ids", integers(1)], "tiles.last", keepdims=0)
    columns, rows = (f"tiles.{name}" for name in ("columns", "rows"))
    add("Split", [add("Add", [last, integer(1)], "tiles.sides")], columns, rows, axis=1, num_outputs=2)
    places = add_places(emitter, images.block, rows, columns)
    add_rows_of_tiles(emitter, places)
    if vision.model_type in DOUBLING:
        two, one = emitter.factor(2), emitter.factor(1)
        doubled = add("Mul", [emitter.names["patches"], two], "patches.doubled")
        emitter.names["patches"] = add("Sub", [doubled, one], "patches.centered")
    add_positions(emitter, places)
    # The table of rows is behind that of columns.
    row = add("Add", [places.row, integer(images.positions.side)], "positions.of_row")
    both = [add("Unsqueeze", [each, integers(2)], f"{each}.tap") for each in (places.column, row)]
    emitter.names["patch_rows"] = add("Concat", both, "patch_rows", axis=2)


def add_positions(emitter: Emitter, places: Places) -> None:
    """Our value "patch_positions"."""
    add, integers = emitter.builder.add, emitter.builder.integers
    of_axes = [add("Unsqueeze", [each, integers(2)], f"{each}.axis") for each in (places.row, places.column)]
    both = add("Concat", of_axes, "patch_positions.tiles", axis=2)
    emitter.names["patch_positions"] = add("Reshape", [both, integers(-1, 2)], "patch_positions")


def add_rows_of_tiles(emitter: Emitter, places: Places) -> None:
    """The rows of "pixel_values" (tiles, patches, elements) in the order of blocks."""
    builder, elements = emitter.builder, emitter.columns("patches")
    add, integers, integer = builder.add, builder.integers, builder.integer
    stride = add("Shape", ["pixel_values"], "tiles.stride", start=1, end=2)
    tiles = add("Range", [integer(0), add("Squeeze", ["tiles.count"], "count"), integer(1)], "tiles.numbers")
    first = add("Mul", [add("Unsqueeze", [tiles, integers(1)], "tiles.column"), stride], "tiles.first")
    number = add("Add", [add("Mul", [places.row, places.columns], "row.start"), places.column], "index.real")
    index = add("Reshape", [add("Add", [number, first], "index.all"), integers(-1)], "index.rows")
    flat = add("Reshape", ["pixel_values", integers(-1, elements)], "values.rows")
    add_patch_rows(emitter, add("Gather", [flat, index], "values.blocks", axis=0))


def add_grids(emitter: Emitter, images: ImageSpec) -> None:
    """Patches of pictures and videos of any size, in the order of blocks, each of several frames.

    pixel_values (patches, channels * frames * pixels) float32, image_grid_thw (pictures, 3) int64: times, rows and
    columns of patches
    """
    builder, pixels = emitter.builder, images.patch**2
    add, integers, integer = builder.add, builder.integers, builder.integer
    builder.add_input("pixel_values", "float32", ("num_patches", "patch_elements"))
    builder.add_input("image_grid_thw", "int64", ("num_images", 3))
    parts = [f"grids.{name}" for name in ("times", "rows", "columns")]
    add("Split", ["image_grid_thw"], *parts, axis=1, num_outputs=3)
    # Each time of a picture is a tile.
    ends = add("CumSum", [add("Squeeze", [parts[0], integers(1)], "grids.of_time"), integer(0)], "grids.ends")
    count = add("ReduceSum", [parts[0]], "grids.count", keepdims=0)
    tiles = add("Range", [integer(0), count, integer(1)], "tiles.numbers")
    passed = add("GreaterOrEqual", [add("Unsqueeze", [tiles, integers(1)], "tiles.column"), ends], "tiles.passed")
    picture = add(
        "ReduceSum", [add("Cast", [passed], "tiles.ones", to=INT64), integers(1)], "tiles.picture", keepdims=0
    )
    rows, columns = (add("Gather", [name, picture], f"{name}.of_tiles", axis=0) for name in parts[1:])
    places = add_places(emitter, images.block, rows, columns)
    first = add("CumSum", [places.sizes, integer(0)], "tiles.first", exclusive=1)
    index = add("Where", [places.real, add("Add", [first, places.number], "index.real"), integer(0)], "index")
    index = add("Reshape", [index, integers(-1)], "index.rows")
    frames = add("Reshape", ["pixel_values", integers(0, 3, -1, pixels)], "frames.all")
    frames = add("Gather", [frames, index], "frames", axis=0)
    mean = add("ReduceMean", [frames, integers(2)], "frames.mean", keepdims=1)
    change = add("Sub", [add("Gather", [frames, integers(0)], "frames.first", axis=2), mean], "frames.change")
    shape = integers(-1, 3 * pixels)
    add_patch_rows(emitter, add("Reshape", [mean, shape], "frames.rows"))
    if "changes" in emitter.graph.inputs:
        change = add("Reshape", [change, shape], "changes.rows")
        emitter.names["changes"] = add("Cast", [change], "changes", to=ELEMENT_TYPES[emitter.activation])
    else:
        require_still(emitter, change)
    add_positions(emitter, places)
    add_corners(emitter, images.positions.side, (places.row, rows), (places.column, columns))


def require_still(emitter: Emitter, change: str) -> None:
    """Let the call fail if the frames of a patch differ, whose weights the model lacks; the runtime's message has the
    node's name.
    """
    add = emitter.builder.add
    largest = add("ReduceMax", [add("Abs", [change], "frames.distance")], "frames.largest", keepdims=0)
    differ = add("Cast", [add("Cast", [largest], "frames.differ", to=ELEMENT_TYPES["bool"])], "frames.one", to=INT64)
    rows = emitter.names["patches"]
    # A reshape to another size is the error.
    shape = add("Add", [add("Shape", [rows], "frames.shape"), differ], "frames.still_shape")
    emitter.names["patches"] = add("Reshape", [rows, shape], STILL)


def add_corners(emitter: Emitter, side: int, *axes: tuple[str, str]) -> None:
    """The four rows of a table of ``side`` x ``side`` that are around each patch, and their weights. ``axes``: the
    row, and the column, of each patch (T, patches), and how many its tile has (T, 1).
    """
    builder = emitter.builder
    add, integers = builder.add, builder.integers
    one, steps = (builder.constant(f"corners.{each}", np.array(each, np.float32)) for each in (1, side - 1))
    rows, weights = [], []
    for axis, (place, count) in enumerate(axes):
        name = f"corners.{axis}"
        last = add("Max", [add("Sub", [count, integers(1)], f"{name}.last"), integers(1)], f"{name}.most")
        at = add("Mul", [add("Cast", [place], f"{name}.place", to=FLOAT), steps], f"{name}.scaled")
        at = add("Div", [at, add("Cast", [last], f"{name}.by", to=FLOAT)], f"{name}.at")
        below = add("Floor", [at], f"{name}.below")
        rest = add("Sub", [at, below], f"{name}.rest")
        pair = add("Unsqueeze", [add("Cast", [below], f"{name}.row", to=INT64), integers(2)], f"{name}.first")
        pair = add("Add", [pair, builder.constant("corners.both", np.arange(2))], f"{name}.pair")
        pair = add("Min", [pair, integers(side - 1)], f"{name}.inside")
        shares = [
            add("Unsqueeze", [each, integers(2)], f"{each}.share")
            for each in (add("Sub", [one, rest], f"{name}.left"), rest)
        ]
        # (tile, patch, row of the table, column of the table)
        to = integers(3 - axis)
        rows.append(add("Unsqueeze", [pair, to], f"{name}.rows"))
        weights.append(add("Unsqueeze", [add("Concat", shares, f"{name}.shares", axis=2), to], f"{name}.weights"))
    number = add("Add", [add("Mul", [rows[0], integers(side)], "corners.start"), rows[1]], "corners.rows")
    emitter.names["patch_rows"] = add("Reshape", [number, integers(-1, 4)], "patch_rows")
    weight = add("Reshape", [add("Mul", weights, "corners.weights"), integers(-1, 4)], "patch_weights")
    emitter.names["patch_weights"] = add("Cast", [weight], "patch_weights.cast", to=ELEMENT_TYPES[emitter.activation])


@dataclass(frozen=True, slots=True)
class Places:
    """The patches of T tiles in the order of blocks, each tile with as many as the largest has. ``real``, ``row``,
    ``column`` (T, patches): whether a patch exists, and where, or 0. ``number`` (1, patches), ``sizes`` and ``columns``
    (T, 1) of the tiles.
    """

    real: str
    row: str
    column: str
    number: str
    sizes: str
    columns: str


def add_places(emitter: Emitter, block: int, rows: str, columns: str) -> Places:
    """Name the shapes, `VISIBLE` and `FEATURES` of tiles with ``rows`` and ``columns`` of patches (T, 1)."""
    builder = emitter.builder
    add, integers, integer = builder.add, builder.integers, builder.integer
    sizes = add("Mul", [rows, columns], "tiles.sizes")
    most = add("ReduceMax", [sizes], "tiles.longest", keepdims=0)
    add_shape(emitter, add("Shape", [rows], "tiles.count", end=1), add("Unsqueeze", [most, integers(0)], "tiles.most"))
    # Number n of a tile is number n % block^2 of its block n // block^2.
    numbers = add("Range", [integer(0), most, integer(1)], "numbers")
    numbers = add("Unsqueeze", [numbers, integers(0)], "numbers.row")
    of_block, inside = divided(emitter, numbers, integer(block**2), "numbers")
    across = add("Div", [columns, integer(block)], "blocks.across")
    blocks, inner = divided(emitter, of_block, across, "blocks"), divided(emitter, inside, integer(block), "inside")
    real = add("Less", [numbers, sizes], "numbers.real")
    row, column = (
        add("Add", [add("Mul", [first, integer(block)], f"{first}.start"), second], f"{first}.place")
        for first, second in zip(blocks, inner, strict=True)
    )
    row, column = (add("Where", [real, each, integer(0)], f"{each}.real") for each in (row, column))
    emitter.names[VISIBLE] = add("Reshape", [real, integers(-1)], "visible")
    of_blocks = add("Reshape", [emitter.names[VISIBLE], integers(-1, block**2)], "visible.blocks")
    first = add("Gather", [of_blocks, integers(0)], "visible.first", axis=1)
    emitter.names[FEATURES] = add("Reshape", [first, integers(-1)], "features.real")
    return Places(real, row, column, numbers, sizes, columns)


def divided(emitter: Emitter, value: str, by: str, name: str) -> tuple[str, str]:
    """The quotient and the remainder."""
    add = emitter.builder.add
    return add("Div", [value, by], f"{name}.quotient"), add("Mod", [value, by], f"{name}.remainder")


def axis_weights(emitter: Emitter, place: str, count: str, size: int) -> str:
    """The weights (T, patches, size) of the rows of a table along one side, bilinear and antialiased. ``place`` (T,
    patches): the row or column of a patch, ``count`` (T, 1): those of its tile.
    """
    builder, name = emitter.builder, f"{place}.weights"
    add, integers = builder.add, builder.integers
    one, half, zero, total, rows = (
        builder.constant(f"weights.{each}", np.array(value, np.float32))
        for each, value in (("1", 1), ("half", 0.5), ("0", 0), ("size", size), ("rows", np.arange(size)))
    )
    scale = add("Div", [total, add("Cast", [count], f"{name}.count", to=FLOAT)], f"{name}.scale")
    center = add("Add", [add("Cast", [place], f"{name}.place", to=FLOAT), half], f"{name}.middle")
    center = add("Sub", [add("Mul", [center, scale], f"{name}.scaled"), half], f"{name}.center")
    away = add("Sub", [rows, add("Unsqueeze", [center, integers(2)], f"{name}.column")], f"{name}.away")
    support = add("Unsqueeze", [add("Max", [scale, one], f"{name}.support"), integers(2)], f"{name}.width")
    share = add("Div", [add("Abs", [away], f"{name}.distance"), support], f"{name}.share")
    weights = add("Max", [add("Sub", [one, share], f"{name}.rest"), zero], f"{name}.raw")
    return add("Div", [weights, add("ReduceSum", [weights, integers(2)], f"{name}.sum", keepdims=1)], name)


def add_patch_rows(emitter: Emitter, rows: str) -> None:
    builder = emitter.builder
    emitter.names["patches"] = builder.add("Cast", [rows], "patches", to=ELEMENT_TYPES[emitter.activation])


def add_shape(emitter: Emitter, tiles: str, patches: str) -> None:
    """``tiles``, ``patches``: lists of one number."""
    add = emitter.builder.add
    add("Concat", [tiles, patches], "ids_shape", axis=0)
    add("Concat", ["ids_shape", emitter.builder.integers(-1)], "sequences_shape", axis=0)


# How pictures become patches, by the rule of their positions.
INPUTS: Mapping[str, Callable[[Emitter, ImageSpec], None]] = {
    "antialiased": add_patches,
    "axes": add_placed_patches,
    "corners": add_grids,
    "fractions": add_squares,
    "plain": add_pictures,
}
FLOAT, INT64 = ELEMENT_TYPES["float32"], ELEMENT_TYPES["int64"]
