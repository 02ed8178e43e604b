"""The cases of linear: every template in every weight format, with each optional input on and off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from case_arrays import ALL_FORMATS, BATCHES, EPS, FORMATS, STORED_FORMATS, UNIT_FORMATS, nothing, random
from kernel_harness import Case, Run
from projection_parts import Parts, parts_of
from random_planes import random_planes

from nearfar.compiler import quant
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.half_products import multiplies_halves
from nearfar.compiler.kernels.linear_subgroup import SubgroupShape, linear_subgroup
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector
from nearfar.compiler.kernels.projection import Projection

TILE_BATCHES = (1, 2, 5, 33, 64, 100)
# Templates with their shapes, by a name for tests.
Templates = dict[str, Callable[[str, Projection], Kernel]]
VECTORS: Templates = {
    f"vector_{shape.threads}_{shape.lanes}_{shape.rows}_{shape.unroll}_{shape.x_rows}".removesuffix("_1"): partial(
        linear_vector, shape=shape
    )
    for shape in (
        VectorShape(),
        VectorShape(64, 16, 2, 2),
        VectorShape(128, 64, 4),
        VectorShape(256, 8, 1, 4),
        VectorShape(256, 32, 1),
        VectorShape(64, 8, 8),
        VectorShape(64, 4, 4),
        VectorShape(64, 8, 4, x_rows=2),
    )
}
HALF_VECTORS: Templates = {
    f"vector_{shape.threads}_{shape.lanes}_{shape.rows}_{shape.unroll}_products": partial(linear_vector, shape=shape)
    for shape in (
        VectorShape(64, 16, 4, products="float16"),
        VectorShape(64, 8, 8, products="float16"),
        VectorShape(256, 8, 1, 2, products="float16"),
        VectorShape(128, 32, 2, 2, products="float16"),
        VectorShape(64, 4, 4, products="float16"),
    )
}
# The second has more groups of rows than subgroups of 4 or 8 lanes, so each subgroup computes several. With subgroups
# of 64 lanes, the first does the same.
SUBGROUPS: Templates = {
    f"subgroup_{shape.threads}_{shape.groups}": partial(linear_subgroup, shape=shape)
    for shape in (SubgroupShape(), SubgroupShape(32, 12, 4, 64))
}


def wide(shape: TileShape) -> tuple[int, ...]:
    return (shape.thread_outputs,) if shape.thread_outputs > 4 else ()


TILES: Templates = {
    "_".join(
        map(str, ("tile", shape.rows, shape.outputs, shape.depth, shape.threads, *wide(shape), shape.dtype))
    ): partial(linear_tile, shape=shape)
    for shape in (
        TileShape(),
        TileShape(32, 32, 32, 64),
        TileShape(64, 64, 16, 256),
        TileShape(32, 64, 32, 64),
        TileShape(dtype="float16"),
        TileShape(32, 32, 32, 64, "float16"),
        TileShape(threads=64, thread_outputs=8),
        TileShape(128, 64, 8, 128, "float16", 8),
    )
}
# The first tile is that of the variants.
HALF_TILES: Templates = {
    f"tile_{shape.rows}_{shape.outputs}_{shape.depth}_{shape.threads}_{shape.thread_outputs}_products": partial(
        linear_tile, shape=shape
    )
    for shape in (
        TileShape(64, 64, 32, 128, "float16", products="float16"),
        TileShape(64, 64, 32, 64, "float16", 8, "float16"),
        TileShape(32, 64, 32, 64, "float16", products="float16"),
    )
}
TEMPLATES = {**VECTORS, **HALF_VECTORS, **SUBGROUPS, **TILES, **HALF_TILES}

# (columns, outputs, options of the projection). Each of these runs with every template and format.
PROJECTIONS: tuple[tuple[int, int, dict[str, object]], ...] = (
    (96, 32, {}),
    (72, 37, {"norm_eps": EPS, "bias": True}),
    (37, 61, {"residual": True}),
    (72, 35, {"gated": True, "norm_eps": EPS, "activation": "gelu_tanh"}),
    (37, 16, {"gated": True, "bias": True}),
    (70, 20, {"norm_eps": EPS, "bias": True, "residual": True, "offset": 18, "width": 47}),
)
# Each of these runs with some templates and one format: long rows, for several steps per thread; one row; the dtypes
# and dims of real steps; every activation of a gate.
RARE_PROJECTIONS: tuple[tuple[str, int, int, dict[str, object]], ...] = (
    ("q4f16", 2144, 5, {"norm_eps": EPS}),
    ("f16", 2080, 3, {"gated": True}),
    ("q8f16", 128, 64, {"gated": True, "norm_eps": EPS}),
    ("q4f16", 1, 1, {"bias": True, "norm_eps": EPS}),
    ("q4f16", 72, 45, {"batch": "R", "norm_eps": 0.1}),
    ("q8f16", 40, 12, {"gated": True, "bias": True, "offset": 8, "width": 30, "activation": "gelu"}),
    ("q4f16", 72, 50, {"y_dtype": "float16", "norm_eps": EPS, "bias": True}),
    ("q4f32", 66, 50, {"y_dtype": "float16", "norm_eps": EPS}),
    ("q4f16", 144, 33, {"x_dtype": "float16", "bias": True, "residual": True}),
    ("q8f16", 66, 33, {"x_dtype": "float16", "residual": True}),
    ("f16", 37, 33, {"x_dtype": "float16", "y_dtype": "float16"}),
    ("f32", 40, 9, {"gated": True, "activation": "relu2"}),
    ("q4f16", 72, 45, {"bias": True, "norm_eps": EPS, "activation": "gelu_tanh", "up_width": 63, "up_start": 13}),
    ("f32", 40, 9, {"gated": True, "activation": "none", "x_dtype": "float16"}),
)
LAYER_NORMS: tuple[tuple[str, int, int, dict[str, object]], ...] = (
    ("q4f16", 2144, 5, {"norm_eps": EPS, "centered": True, "norm_bias": True, "bias": True}),
    ("q8f16", 37, 34, {"gated": True, "norm_eps": 0.1, "centered": True, "x_dtype": "float16", "keeps_norm": True}),
    ("f16", 72, 70, {"norm_eps": EPS, "centered": True, "norm_bias": True, "bias": True, "keeps_norm": True}),
)
# These are combined in turn with the templates for a checkpoint's own integers. The last one has the rows of a
# vocabulary.
STORED_PROJECTIONS: tuple[tuple[int, int, dict[str, object]], ...] = (
    (70, 20, {"norm_eps": EPS, "bias": True, "residual": True, "offset": 18, "width": 47}),
    (200, 35, {"gated": True, "norm_eps": EPS, "bias": True, "activation": "gelu_tanh"}),
    (97, 509, {"x_dtype": "float16", "residual": True, "x_step": 0.25, "y_step": 0.5}),
)
# More columns than share a unit. With a bias and an RMSNorm, the last one binds as many buffers as WebGPU allows.
UNIT_PROJECTIONS: tuple[tuple[int, int, dict[str, object]], ...] = (
    (272, 20, {"residual": True}),
    (520, 19, {"gated": True, "norm_eps": EPS}),
    (304, 21, {"norm_eps": EPS, "bias": True}),
)
STORED_TEMPLATES = ("vector_128_32_4_1", "vector_64_16_2_2", "subgroup_128_4", "tile_64_64_16_128_float32",
                    "tile_32_32_32_64_float16", "vector_64_16_4_1_products",
                    "tile_64_64_32_128_4_products")  # fmt: skip


def stored_projection_cases() -> Iterator[Case]:
    """Every format with every template, with the projections in turn. Some also run on Dawn. Without the exhaustive
    ones, every format with a vector, and with subgroups or a tile of either dtype.
    """
    for index, quantization in enumerate(STORED_FORMATS):
        for number, template in enumerate(STORED_TEMPLATES):
            columns, outputs, options = STORED_PROJECTIONS[(index + number) % len(STORED_PROJECTIONS)]
            fmt, left_out = ALL_FORMATS[quantization], set[str]()
            if multiplies(template) or (template.endswith("float16") and not fmt.per_row):
                # Weights that are rounded to float16 give sums that round to the other multiple of a step.
                left_out.add("y_step")
            if fmt.high_bits and fmt.offset:
                # Four planes: one more buffer would be above WebGPU's limit.
                left_out.add("residual")
            options = {option: value for option, value in options.items() if option not in left_out}
            if not computes(template, projection_facts(quantization, columns, outputs, options)):
                continue
            case = projection_case(template, quantization, columns, outputs, options)
            # SwiftShader has no float16.
            on_dawn = quantization == "q2c" and case.dtype is None and "x_dtype" not in options
            turn = number in (index % 2, 2 + index % 3) or (multiplies(template) and fmt.low_bits == 2)
            if quantization == "q2g64":
                turn = turn or template.startswith("tile_64_64_16")
            # A tile of float16 products takes lavapipe 5 to 9 s to compile. Sums of such products have tests of their
            # own, with every tile.
            turn = turn and template not in HALF_TILES
            yield replace(case, on_dawn=on_dawn, exhaustive=not (turn or on_dawn))
    for quantization, (columns, outputs, options) in zip(UNIT_FORMATS, UNIT_PROJECTIONS, strict=True):
        for number, template in enumerate(STORED_TEMPLATES):
            if not computes(template, projection_facts(quantization, columns, outputs, options)):
                continue
            case = projection_case(template, quantization, columns, outputs, options)
            yield replace(case, on_dawn=number == 0, exhaustive=number in (1, 2, 4))


def projection_cases() -> Iterator[Case]:
    """Every projection with the first template of each kind in every format, and with the other templates in one
    format; rare projections with some templates.

    Without the exhaustive ones, every format meets a third of the projections with each kind of template, the other
    templates take turns, and each rare projection has one template.
    """
    for kind, templates in enumerate((VECTORS, SUBGROUPS, TILES, HALF_VECTORS, HALF_TILES)):
        for number, template in enumerate(templates):
            for turn, (columns, outputs, options) in enumerate(PROJECTIONS):
                for index, quantization in enumerate(FORMATS):
                    if not computes(template, projection_facts(quantization, columns, outputs, options)):
                        continue
                    in_turn = (number + turn + index) % len(FORMATS) == 0
                    if number == 0 or in_turn:
                        case = projection_case(template, quantization, columns, outputs, options)
                        # SwiftShader takes a second or two to compile a kernel with workgroup memory: each template
                        # once.
                        on_dawn = in_turn and number == turn and case.dtype is None
                        usual = (kind + turn + index) % 3 == 0 if number == 0 else (number + turn) % 3 == 0
                        yield replace(case, on_dawn=on_dawn, exhaustive=not (usual or on_dawn))
            for turn, (quantization, columns, outputs, options) in enumerate((*RARE_PROJECTIONS, *LAYER_NORMS)):
                if not computes(template, projection_facts(quantization, columns, outputs, options)):
                    continue
                if number == 0 or (number + turn) % 4 == 0:
                    case = projection_case(template, quantization, columns, outputs, options)
                    # These tiles take lavapipe 5 s and more to compile; the others have these parts.
                    slow = template in HALF_TILES or (template in TILES and "keeps_norm" in options)
                    yield replace(case, exhaustive=slow or number > 0 or (kind + turn) % 3 > 0)


def projection_case(template: str, quantization: str, columns: int, outputs: int, options: dict[str, object]) -> Case:
    facts = projection_facts(quantization, columns, outputs, options)
    name = projection_name(template, quantization, columns, outputs, options)
    batches = TILE_BATCHES if template.startswith("tile") else BATCHES
    dtype = "float16 products" if multiplies(template) else "float16" if template.endswith("float16") else None
    runs = lambda: [projection_run(name, facts, options, quantization, size) for size in batches]  # noqa: E731
    return Case(name, lambda: TEMPLATES[template](name, facts), runs, dtype)


def multiplies(template: str) -> bool:
    """Whether a template multiplies in float16."""
    return template.endswith("products")


def computes(template: str, facts: Projection) -> bool:
    """Whether a template computes a projection: those that multiply in float16 need small integers, tiles also 32
    columns with one scale.
    """
    own_norm = bool(facts.before_norm) or facts.weight.group % 32
    return not multiplies(template) or (multiplies_halves(facts.weight) and not (template in HALF_TILES and own_norm))


# The options of a projection that are not those of its parts.
OWN_OPTIONS = ("x_dtype", "y_dtype", "bias", "offset", "width")


def projection_facts(quantization: str, columns: int, outputs: int, options: dict[str, object]) -> Projection:
    own = {name: value for name, value in options.items() if name in (*OWN_OPTIONS, "batch")}
    facts = Projection("S", columns, outputs, ALL_FORMATS[quantization], "float32", "float32")
    return replace(facts, **own, **projection_parts(columns, outputs, options).facts)  # type: ignore[arg-type]


def projection_parts(columns: int, outputs: int, options: dict[str, object]) -> Parts:
    own = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    return parts_of(columns, options.get("width", outputs), **own)  # type: ignore[arg-type]


def projection_name(template: str, quantization: str, columns: int, outputs: int, options: dict[str, object]) -> str:
    """A name for tests, which may also be that of a function."""
    parts = [f"{option}_{value}" for option, value in options.items()]
    return (
        "_".join(["linear", template, quantization, f"{outputs}x{columns}", *parts]).replace(".", "p").replace("-", "m")
    )


def extreme_projection(template: str, quantization: str, rows: Sequence[Sequence[float]], zeros: int = 0) -> Case:
    """A projection of rows that repeat some numbers, with the largest code in each column, but the code of 0 in the
    first ``zeros`` columns of each 32. Its results are sums of products of one sign.
    """
    columns = 192
    facts = projection_facts(quantization, columns, 37, {})
    form, lowest = quant.by_name(quantization), 128 if quantization.startswith("q8") else 8
    weights = np.full((facts.outputs, columns), -lowest, np.float32)
    weights.reshape(facts.outputs, -1, 32)[:, :, :zeros] = 0
    planes = form.pack(weights)
    x = np.array([np.resize(row, columns) for row in rows], np.float32)
    expected = OPS["linear"].run({"x": x, "weight": form.unpack(planes, columns)}, {"dtype": "float32"})
    assert expected is not None
    bound = {"x": x, "y": nothing(expected.shape, "float32")} | {
        f"weight.{name}": each for name, each in planes.items()
    }
    run = Run({"S": len(x)}, bound, {"y": expected})
    name = projection_name(template, quantization, columns, facts.outputs, {})
    return Case(name, lambda: TEMPLATES[template](name, facts), lambda: [run])


def projection_run(
    name: str,
    facts: Projection,
    options: dict[str, object],
    quantization: str,
    size: int,
    changed: Callable[[Array], Array] = lambda x: x,
) -> Run:
    """``changed`` returns the input for a random one."""
    rng = random(name)
    fmt = quant.form_by_name(quantization)
    planes = random_planes(fmt, rng, facts.weight_rows, facts.columns)
    parts = projection_parts(facts.columns, facts.outputs, options)
    arrays: dict[str, Array] = {"x": rng.normal(size=(size, facts.columns)).astype(facts.x_dtype)}
    if options.get("centered"):
        arrays["x"] += 2
    arrays["x"] = changed(arrays["x"])
    for role, (rows, *columns) in parts.shapes.items():
        mean, deviation = (1, 0.3) if role.endswith("_weight") else (0, 1)
        shape = (size if rows == facts.batch else rows, *columns)
        arrays[role] = rng.normal(mean, deviation, shape).astype(np.float32)  # type: ignore[arg-type]
    if facts.bias:
        arrays["bias"] = rng.normal(size=facts.weight_rows if facts.gated else facts.total_width).astype(np.float32)
    before = nothing((size, facts.total_width), facts.y_dtype)
    inputs = {**arrays, "weight": fmt.unpack(planes, facts.columns)}
    attrs: dict[str, object] = {"dtype": "float32", **parts.attrs}
    if facts.width:
        attrs |= {"offset": facts.offset, "columns": facts.width}
        inputs["into"] = before.copy()
    kept = {"load0": nothing((size, facts.columns), "float32")} if options.get("keeps_norm") else {}
    results = {role: array.copy() for role, array in kept.items()}
    expected = OPS["linear"].run({**inputs, **results}, attrs)
    assert expected is not None
    bound = {**arrays, "y": before, **kept, **{f"weight.{plane}": array for plane, array in planes.items()}}
    return Run({str(facts.batch): size}, bound, {"y": expected.astype(facts.y_dtype), **results})
