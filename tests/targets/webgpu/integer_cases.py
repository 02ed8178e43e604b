"""The cases of linear with int8 activations: both kernels of a row, in every weight format of integers.

Inputs without a norm are multiples of a number whose codes are the multiples themselves, so rounding changes nothing,
and results must be as exact as those of float32. What a norm returns is rounded, so its tolerance is that of int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from case_arrays import ALL_FORMATS, BATCHES
from kernel_harness import Case
from projection_cases import (
    LAYER_NORMS,
    PROJECTIONS,
    STORED_PROJECTIONS,
    TILE_BATCHES,
    UNIT_PROJECTIONS,
    projection_facts,
    projection_name,
    projection_run,
)

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.linear_dot_tile import DotTileShape, linear_dot_tile
from nearfar.compiler.kernels.linear_dots import DotShape, linear_dots
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.quantize_rows import LARGEST, quantize_rows
from nearfar.compiler.quant.base import GROUP
from nearfar.targets.gpu_variants import num_buffers
from nearfar.targets.webgpu.variants import MAX_STORAGE_BUFFERS

FORMATS = tuple(name for name, fmt in ALL_FORMATS.items() if fmt.scale_dtype)
# By a name for tests.
VECTORS = {
    f"dots_{shape.threads}_{shape.lanes}_{shape.rows}_{'i8' if shape.signed else 'u8'}": shape
    for shape in (DotShape(), DotShape(signed=True), DotShape(128, 32, 2), DotShape(64, 4, 1, signed=True))
}
TILES = {
    f"dottile_{shape.rows}_{shape.outputs}_{'i8' if shape.signed else 'u8'}": shape
    for shape in (DotTileShape(), DotTileShape(32, 32, signed=True), DotTileShape(signed=True), DotTileShape(32, 32))
}
SHAPES: dict[str, DotShape | DotTileShape] = {**VECTORS, **TILES}
# More columns than a workgroup quantizes at a time, and than a vector kernel multiplies in a step; and one column.
RARE_PROJECTIONS: tuple[tuple[str, int, int, dict[str, object]], ...] = (
    ("q4f16", 8224, 3, {}),
    ("q4f16", 2144, 19, {"norm_eps": 1e-6}),
    ("q8f16", 1, 1, {"bias": True}),
)


def integer_cases() -> Iterator[Case]:
    """Every format with every shape, with the projections in turn. Without the exhaustive ones, every format with one
    shape; a vector and a tile of either product also run on Dawn.
    """
    projections = (*PROJECTIONS, *STORED_PROJECTIONS, *UNIT_PROJECTIONS)
    for index, quantization in enumerate(FORMATS):
        for number, template in enumerate(SHAPES):
            columns, outputs, options = projections[(3 * index + number) % len(projections)]
            buffers = num_buffers(replace(projection_facts(quantization, columns, outputs, options), load=())) + 1
            if buffers > MAX_STORAGE_BUFFERS:
                options = {option: value for option, value in options.items() if option != "residual"}
            usual = number == index % len(SHAPES)
            on_dawn = quantization == FORMATS[0] and number in (0, 1, 4, 5) and "x_dtype" not in options
            case = integer_case(template, quantization, columns, outputs, options)
            yield replace(case, on_dawn=on_dawn, exhaustive=not (usual or on_dawn))
    rare = (*RARE_PROJECTIONS, *(each for each in LAYER_NORMS if ALL_FORMATS[each[0]].scale_dtype))
    for turn, (quantization, columns, outputs, options) in enumerate(rare):
        for number, template in enumerate(SHAPES):
            case = integer_case(template, quantization, columns, outputs, options)
            yield replace(case, exhaustive=number != turn % len(SHAPES))


def integer_case(template: str, quantization: str, columns: int, outputs: int, options: dict[str, object]) -> Case:
    facts = projection_facts(quantization, columns, outputs, options)
    name = projection_name(template, quantization, columns, outputs, options)
    has_norm = any(part["op"] == "rms_norm" for part in facts.load)
    changed: Callable[[Array], Array] = (lambda x: x) if has_norm else exact_in_8_bits
    batches = TILE_BATCHES if template in TILES else BATCHES
    runs = lambda: [projection_run(name, facts, options, quantization, size, changed) for size in batches]  # noqa: E731
    return Case(name, lambda: kernels_of(template, name, facts), runs, "int8" if has_norm else None)


def kernels_of(template: str, name: str, facts: Projection) -> list[Kernel]:
    shape, rest = SHAPES[template], replace(facts, load=())
    rows = quantize_rows(
        f"{name}_rows",
        facts.batch,
        facts.columns,
        facts.x_dtype,
        facts.load,
        halves=facts.weight.scales_a_chunk == 2,
        signed=shape.signed,
    )
    if isinstance(shape, DotShape):
        return [rows, linear_dots(name, rest, shape)]
    return [rows, linear_dot_tile(name, rest, shape)]


def exact_in_8_bits(x: Array) -> Array:
    """Rows like these, in which every group of 32 columns is a number times its codes, of which the largest is 127."""
    rows, columns = x.shape
    groups = np.zeros((rows, -(-columns // GROUP), GROUP))
    groups.reshape(rows, -1)[:, :columns] = x
    largest = np.abs(groups).max(axis=2, keepdims=True)
    codes = np.rint(groups / np.where(largest > 0, largest, 1) * LARGEST)
    # Powers of two are exact in float16 too.
    scales = np.exp2(np.round(np.log2(np.maximum(largest, 2.0**-4) / LARGEST)))
    exact: Array = (codes * scales).reshape(rows, -1)[:, :columns].astype(x.dtype)
    return exact
