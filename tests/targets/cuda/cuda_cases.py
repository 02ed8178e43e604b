"""The cases of CUDA's emulated tests: a selection of the cases of every target, and those of templates that only CUDA
has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

# Makes numpy know "bfloat16".
import ml_dtypes  # noqa: F401
import numpy as np
from attention_cases import DECODE_BATCHES, attention_case
from attention_runs import Facts, alone_run, attention_run, plain_facts, preparation_attrs, score_attrs
from case_arrays import EPS
from cuda_projections import cuda_projections
from kernel_cases import portable_cases
from kernel_harness import Case, Run
from sampling_cases import adversarial_case
from step_cases import step_cases

from nearfar.compiler.ir.expr import holds
from nearfar.compiler.ir.heads import Heads, Preparation, Scores
from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.ops.kv_pages import page_rows
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.attention_tile import TileOptions
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.cuda.attention_decode_mma import attention_decode_mma
from nearfar.compiler.kernels.cuda.attention_mma import MmaTile, attention_mma, tile_of
from nearfar.compiler.kernels.cuda.decode_tile import decode_tile
from nearfar.compiler.kernels.cuda.linear_few import linear_few
from nearfar.compiler.kernels.cuda.linear_mma import linear_mma
from nearfar.compiler.kernels.decode_range import DecodeOptions
from nearfar.compiler.kernels.prepare_heads import rope_append
from nearfar.targets.context import Context
from nearfar.targets.cuda.arch import max_dynamic_bytes
from nearfar.targets.cuda.variants import attention_numbers, variants_of
from nearfar.targets.gpu_attention import stored_variants
from nearfar.targets.variant import KernelCall, Variant, kernel

# For each sequence, the number of cached tokens and of new tokens: one, ends of tiles of 64, tiles of several
# sequences, and a sequence of several tiles.
MANY_KEYS = (((0, 1),), ((0, 64),), ((63, 5), (0, 3), (64, 70), (1, 1)), ((20, 131),))
# Decoding, drafts and prompts in one batch, around the longest draft; contexts of one range of 256 keys and of two.
MIXED = (((255, 1), (0, 9), (300, 8), (7, 1), (250, 70), (511, 1)), ((130, 12), (256, 1)))
# Windows smaller than a tile, of one page, and of two tiles.
MMA_ATTENTION = (
    Facts(
        Heads(4, 2, 64, 16, "bfloat16"),
        Preparation(160, 32, EPS, norm_after=True),
        Scores(0.1, window=20, softcap=4.0),
    ),
    Facts(Heads(7, 1, 32, 16, "float16", "q4"), Preparation(0, 0, None), Scores(0.2, window=16)),
    Facts(Heads(2, 2, 96, 16, "float16"), Preparation(160, 96, None), Scores(0.1, window=100)),
)
# Heads that need more shared memory than a kernel can declare, one of them with queries in shared memory; and the rows
# of a tile.
LARGE_MMA = (
    (Facts(Heads(5, 1, 128, 16, "bfloat16"), Preparation(160, 64, None), Scores(0.1)), 128),
    (Facts(Heads(2, 1, 256, 32, "float16"), Preparation(160, 64, EPS), Scores(0.1, window=50, softcap=5.0)), 64),
)
MMA_ALONE = (
    Facts(Heads(4, 2, 64, 16, "float16"), Preparation(0, 0, None), Scores(0.125, causal=False, sinks=True)),
    Facts(
        Heads(2, 1, 32, 16, "bfloat16"),
        Preparation(0, 0, None),
        Scores(0.2, window=40, softcap=3.0, causal=False, sinks=True),
    ),
    Facts(Heads(4, 2, 32, 16, "bfloat16"), Preparation(0, 0, None), Scores(0.2, window=20, reach=True)),
)

# One range for each sequence, and ranges of one tile; heads of the tensor cores' rows, parts of a group; windows within
# a tile and across ranges.
DECODE_MMA = (
    (plain_facts(4, 2, 64, "bfloat16", norm=True), 132, 4),
    (plain_facts(16, 1, 128, "float16", norm=False), 1, 4),
    (plain_facts(3, 3, 256, "float16", norm=True), 40, 2),
    (
        Facts(
            Heads(5, 1, 96, 16, "bfloat16"),
            Preparation(160, 32, EPS, norm_after=True),
            Scores(0.1, window=20, softcap=4.0),
        ),
        132,
        2,
    ),
    (
        Facts(
            Heads(4, 2, 32, 32, "float16"),
            Preparation(160, 32, None, position_scale=(0.5, 40)),
            Scores(0.2, window=70),
        ),
        132,
        2,
    ),
    (plain_facts(4, 2, 64, "bfloat16", norm=True, kv="q8"), 132, 4),
    (plain_facts(16, 1, 128, "float16", norm=False, kv="q8"), 1, 4),
    (plain_facts(3, 3, 256, "float16", norm=True, kv="q8"), 40, 2),
    (
        Facts(
            Heads(5, 1, 96, 16, "bfloat16", "q8"),
            Preparation(160, 32, EPS, norm_after=True, norms_values=True),
            Scores(0.1, window=20, softcap=4.0),
        ),
        132,
        2,
    ),
    (Facts(Heads(8, 2, 32, 32, "float16", "q8"), Preparation(160, 32, None), Scores(0.2, window=70)), 132, 2),
    (plain_facts(4, 2, 64, "bfloat16", norm=True, kv="fp8"), 132, 4),
    (Facts(Heads(5, 1, 96, 16, "float16", "fp8"), Preparation(160, 32, EPS), Scores(0.1, window=20)), 132, 2),
)


def some_variants(step: Step, context: Context) -> list[Variant]:
    """The variants of a step, with only the smallest tiles of the tensor cores; `cuda_projections` has the others."""

    def is_small(call: KernelCall) -> bool:
        if call.template is linear_mma:
            return bool(call.facts["shape"].rows == 16)
        return call.template is not linear_few or call.facts["shape"].x_rows < 4

    return [row for row in variants_of(step, context) if all(map(is_small, row.kernels))]


def cuda_cases() -> Iterator[Case]:
    for turn, case in enumerate(step_cases(some_variants, "q4f16", ("bfloat16", "float32"))):
        # relu2 squares the rounding of 16-bit operands, which then exceeds the bound of one product.
        if case.dtype is None or "relu2" not in case.name:
            # WebGPU's tests run the templates with float32 and with every part that a projection computes or stores.
            again = case.name.startswith("linear_") or "_float32_" in case.name
            yield replace(case, exhaustive=case.exhaustive or (again and turn % 3 > 0))
    # These cases test CUDA's code. WebGPU's tests cover the logic of the templates completely.
    yield from list(portable_cases())[::16]
    yield adversarial_case(1100, 256)
    yield from cuda_projections()
    yield attention_mma_case(plain_facts(4, 2, 64, "bfloat16", norm=True))
    yield attention_mma_case(plain_facts(1, 1, 32, "float16", norm=False, kv="q8"))
    for facts in MMA_ATTENTION:
        yield attention_mma_case(facts)
    for facts, rows in LARGE_MMA:
        yield attention_mma_case(facts, rows)
    for facts in MMA_ALONE:
        yield mma_alone_case(facts)
    for facts, workgroups, warps in DECODE_MMA:
        yield replace(decode_mma_case(facts, workgroups, warps), exhaustive=facts.heads.head_dim == 256)
    yield uneven_case(plain_facts(4, 2, 64, "float16", norm=True, kv="q8"), 1)
    yield uneven_case(plain_facts(4, 2, 64, "float16", norm=True, kv="fp8"), 1)
    yield attention_mma_case(plain_facts(2, 2, 32, "bfloat16", norm=True, kv="fp8"))
    yield mixed_case(
        Facts(Heads(6, 2, 32, 16, "float16", "fp8"), Preparation(600, 32, None), Scores(0.1, window=290, softcap=5.0))
    )
    yield attention_case(
        "split", plain_facts(4, 2, 64, "float16", norm=True, kv="fp8"), decode=DecodeOptions(2, 32, 32, 64)
    )
    yield mixed_case(plain_facts(4, 2, 64, "bfloat16", norm=True, positions=600))
    yield mixed_case(
        Facts(Heads(6, 2, 32, 16, "float16", "q4"), Preparation(600, 32, None), Scores(0.1, window=290, softcap=5.0))
    )
    yield mixed_case(
        Facts(Heads(2, 2, 32, 16, "float32"), Preparation(600, 32, None), Scores(0.2, window=40, causal=False))
    )
    # Vectors of four elements consist of two pairs, whose partners are not in one vector.
    yield mixed_case(Facts(Heads(2, 2, 20, 16, "float32"), Preparation(600, 20, None), Scores(0.2)))
    facts = plain_facts(4, 2, 64, "bfloat16", norm=True)
    yield attention_case("tile", facts, tile=TileOptions(16))
    yield attention_case("split", facts, decode=DecodeOptions(2, 32, 32, split=64))
    wide = replace(facts.preparation, norm_wide=True)
    facts = replace(facts, preparation=wide, scores=Scores(0.1, window=70, softcap=4.0))
    yield attention_case("split", facts, decode=DecodeOptions(2, 32, 32, split=32))


def tensor_tile(heads: Heads, rows: int) -> MmaTile:
    """A tile that every GPU can run."""
    tile = tile_of(heads, rows, max_dynamic_bytes("sm_86"))
    assert tile is not None
    return tile


def attention_mma_case(facts: Facts, rows: int = 64) -> Case:
    heads, preparation = facts.heads, facts.preparation
    plain = attention_case("mma", facts)
    runs = lambda: [attention_run(facts, batch) for batch in MANY_KEYS]  # noqa: E731

    def build() -> list[Kernel]:
        append = rope_append("append", heads=heads, preparation=preparation)
        return [
            append,
            attention_mma(
                "attention",
                heads=heads,
                scores=facts.scores,
                tile=tensor_tile(heads, rows),
                few=0,
                q_in_scratch=True,
            ),
        ]

    return replace(plain, build=build, runs=runs, dtype=heads.activation)


def mixed_case(facts: Facts) -> Case:
    """The variant that CUDA chooses for batches of all kinds of sequences."""
    append = kernel(rope_append, heads=facts.heads, preparation=facts.preparation)
    rows = stored_variants(facts.heads, facts.scores, attention_numbers("sm_86"), (append,))

    def build() -> list[Kernel]:
        dims = ({"S": sum(new for _, new in batch), "B": len(batch), "T": 600} for batch in MIXED)
        one, other = (next(row for row in rows if holds(row.when, each)) for each in dims)
        assert one == other
        assert [call.template.__name__ for call in one.kernels[2:]] == ["attention_few_rows", "attention_merge"]
        return [call.build() for call in one.kernels]

    runs = lambda: [attention_run(facts, batch) for batch in MIXED]  # noqa: E731
    dtype = facts.heads.activation if facts.heads.activation != "float32" else None
    return replace(attention_case("mixed", facts), build=build, runs=runs, dtype=dtype)


def decode_mma_case(facts: Facts, workgroups: int, warps: int) -> Case:
    tile = decode_tile(facts.heads, workgroups, max_dynamic_bytes("sm_86"))
    assert tile is not None
    sized = replace(tile, warps=warps)

    def build() -> Kernel:
        return attention_decode_mma(
            "attention", heads=facts.heads, preparation=facts.preparation, scores=facts.scores, tile=sized
        )

    runs = lambda: [attention_run(facts, batch) for batch in DECODE_BATCHES]  # noqa: E731
    return replace(attention_case("decode_mma", facts), build=build, runs=runs, dtype=facts.heads.activation)


def uneven_case(facts: Facts, workgroups: int) -> Case:
    """Values of very different sizes, some of them zeros, on pages of integers."""

    def run(sequences: tuple[tuple[int, int], ...]) -> Run:
        even = attention_run(facts, sequences)
        rng, kv = np.random.default_rng(len(sequences)), even.arrays["kv"].copy()
        scales = page_rows(kv)[1].view(np.float32)
        scales[:, 1] *= (10 ** rng.uniform(-7, 4, scales[:, 1].shape)).astype(np.float32)
        scales[:, 1] *= rng.random(scales[:, 1].shape) > 0.2
        scales[:, 0] *= rng.uniform(0.1, 3, scales[:, 0].shape).astype(np.float32)
        after = kv.copy()
        attrs = {**preparation_attrs(facts.preparation), "kv": facts.heads.kv, **score_attrs(facts.scores)}
        y = OPS["attention"].run({**even.arrays, "kv": after}, attrs)
        assert y is not None
        expected = {"y": y.astype(facts.heads.activation), "kv": after}
        return Run(even.dims, {**even.arrays, "kv": kv}, expected, facts.heads.kv)

    case = decode_mma_case(facts, workgroups, 4)
    return replace(case, name=f"uneven_{case.name}", runs=lambda: [run(each) for each in DECODE_BATCHES])


def mma_alone_case(facts: Facts) -> Case:
    return Case(
        f"attention_mma_alone_{facts.name}",
        lambda: attention_mma(
            "attention",
            heads=facts.heads,
            scores=facts.scores,
            tile=tensor_tile(facts.heads, 64),
            few=0,
            q_in_scratch=False,
        ),
        lambda: [alone_run(facts, batch) for batch in MANY_KEYS],
        facts.heads.activation,
    )
