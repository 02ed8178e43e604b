"""The cases of every kernel template: a covering set, not all combinations.

Every template meets every weight format, columns that fill chunks of 32, quads of 4 or neither, outputs that end inside a tile, each
optional input on and off, and batches of 1, 3 and 33 rows (one past the tile). Arrays that outputs start from are NaN, so a place that a
kernel forgets shows, and so are the places of pages that no token has written, so a kernel that reads them shows too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from zlib import crc32

import numpy as np
from kernel_harness import Case, Run

from nearfar.compiler import quant
from nearfar.compiler.batch import Chunk, make_batch
from nearfar.compiler.kernels.argmax import argmax
from nearfar.compiler.kernels.attention import attention
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.embed import embed
from nearfar.compiler.kernels.linear_subgroup import SubgroupShape, linear_subgroup
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector
from nearfar.compiler.kernels.packed import WeightFormat
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.rope_append import rope_append
from nearfar.compiler.kernels.take_rows import take_rows
from nearfar.compiler.ops import OPS, Array
from nearfar.compiler.rope import rope_table

EPS = 1e-6
BATCHES = (1, 3, 33)
TILE_BATCHES = (1, 2, 5, 33, 64, 100)
# Weight formats by the quantization that packs them.
FORMATS = {
    "q4f16": WeightFormat("q4", "float16"),
    "q4f32": WeightFormat("q4", "float32"),
    "q8f16": WeightFormat("q8", "float16"),
    "f16": WeightFormat("f16", ""),
    "f32": WeightFormat("f32", ""),
}
# Kernels of projections by the name of their parameters, with the batches that end in each one's tiles and beyond them.
VECTORS: dict[str, Callable[[Projection], Kernel]] = {
    shape.name: partial(linear_vector, shape=shape)
    for shape in (
        VectorShape(),
        VectorShape(64, 16, 2, 2),
        VectorShape(128, 64, 4),
        VectorShape(256, 8, 1, 4),
        VectorShape(64, 8, 8),
        VectorShape(64, 4, 4),
    )
}
# The second has more groups of rows than subgroups of 4 or 8, so that they take turns, as subgroups of 64 do with the first.
SUBGROUPS: dict[str, Callable[[Projection], Kernel]] = {
    shape.name: partial(linear_subgroup, shape=shape) for shape in (SubgroupShape(), SubgroupShape(32, 12, 4, 64))
}
TILES: dict[str, Callable[[Projection], Kernel]] = {
    shape.name: partial(linear_tile, shape=shape)
    for shape in (
        TileShape(),
        TileShape(32, 32, 32, 64),
        TileShape(64, 64, 16, 256),
        TileShape(32, 64, 32, 64),
        TileShape(dtype="float16"),
        TileShape(32, 32, 32, 64, "float16"),
    )
}
TEMPLATES = {**VECTORS, **SUBGROUPS, **TILES}

# (columns, outputs, what the projection has). Each of these with every template and format.
PROJECTIONS: tuple[tuple[int, int, dict[str, object]], ...] = (
    (96, 32, {}),
    (72, 37, {"norm_eps": EPS, "bias": True}),
    (37, 61, {"residual": True}),
    (72, 35, {"gated": True, "norm_eps": EPS}),
    (37, 16, {"gated": True, "bias": True}),
    (70, 20, {"norm_eps": EPS, "bias": True, "residual": True, "offset": 18, "width": 47}),
)
# Each of these with both templates and one format: long rows, for more than one step a thread; one row; the dtypes and dims of real steps.
RARE_PROJECTIONS: tuple[tuple[str, int, int, dict[str, object]], ...] = (
    ("q4f16", 2144, 5, {"norm_eps": EPS}),
    ("f16", 2080, 3, {"gated": True}),
    ("q8f16", 128, 64, {"gated": True, "norm_eps": EPS}),
    ("q4f16", 1, 1, {"bias": True, "norm_eps": EPS}),
    ("q4f16", 72, 45, {"batch": "R", "norm_eps": EPS}),
    ("q8f16", 40, 12, {"gated": True, "bias": True, "offset": 8, "width": 30}),
    ("q4f16", 72, 50, {"y_dtype": "float16", "norm_eps": EPS, "bias": True}),
    ("q4f32", 66, 50, {"y_dtype": "float16", "norm_eps": EPS}),
    ("q4f16", 144, 33, {"x_dtype": "float16", "bias": True, "residual": True}),
    ("q8f16", 66, 33, {"x_dtype": "float16", "residual": True}),
    ("f16", 37, 33, {"x_dtype": "float16", "y_dtype": "float16"}),
)


def all_cases() -> Iterator[Case]:
    yield from projection_cases()
    for quantization in FORMATS:
        for columns in (96, 72, 37):
            yield embed_case(quantization, 51, columns)
        yield replace(embed_case(quantization, 17, 72, first_row=20), on_dawn=True)
        yield embed_case(quantization, 18, 37, first_row=0)
    yield embed_case("q4f16", 9, 1030)
    for activation in ("float32", "float16"):
        for heads, kv_heads, head_dim, norm in (
            (6, 3, 24, True),
            (2, 1, 22, False),
            (4, 2, 64, False),
            (3, 1, 128, True),
            (1, 1, 256, True),
        ):
            case = rope_append_case(heads, kv_heads, head_dim, activation, norm)
            yield replace(case, on_dawn=activation == "float32")
        for heads, kv_heads, head_dim in ((6, 3, 24), (2, 1, 22), (4, 2, 64), (3, 1, 128), (2, 2, 256)):
            case = attention_case(heads, kv_heads, head_dim, 16, activation)
            yield replace(case, on_dawn=activation == "float32")
    # More vectors than threads, in twos and in fours, and another page size.
    yield attention_case(1, 1, 134, 8, "float32")
    yield attention_case(2, 1, 272, 32, "float32")
    for columns in (37, 64, 72):
        yield replace(take_rows_case(columns), on_dawn=True)
    for columns in (1, 100, 256, 509):
        yield replace(argmax_case(columns), on_dawn=True)


def projection_cases() -> Iterator[Case]:
    """Every projection with the first template of each kind in every format, and with the others in one; rare ones with some templates."""
    for templates in (VECTORS, SUBGROUPS, TILES):
        for number, template in enumerate(templates):
            for turn, (columns, outputs, options) in enumerate(PROJECTIONS):
                for place, quantization in enumerate(FORMATS):
                    in_turn = (number + turn + place) % len(FORMATS) == 0
                    if number == 0 or in_turn:
                        case = projection_case(template, quantization, columns, outputs, options)
                        # SwiftShader takes a second or two to compile a kernel with workgroup memory.
                        yield replace(case, on_dawn=in_turn and number in (0, turn) and case.dtype is None)
            for turn, (quantization, columns, outputs, options) in enumerate(RARE_PROJECTIONS):
                if number == 0 or (number + turn) % 4 == 0:
                    yield projection_case(template, quantization, columns, outputs, options)


def random(name: str) -> np.random.Generator:
    return np.random.default_rng(crc32(name.encode()))


def nothing(shape: tuple[int, ...], dtype: str) -> Array:
    return np.full(shape, np.nan, dtype)


# --- projections -------------------------------------------------------------------------------------------------------------------


def projection_case(template: str, quantization: str, columns: int, outputs: int, options: dict[str, object]) -> Case:
    defaults = Projection("S", columns, outputs, FORMATS[quantization], "float32", "float32")
    facts = replace(defaults, **options)  # type: ignore[arg-type]
    # A projection's own name leaves out what one bundle has one of.
    name = f"{facts.name}_{template}_{quantization}"
    batches = TILE_BATCHES if template in TILES else BATCHES
    dtype = "float16" if template.endswith("f16") else None
    runs = lambda: [projection_run(name, facts, quantization, size) for size in batches]  # noqa: E731
    return Case(name, lambda: TEMPLATES[template](facts), runs, dtype)


def projection_run(name: str, facts: Projection, quantization: str, size: int) -> Run:
    rng = random(name)
    fmt = quant.by_name(quantization)
    planes = fmt.pack((rng.normal(size=(facts.weight_rows, facts.columns)) / np.sqrt(facts.columns)).astype(np.float32))
    arrays: dict[str, Array] = {"x": rng.normal(size=(size, facts.columns)).astype(facts.x_dtype)}
    attrs: dict[str, object] = {"dtype": "float32"}
    if facts.norm_eps is not None:
        arrays["norm"] = rng.normal(1, 0.3, facts.columns).astype(np.float32)
        attrs["eps"] = facts.norm_eps
    if facts.bias:
        arrays["bias"] = rng.normal(size=facts.weight_rows if facts.gated else facts.total_width).astype(np.float32)
    if facts.residual:
        arrays["residual"] = rng.normal(size=(size, facts.total_width)).astype(np.float32)
    before = nothing((size, facts.total_width), facts.y_dtype)
    inputs = {**arrays, "weight": fmt.unpack(planes, facts.columns)}
    if facts.width:
        attrs |= {"offset": facts.offset, "columns": facts.width}
        inputs["into"] = before.copy()
    expected = OPS["gated_linear" if facts.gated else "linear"].run(inputs, attrs)
    assert expected is not None
    bound = {**arrays, "y": before, **{f"weight.{plane}": array for plane, array in planes.items()}}
    return Run({facts.batch: size}, bound, {"y": expected.astype(facts.y_dtype)})


# --- embedding and rows ------------------------------------------------------------------------------------------------------------


def embed_case(quantization: str, rows: int, columns: int, first_row: int | None = None) -> Case:
    split = first_row is not None
    name = f"embed_{quantization}_{rows}x{columns}" + (f"_from{first_row}" if split else "")

    def run(size: int) -> Run:
        rng = random(name)
        fmt = quant.by_name(quantization)
        planes = fmt.pack(rng.normal(size=(rows, columns)).astype(np.float32))
        # Of a part, half of the ids are in other parts, before it and behind.
        token_ids = rng.integers(0, 2 * rows + (first_row or 0) if split else rows, size).astype(np.int32)
        token_ids[0] = rows - 1 + (first_row or 0)
        before = nothing((size, columns), "float32")
        inputs = {"table": fmt.unpack(planes, columns), "token_ids": token_ids, "into": before.copy()}
        expected = OPS["embed"].run(inputs, {"first_row": first_row or 0})
        assert expected is not None
        bound = {"token_ids": token_ids, "y": before, **{f"table.{plane}": array for plane, array in planes.items()}}
        return Run({"S": size}, bound, {"y": expected})

    return Case(
        name,
        lambda: embed(name, rows, columns, FORMATS[quantization], first_row or 0, split=split),
        lambda: [run(size) for size in BATCHES],
    )


def take_rows_case(columns: int) -> Case:
    name = f"take_rows_{columns}"

    def run(size: int) -> Run:
        rng = random(name)
        x = rng.normal(size=(size + 4, columns)).astype(np.float32)
        rows = rng.integers(0, size + 4, size).astype(np.int32)
        return Run({"S": size + 4, "R": size}, {"x": x, "rows": rows, "y": nothing((size, columns), "float32")}, {"y": x[rows]})

    return Case(name, lambda: take_rows("take_rows", columns), lambda: [run(size) for size in BATCHES])


def argmax_case(columns: int) -> Case:
    name = f"argmax_{columns}"

    def run(size: int) -> Run:
        rng = random(name)
        # Few distinct numbers make ties everywhere; the last rows are equal throughout, or infinite.
        x = rng.integers(-3, 3, (size + 4, columns)).astype(np.float32)
        x[size] = -2e30
        x[size + 1] = -np.inf
        x[size + 2] = np.finfo(np.float32).min
        x[size + 3, -1] = np.inf
        return Run({"R": size + 4}, {"x": x, "y": np.full(size + 4, -1, np.int32)}, {"y": x.argmax(-1).astype(np.int32)})

    return Case(name, lambda: argmax("argmax", columns), lambda: [run(size) for size in BATCHES])


# --- attention ---------------------------------------------------------------------------------------------------------------------


def rope_append_case(heads: int, kv_heads: int, head_dim: int, activation: str, norm: bool) -> Case:
    name = f"rope_append_{heads}_{kv_heads}_{head_dim}_{activation}" + ("_norm" if norm else "")
    page_size, positions, pages = 16, 50, 4

    def run(size: int) -> Run:
        rng = random(name)
        arrays: dict[str, Array] = {
            "qkv": rng.normal(size=(size, (heads + 2 * kv_heads) * head_dim)).astype(activation),
            "positions": rng.integers(0, positions, size).astype(np.int32),
            "slots": rng.permutation(pages * page_size)[:size].astype(np.int32),
            "table": rope_table([0.5**pair for pair in range(head_dim // 2)], positions),
        }
        if norm:
            arrays |= {role: rng.normal(1, 0.3, head_dim).astype(np.float32) for role in ("q_norm", "k_norm")}
        kv = nothing((pages, 2, kv_heads, page_size, head_dim), activation)
        after = kv.copy()
        q = OPS["rope_append"].run({**arrays, "kv": after}, {"eps": EPS})
        assert q is not None
        before = {"kv": kv, "q": nothing((size, heads * head_dim), activation)}
        return Run({"S": size, "P": pages}, {**arrays, **before}, {"kv": after, "q": q.astype(activation)})

    eps = EPS if norm else None
    return Case(
        name,
        lambda: rope_append(name, heads, kv_heads, head_dim, page_size, positions, activation, eps),
        lambda: [run(size) for size in BATCHES],
    )


# What sequences have cached, and their new tokens: the start and the end of a page, a page and one more, the first and the second tile
# of 64 keys; alone, three decoding, prefill and decode mixed with an empty sequence between, and 33 rows.
ATTENTION_BATCHES = (
    ((0, 1),),
    ((64, 1), (15, 1), (63, 1)),
    ((129, 1), (0, 17), (60, 9)),
    ((31, 33),),
    ((3, 2), (20, 0), (128, 1)),
)


def attention_case(heads: int, kv_heads: int, head_dim: int, page_size: int, activation: str) -> Case:
    name = f"attention_{heads}_{kv_heads}_{head_dim}_{page_size}_{activation}"

    def run(sequences: Sequence[tuple[int, int]]) -> Run:
        rng = random(name + str(sequences))
        counts = [-(-(start + new) // page_size) for start, new in sequences]
        pages = rng.permutation(sum(counts) + 2)
        kv = nothing((len(pages), 2, kv_heads, page_size, head_dim), activation)
        chunks = []
        for index, (start, new) in enumerate(sequences):
            own = pages[sum(counts[:index]) : sum(counts[: index + 1])]
            for position in range(start + new):
                kv[own[position // page_size], :, :, position % page_size] = rng.normal(size=(2, kv_heads, head_dim))
            chunks.append(Chunk([0] * new, start, [int(page) for page in own]))
        batch = make_batch(chunks, page_size)
        # Scores of some spread, so that the largest one changes from tile to tile.
        q = (rng.normal(size=(len(batch.token_ids), heads * head_dim)) * 3).astype(activation)
        names = ("positions", "seq_starts", "page_indptr", "page_ids")
        inputs = {"q": q, "kv": kv, **{each: getattr(batch, each) for each in names}}
        expected = OPS["attention"].run(inputs, {})
        assert expected is not None
        return Run(batch.dims(len(pages)), {**inputs, "y": nothing(q.shape, activation)}, {"y": expected.astype(activation)})

    return Case(
        name,
        lambda: attention(name, heads, kv_heads, head_dim, page_size, activation),
        lambda: [run(sequences) for sequences in ATTENTION_BATCHES],
    )
