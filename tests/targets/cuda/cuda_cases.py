"""The cases of CUDA's emulated tests: those of every target, thinned out, and of the templates that only CUDA has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

# Makes numpy know "bfloat16".
import ml_dtypes  # noqa: F401
from attention_cases import Facts, alone_run, attention_case, attention_run, plain_facts
from case_arrays import ALL_FORMATS, EPS
from kernel_cases import all_cases
from kernel_harness import Case
from projection_cases import projection_name, projection_run
from step_cases import step_cases

from nearfar.compiler.kernels.attention_tile import TileOptions
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.cuda.attention_mma import attention_mma
from nearfar.compiler.kernels.cuda.linear_mma import MmaShape, linear_mma
from nearfar.compiler.kernels.cuda.rows16 import rows16
from nearfar.compiler.kernels.decode_range import DecodeOptions
from nearfar.compiler.kernels.heads import Heads, Preparation, Scores
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.kernels.rope_append import rope_append
from nearfar.targets.cuda.variants import variants_of

# Within a tile, one past it, and the ends of tiles.
BATCHES = (1, 16, 33, 64)
SHAPES = {
    "one_warp": (16, 1, 1, 1),
    "many_columns": (32, 2, 2, 1),
    "many_depths": (16, 2, 1, 4),
    "both": (32, 1, 2, 2),
}
# The number of cached tokens of each sequence, and of its new tokens: one, ends of tiles of 64, tiles of several
# sequences, and a sequence of several tiles.
MANY_KEYS = (((0, 1),), ((0, 64),), ((63, 5), (0, 3), (64, 70), (1, 1)), ((20, 131),))
# Windows less than a tile, of a page, and of two tiles.
MMA_ATTENTION = (
    Facts(Heads(4, 2, 64, 16, "bfloat16"), Preparation(160, 32, EPS), Scores(0.1, window=20, softcap=4.0)),
    Facts(Heads(7, 1, 32, 16, "float16", "q8"), Preparation(0, 0, None), Scores(0.2, window=16)),
    Facts(Heads(2, 2, 96, 16, "float16"), Preparation(160, 96, None), Scores(0.1, window=100)),
)
MMA_ALONE = (
    Facts(Heads(4, 2, 64, 16, "float16"), Preparation(0, 0, None), Scores(0.125, causal=False, sinks=True)),
    Facts(
        Heads(2, 1, 32, 16, "bfloat16"),
        Preparation(0, 0, None),
        Scores(0.2, window=40, softcap=3.0, causal=False, sinks=True),
    ),
)
# (shape, quantization, dtype, columns, outputs, what the projection has).
MMA: tuple[tuple[str, str, str, int, int, dict[str, object]], ...] = (
    ("one_warp", "q4f16", "float16", 128, 8, {}),
    ("one_warp", "q4f16", "float16", 1, 1, {"bias": True}),
    (
        "many_columns",
        "q4f16",
        "float16",
        300,
        70,
        {"norm_eps": EPS, "bias": True, "residual": True, "offset": 18, "width": 97},
    ),
    ("many_columns", "q4f16", "bfloat16", 256, 45, {"gated": True, "norm_eps": EPS}),
    ("many_columns", "q8f16", "float16", 160, 37, {"gated": True, "bias": True, "activation": "gelu"}),
    ("many_depths", "q8f16", "bfloat16", 700, 19, {"norm_eps": EPS, "x_dtype": "bfloat16"}),
    ("many_depths", "f16", "float16", 1030, 16, {"x_dtype": "float16", "residual": True}),
    ("many_depths", "q4f16", "float16", 1100, 33, {"gated": True, "norm_eps": EPS}),
    ("both", "f16", "bfloat16", 384, 40, {"norm_eps": EPS, "y_dtype": "bfloat16"}),
    ("both", "q4f16", "bfloat16", 130, 9, {"batch": "R", "y_dtype": "bfloat16"}),
    ("both", "q4f16", "float16", 520, 48, {"norm_eps": EPS, "y_dtype": "float16"}),
    ("both", "q2c", "float16", 300, 45, {"norm_eps": EPS, "bias": True}),
    ("many_columns", "q2c", "bfloat16", 37, 509, {}),
    ("many_depths", "q4c", "float16", 130, 33, {"gated": True, "norm_eps": EPS}),
    ("many_columns", "q8c", "bfloat16", 97, 19, {"residual": True}),
    ("one_warp", "q4f16", "float16", 96, 21, {"activation": "gelu", "up_width": 40, "up_start": 16}),
)


def cuda_cases() -> Iterator[Case]:
    for case in step_cases(variants_of, "q4f16", ("bfloat16", "float32")):
        # relu2 squares the rounding of 16-bit operands, which then exceeds the bound of one product.
        if case.dtype is None or "relu2" not in case.name:
            yield case
    # Here it is about CUDA's code, not about templates' logic, which WebGPU's tests run through in full.
    yield from list(all_cases())[::16]
    yield from (mma_case(*row) for row in MMA)
    yield attention_mma_case(plain_facts(4, 2, 64, "bfloat16", norm=True))
    yield attention_mma_case(plain_facts(1, 1, 32, "float16", norm=False, kv="q8"))
    for facts in MMA_ATTENTION:
        yield attention_mma_case(facts)
    for facts in MMA_ALONE:
        yield mma_alone_case(facts)
    facts = plain_facts(4, 2, 64, "bfloat16", norm=True)
    yield attention_case("tile", facts, tile=TileOptions(16))
    yield attention_case("split", facts, decode=DecodeOptions(2, 32, 32, split=64))
    facts = replace(facts, scores=Scores(0.1, window=70, softcap=4.0))
    yield attention_case("split", facts, decode=DecodeOptions(2, 32, 32, split=32))


def attention_mma_case(facts: Facts) -> Case:
    heads, preparation = facts.heads, facts.preparation
    plain = attention_case("mma", facts)
    runs = lambda: [attention_run(facts, batch) for batch in MANY_KEYS]  # noqa: E731

    def build() -> list[Kernel]:
        append = rope_append("append", heads=heads, preparation=preparation, q_in_scratch=True)
        return [append, attention_mma("attention", heads=heads, scores=facts.scores, q_in_scratch=True)]

    return replace(plain, build=build, runs=runs, dtype=heads.activation)


def mma_alone_case(facts: Facts) -> Case:
    return Case(
        f"attention_mma_alone_{facts.name}",
        lambda: attention_mma("attention", heads=facts.heads, scores=facts.scores, q_in_scratch=False),
        lambda: [alone_run(facts, batch) for batch in MANY_KEYS],
        facts.heads.activation,
    )


def mma_case(shape: str, quantization: str, dtype: str, columns: int, outputs: int, options: dict[str, object]) -> Case:
    defaults = Projection("S", columns, outputs, ALL_FORMATS[quantization], "float32", "float32")
    facts = replace(defaults, **options)  # type: ignore[arg-type]
    mma = MmaShape(*SHAPES[shape], dtype)
    name = projection_name(f"mma_{shape}_{dtype}", quantization, columns, outputs, options)

    def build() -> list[Kernel]:
        before = rows16(f"{name}_rows16", facts.batch, columns, facts.x_dtype, facts.norm_eps, dtype)
        return [before, linear_mma(name, facts, mma)]

    return Case(name, build, lambda: [projection_run(name, facts, quantization, size) for size in BATCHES], dtype)
