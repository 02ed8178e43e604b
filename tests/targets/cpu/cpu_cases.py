"""The cases of every CPU kernel template: the runs of WebGPU's, on fewer kernels, for vectors leave fewer edges than workgroups do.

Every template meets every weight format, columns that fill groups of 32, vectors or neither, and each optional input on and off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import attention_cases as attention
import kernel_cases as shared
from cpu_pages import from_cpu, to_cpu
from kernel_harness import Run

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.cpu.adjust_logits import adjust_logits
from nearfar.compiler.kernels.cpu.attention import attention_split, attention_tile, rope_attention
from nearfar.compiler.kernels.cpu.builder import Isa
from nearfar.compiler.kernels.cpu.embed import embed
from nearfar.compiler.kernels.cpu.integer_dot import RowLayout
from nearfar.compiler.kernels.cpu.linear_tiles import linear_tiles
from nearfar.compiler.kernels.cpu.prepare_rows import prepare_rows
from nearfar.compiler.kernels.cpu.rows import rms_norm, take_rows
from nearfar.compiler.kernels.cpu.sample import sample
from nearfar.compiler.kernels.cpu.top_logprobs import top_logprobs
from nearfar.compiler.kernels.pages import Heads
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.quant.layout import store_rows
from nearfar.targets.cpu.levels import Level

# Sequences around the end of a block of 256 keys: decoding, and prompts that cross it within a tile.
LONG_BATCHES = (((255, 1), (256, 1), (511, 1), (3, 1)), ((250, 12), (0, 5), (257, 3)))
POSITIONS = 600
# (columns, outputs, what the projection has), by the quantization.
PROJECTIONS: tuple[tuple[str, int, int, dict[str, object]], ...] = (
    ("q4f16", 72, 37, {"norm_eps": shared.EPS, "bias": True}),
    ("q4f32", 70, 20, {"norm_eps": shared.EPS, "bias": True, "residual": True, "offset": 18, "width": 47}),
    ("q8f16", 37, 16, {"gated": True, "bias": True}),
    ("f16", 96, 35, {"gated": True, "norm_eps": shared.EPS, "offset": 8, "width": 50}),
    ("f32", 37, 61, {"residual": True, "x_dtype": "float16"}),
    ("q4f16", 1, 1, {"batch": "R", "y_dtype": "float16"}),
)


@dataclass(frozen=True)
class CpuCase:
    """``build`` makes the kernel, of the given name, ``before`` one that runs first. ``dtype``: that of operands which a kernel rounds."""

    name: str
    build: Callable[[str, Isa], Kernel]
    runs: Callable[[], Sequence[Run]]
    dtype: str | None = None
    before: Callable[[str, Isa], Kernel] | None = None

    def kernels(self, level: Level) -> tuple[Kernel, ...]:
        last = self.build(f"{self.name}_{level.name}", level.isa)
        return (last,) if self.before is None else (self.before(f"{self.name}_{level.name}_before", level.isa), last)


def all_cases() -> Iterator[CpuCase]:
    for quantization, columns, outputs, options in PROJECTIONS:
        facts = Projection("S", columns, outputs, shared.FORMATS[quantization], "float32", "float32")
        facts = replace(facts, **options)  # type: ignore[arg-type]
        name = f"{facts.name}_{quantization}"
        build = partial(linear_tiles, facts=facts, tokens=4)
        dtype = "int16" if facts.weight.scale_dtype else None
        prepare = partial(prepare_rows, facts=facts, layout=RowLayout(16, as_bytes=False))
        yield CpuCase(name, build, partial(projection_runs, name, facts, quantization), dtype, prepare)
    for quantization, columns in (("q4f32", 37), ("q8f16", 37), ("f16", 96), ("f32", 72)):
        yield embed_case(quantization, 51, columns)
    yield embed_case("q4f16", 17, 72, first_row=20)
    for columns in (37, 72):
        yield CpuCase(f"take_rows_{columns}", partial(take_rows, columns=columns), shared.take_rows_case(columns).runs)
        yield CpuCase(f"rms_norm_{columns}", partial(rms_norm, columns=columns, eps=shared.EPS), shared.rms_norm_case(columns).runs)
    yield from attention_cases()
    for case, template in zip(shared.conformance_cases(), (sample, adjust_logits), strict=True):
        columns = case.runs()[0].arrays["logits"].shape[1]
        yield CpuCase(case.name, partial(template, columns=columns), case.runs)
    # One column, and more than one chunk of 4,096.
    for columns in (1, 8_200):
        settings = shared.SETTINGS if columns < 1000 else shared.SETTINGS[-4:]
        yield CpuCase(f"sample_{columns}", partial(sample, columns=columns), shared.sample_case(columns, settings).runs)
        yield CpuCase(f"top_logprobs_{columns}", partial(top_logprobs, columns=columns), shared.top_logprobs_case(columns).runs)
    for columns in (37, 4_200):
        yield CpuCase(f"adjust_logits_{columns}", partial(adjust_logits, columns=columns), shared.adjust_logits_case(columns).runs)


def projection_runs(name: str, facts: Projection, quantization: str) -> list[Run]:
    return [in_tiles(shared.projection_run(name, facts, quantization, size)) for size in (1, 4, 9)]


def in_tiles(run: Run) -> Run:
    """A run with its matrix in tiles of 16 rows, as CPU kernels read it."""
    arrays = {role: store_rows("tiles16", a) if role.startswith(("weight.", "table.")) else a for role, a in run.arrays.items()}
    return replace(run, arrays=arrays)


def embed_case(quantization: str, rows: int, columns: int, first_row: int | None = None) -> CpuCase:
    split, fmt = first_row is not None, shared.FORMATS[quantization]
    case = shared.embed_case(quantization, rows, columns, first_row)
    build = partial(embed, rows=rows, columns=columns, fmt=fmt, first_row=first_row or 0, split=split)
    return CpuCase(case.name, build, lambda: list(map(in_tiles, case.runs())))


def attention_cases() -> Iterator[CpuCase]:
    small = Heads(6, 3, 24, 16, POSITIONS, "float32", shared.EPS)
    wide = Heads(3, 1, 66, 32, POSITIONS, "float16", None)
    for facts in (small, replace(small, kv="q8"), wide):
        name = f"{facts.num_heads}_{facts.head_dim}_{facts.activation}_{facts.kv}"
        build = partial(rope_attention, heads=facts)
        batches = (*attention.BATCHES_OF_ANY_KIND, *LONG_BATCHES)
        yield CpuCase(f"rope_attention_{name}", build, partial(attention_runs, facts, batches))
        if facts.activation == "float32":
            yield CpuCase(f"attention_tile_{name}", partial(attention_tile, heads=facts, rows=2), partial(attention_runs, facts, batches))
        runs = partial(attention_runs, facts, (attention.DECODE_BATCHES[0], LONG_BATCHES[0]))
        yield CpuCase(f"attention_split_{name}", partial(attention_split, heads=facts), runs)


def attention_runs(facts: Heads, batches: Sequence[Sequence[tuple[int, int]]]) -> list[Run]:
    usual = attention.plain_facts(
        facts.num_heads,
        facts.num_kv_heads,
        facts.head_dim,
        facts.activation,
        norm=facts.norm_eps is not None,
        page_size=facts.page_size,
        kv=facts.kv,
        positions=facts.positions,
    )
    runs = []
    for sequences in batches:
        run = attention.attention_run(usual, sequences)
        runs.append(Run(run.dims, {**run.arrays, "kv": to_cpu(run.arrays["kv"])}, run.expected))
    return runs


def in_the_order_of_ops(outputs: Mapping[str, Array]) -> dict[str, bytes]:
    """What a kernel has left, as the ops define it."""
    return {role: (from_cpu(array) if role == "kv" else array).tobytes() for role, array in outputs.items()}
