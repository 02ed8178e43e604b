"""The cases of every kernel template: a covering set, not all combinations.

Every template meets every weight format, columns that fill chunks of 32, quads of 4 or neither, outputs that end inside a tile, each
optional input on and off, and batches of 1, 3 and 33 rows (one past the tile). Arrays that outputs start from are NaN, so a place that a
kernel forgets shows, and so are the places of pages that no token has written, so a kernel that reads them shows too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from attention_cases import attention_cases
from kernel_harness import Case, Run
from lora_cases import lora_cases
from sampling_rows import rows_of

from nearfar.compiler import quant
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.sampling import BIAS, COUNTS, IN_PROMPT, MASK, Settings
from nearfar.compiler.kernels.adjust_logits import adjust_logits
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.embed import embed
from nearfar.compiler.kernels.linear_subgroup import SubgroupShape, linear_subgroup
from nearfar.compiler.kernels.linear_tile import TileShape, linear_tile
from nearfar.compiler.kernels.linear_vector import VectorShape, linear_vector
from nearfar.compiler.kernels.packed import WeightFormat
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.rms_norm import rms_norm
from nearfar.compiler.kernels.sample import sample
from nearfar.compiler.kernels.take_rows import take_rows
from nearfar.compiler.kernels.top_logprobs import top_logprobs

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
    yield from attention_cases()
    for columns in (37, 64, 72):
        yield replace(take_rows_case(columns), on_dawn=True)
        yield replace(rms_norm_case(columns), on_dawn=True)
    yield from lora_cases()
    yield from conformance_cases()
    for columns in (1, 100, 256, 509):
        yield sample_case(columns, SETTINGS)
        # SwiftShader takes its time over kernels of this size.
        yield replace(top_logprobs_case(columns), on_dawn=columns in (1, 509))
    # Blocks of more columns than a workgroup has threads.
    yield replace(sample_case(66_000, SETTINGS[-4:]), on_dawn=True)
    for columns in (37, 256, 515):
        yield replace(adjust_logits_case(columns), on_dawn=True)


def projection_cases() -> Iterator[Case]:
    """Every projection with the first template of each kind in every format, and with the others in one; rare ones with some templates."""
    for templates in (VECTORS, SUBGROUPS, TILES):
        for number, template in enumerate(templates):
            for turn, (columns, outputs, options) in enumerate(PROJECTIONS):
                for place, quantization in enumerate(FORMATS):
                    in_turn = (number + turn + place) % len(FORMATS) == 0
                    if number == 0 or in_turn:
                        case = projection_case(template, quantization, columns, outputs, options)
                        # SwiftShader takes a second or two to compile a kernel with workgroup memory: each template once.
                        yield replace(case, on_dawn=in_turn and number == turn and case.dtype is None)
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
        sampled = rng.integers(0, rows, 3).astype(np.int32) + (first_row or 0)
        # From the third on, every third token is the one last sampled in a slot.
        token_ids[2::3] = -1 - rng.integers(0, 3, len(token_ids[2::3]))
        before = nothing((size, columns), "float32")
        inputs = {"table": fmt.unpack(planes, columns), "token_ids": token_ids, "sampled": sampled, "into": before.copy()}
        expected = OPS["embed"].run(inputs, {"first_row": first_row or 0})
        assert expected is not None
        bound = {"token_ids": token_ids, "sampled": sampled, "y": before, **{f"table.{plane}": array for plane, array in planes.items()}}
        return Run({"S": size, "N": len(sampled)}, bound, {"y": expected})

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


def rms_norm_case(columns: int) -> Case:
    name = f"rms_norm_{columns}"

    def run(size: int) -> Run:
        rng = random(name)
        x = rng.normal(size=(size, columns)).astype(np.float32)
        # So small that eps counts.
        x[size // 2] *= 1e-3
        weight = rng.normal(1, 0.3, columns).astype(np.float32)
        y = OPS["rms_norm"].run({"x": x, "weight": weight}, {"eps": EPS})
        assert y is not None
        return Run({"R": size}, {"x": x, "weight": weight, "y": nothing((size, columns), "float32")}, {"y": y})

    return Case(name, lambda: rms_norm("rms_norm", columns, EPS), lambda: [run(size) for size in BATCHES])


# --- sampling ----------------------------------------------------------------------------------------------------------------------

# Greedy; all tokens; the first and the last of them; each filter alone, at its narrowest and wider; all three.
SETTINGS = (
    Settings(),
    Settings(temperature=1.0),
    Settings(temperature=0.5, draw=0.0),
    Settings(temperature=2.0, draw=1 - 2.0**-24),
    Settings(temperature=2.0, draw=1.0),
    Settings(temperature=1.0, top_k=1),
    Settings(temperature=1.5, top_k=7),
    Settings(temperature=1.0, top_p=1e-20),
    Settings(temperature=1.0, top_p=0.0),
    Settings(temperature=1.0, top_p=0.4),
    Settings(temperature=1.0, min_p=1.0),
    Settings(temperature=3.0, min_p=0.3),
    Settings(),
    Settings(temperature=1.0, top_p=0.95),
    Settings(temperature=1.0, top_k=40),
    Settings(temperature=1.5, top_k=50, top_p=0.9, min_p=0.02),
)


def sample_run(inputs: dict[str, Array]) -> Run:
    """One run of `sample`, on what the op reads and writes."""
    after = {role: inputs[role].copy() for role in ("sampled", "counts", "logprobs")}
    y = OPS["sample"].run({**inputs, **after}, {})
    assert y is not None
    rows, dims = len(y), {"R": len(y), "A": len(inputs["adjusted"]), "N": len(after["sampled"])}
    return Run(dims, {**inputs, "logprobs": nothing((rows,), "float32"), "y": np.full(rows, -7, np.int32)}, {**after, "y": y})


def adjust_run(inputs: dict[str, Array]) -> Run:
    y = OPS["adjust_logits"].run(inputs, {})
    assert y is not None
    return Run(
        {"R": len(inputs["logits"]), "A": len(y), "N": len(inputs["counts"])}, {**inputs, "y": nothing(y.shape, "float32")}, {"y": y}
    )


def conformance_cases() -> Iterator[Case]:
    """The vectors of all runtimes, filled up with tokens that weigh nothing to one vocabulary, which is one kernel."""
    vectors = json.loads((Path(__file__).parents[2] / "conformance/sampling.json").read_text())["cases"]
    columns = max(len(case["logits"]) for case in vectors)

    def inputs_of(case: dict[str, Any]) -> dict[str, Array]:
        inputs = rows_of({**case, "logits": case["logits"] + [-2e4] * (columns - len(case["logits"]))})
        adjusted = OPS["adjust_logits"].run(inputs, {})
        assert adjusted is not None
        return {**inputs, "adjusted": adjusted}

    def sample_runs() -> list[Run]:
        runs = [sample_run(inputs_of(case)) for case in vectors]
        for case, run in zip(vectors, runs, strict=True):
            assert run.expected["y"].tolist() == case["tokens"], case["name"]
        return runs

    def adjust_runs() -> list[Run]:
        inputs = [inputs_of(case) for case in vectors]
        return [adjust_run(each) for each in inputs if len(each["adjusted"])]

    yield Case("sample_conformance", lambda: sample("sample", columns), sample_runs, on_dawn=True)
    yield Case("adjust_logits_conformance", lambda: adjust_logits("adjust_logits", columns), adjust_runs, on_dawn=True)


def sample_case(columns: int, each_settings: Sequence[Settings]) -> Case:
    """Every row has a slot of its own, in no order, but the first row, which keeps no token. The last row holds what is not a number."""
    name = f"sample_{columns}"

    def run(kind: str) -> Run:
        rng = random(name + kind)
        rows = len(each_settings) + 2
        # Few distinct numbers make ties everywhere.
        integers = rng.integers(-3, 3, (rows, columns)).astype(np.float32)
        logits = integers if kind == "ties" else (rng.normal(size=(rows, columns)) * 3).astype(np.float32)
        logits[-2] = -2e30
        logits[-1, columns // 2] = np.nan
        settings = [each._replace(draw=each.draw or rng.random()) for each in each_settings] + [Settings(temperature=1.0, draw=0.5)] * 2
        slots = np.stack([rng.permutation(rows) - 1, rng.integers(0, 2, rows) * COUNTS], 1)
        slots[slots[:, 0] < 0, 1] = 0
        return sample_run(
            {
                "logits": logits,
                "adjusted": np.roll(logits, 1, axis=1) if kind == "adjusted" else np.zeros((0, columns), np.float32),
                "settings": np.array(settings, np.float32),
                "slots": slots.astype(np.int32),
                "sampled": np.full(rows, -5, np.int32),
                "counts": rng.integers(0, 5, (rows, columns)).astype(np.int32),
                "logprobs": np.zeros(rows, np.float32),
            }
        )

    return Case(name, lambda: sample("sample", columns), lambda: [run(kind) for kind in ("ties", "normal", "adjusted")])


def adjust_logits_case(columns: int) -> Case:
    name = f"adjust_logits_{columns}"

    def run(flags: Sequence[int]) -> Run:
        rng = random(name + str(flags))
        rows = len(flags)
        words = -(-columns // 32)
        counts = rng.integers(0, 3, (rows, columns)) + rng.integers(0, 2, (rows, columns)) * IN_PROMPT
        settings = [
            Settings(repetition_penalty=1 + row / 4, frequency_penalty=row / 3, presence_penalty=1 - row / 2) for row in range(rows)
        ]
        return adjust_run(
            {
                "logits": rng.normal(size=(rows, columns)).astype(np.float32),
                "settings": np.array(settings, np.float32),
                "slots": np.stack([rng.permutation(rows), flags], 1).astype(np.int32),
                "counts": counts.astype(np.int32),
                "bias": rng.normal(size=(rows, columns)).astype(np.float32),
                "mask": rng.integers(-(2**31), 2**31, (rows, words)).astype(np.int32),
            }
        )

    batches = ((COUNTS,), (0, BIAS, COUNTS), (MASK,), (MASK | BIAS, 0, COUNTS | MASK, COUNTS | BIAS | MASK))
    return Case(name, lambda: adjust_logits("adjust_logits", columns), lambda: [run(flags) for flags in batches])


def top_logprobs_case(columns: int) -> Case:
    name = f"top_logprobs_{columns}"

    def run(size: int) -> Run:
        rng = random(name)
        logits = (rng.normal(size=(size, columns)) * 2).astype(np.float32)
        logits[size // 2] = rng.integers(-3, 3, columns)
        width = min(20, columns)
        after = {"ids": np.zeros((size, width), np.int32), "logprobs": np.zeros((size, width), np.float32)}
        OPS["top_logprobs"].run({"logits": logits, **after}, {})
        before = {"ids": np.full((size, width), -1, np.int32), "logprobs": nothing((size, width), "float32")}
        return Run({"R": size, "W": size}, {"logits": logits, **before}, after)

    return Case(name, lambda: top_logprobs("top_logprobs", columns), lambda: [run(size) for size in (1, 3)])
