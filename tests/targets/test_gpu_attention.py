"""The variants of the attention ops on GPUs: which rows a step has, and that every step has kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.compiler import quant
from nearfar.compiler.ir.expr import Condition, Expr, evaluate, holds
from nearfar.compiler.ir.graph import Constant, Graph, Parameter, Source, Value
from nearfar.compiler.ir.heads import Heads
from nearfar.compiler.ir.kv_format import KvName, kv_format
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.kernels.attention_decode import attention_decode, attention_few_rows
from nearfar.compiler.kernels.attention_tile import TileOptions, attention_tile
from nearfar.compiler.kernels.batch_rows import Tiling
from nearfar.compiler.kernels.cuda.decode_tile import FilledRanges
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.targets.context import Context
from nearfar.targets.cuda.source import cuda
from nearfar.targets.cuda.variants import attention_numbers
from nearfar.targets.gpu_attention import AttentionNumbers, attention_variants, decode_options
from nearfar.targets.variant import KernelCall, Variant, for_activations
from nearfar.targets.webgpu.lower import wgsl
from nearfar.targets.webgpu.variants import ATTENTION as WEBGPU

CUDA = attention_numbers()
VENDORS = tuple(WEBGPU.spilling)
ROWS = {
    "kv": "kv",
    "positions": "positions",
    "seq_starts": "seq_starts",
    "page_indptr": "page_indptr",
    "page_ids": "page_ids",
}
# An attention that prepares and appends the new tokens of a joint projection.
JOINT = "joint attention"
SHORT = ["and", ["==", "S", "B"], ["<=", "T", 256]]
DECODE = ["==", "S", "B"]
# (query heads, kv heads, head_dim, page size): the smallest, uneven, a group of prime size, heads with vectors of 2
# elements, a large page.
HEADS = ((1, 1, 2, 16), (14, 2, 24, 16), (11, 1, 64, 16), (4, 4, 66, 8), (8, 1, 256, 64), (2, 2, 80, 6))


def rows_of(
    op: str,
    numbers: AttentionNumbers = WEBGPU,
    *,
    num_heads: int = 8,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    page_size: int = 16,
    rotary_dim: int | None = None,
    sinks: bool = False,
    activations: tuple[str, ...] = ("float16",),
    **attrs: Any,
) -> tuple[Variant, ...]:
    """The rows of a plan of one step."""
    kv_shape = (2, num_kv_heads, page_size)
    integers: Mapping[str, Expr] = {
        "positions": "S",
        "slots": "S",
        "seq_starts": ["add", "B", 1],
        "page_indptr": ["add", "B", 1],
        "page_ids": "L",
    }
    graph = Graph()
    for name, size in integers.items():
        graph.inputs[name] = Value(name, (size,), "int32")
    form = kv_format(attrs.get("kv", "activation"))
    graph.states["kv"] = (
        Value("kv", ("P", *kv_shape, head_dim), "activation")
        if form is None
        else Value("kv", ("P", *kv_shape, form.words(head_dim)), "uint32")
    )
    for name, heads in (
        ("q", num_heads),
        ("k", num_kv_heads),
        ("v", num_kv_heads),
        ("qkv", num_heads + 2 * num_kv_heads),
    ):
        graph.inputs[name] = Value(name, ("S", heads * head_dim), "activation")
    half = (head_dim if rotary_dim is None else rotary_dim) // 2
    graph.constants["table"] = Constant(
        "table", "rope", (256, half, 2), {"inverse_frequencies": [1.0] * half, "scale": 1.0}
    )
    table = {"table": "table"} if half else {}
    inputs: Mapping[str, Mapping[str, str]] = {
        "append_kv": {"k": "k", "v": "v", "kv": "kv", "slots": "slots"},
        "attention": {"q": "q", **ROWS},
        JOINT: {"qkv": "qkv", "slots": "slots", **ROWS, **table},
    }
    roles = dict(inputs[op])
    if sinks:
        graph.parameters["sinks"] = Parameter("sinks", (Source("sinks", 0, num_heads),), None)
        roles["sinks"] = "sinks"
    graph.add(op.removeprefix("joint "), roles, name="y", **attrs)
    plan = make_plan(graph)
    return attention_variants(plan.steps[0], Context(plan, quant.by_name("q4f16"), activations), numbers)


def templates(row: Variant) -> list[str]:
    return [call.template.__name__ for call in row.kernels]


def test_decode_has_one_kernel_for_short_contexts_and_two_for_long_ones() -> None:
    found = [(templates(row), row.when) for row in rows_of(JOINT)]
    assert found[:3] == [
        (["attention_decode"], SHORT),
        (["attention_decode", "attention_merge"], DECODE),
        (["attention_decode", "attention_merge"], DECODE),
    ]


@pytest.mark.parametrize(
    ("head_dim", "activation", "tile"), [(64, "float32", 256), (128, "float16", 256), (128, "float32", 128)]
)
def test_a_thread_has_few_bytes_of_keys_on_webgpu(head_dim: int, activation: str, tile: int) -> None:
    """Adreno's compiler spills with four keys of 128 float32 (`make gpu-static`)."""
    heads = Heads(16, 8, head_dim, 16, activation)
    options = decode_options(heads, None, WEBGPU)
    assert options is not None
    assert (options.threads, options.tile) == (64, tile)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [((32, 8, 64), True), ((32, 8, 128), True), ((24, 8, 128), False), ((14, 2, 64), False), ((32, 4, 128), False)],
)
def test_results_are_added_for_each_tile_if_only_then_numbers_fit_into_registers(
    heads: tuple[int, int, int], expected: bool
) -> None:
    """With four heads a key, Intel's compiler spilled in float16; with seven or eight, it spills in both ways."""
    for activation, numbers in (("float16", WEBGPU), ("float32", WEBGPU), ("float16", CUDA)):
        options = decode_options(Heads(*heads, 16, activation), 256, numbers)
        assert options is not None
        assert options.each_tile == (expected and activation == "float16" and numbers is WEBGPU)
        assert options.values_at_once == (2 if options.each_tile else 4)


# (query heads, kv heads, head_dim), the pages, the threads and keys of the tile of GPUs that would spill, and their
# vendors: a group of five, Qwen2-0.5B, Qwen3-30B-A3B, and pages of integers.
SMALL: tuple[tuple[tuple[int, int, int], KvName, tuple[int, int], list[str]], ...] = (
    ((20, 4, 128), "activation", (64, 128), ["intel", "apple"]),
    ((14, 2, 64), "activation", (64, 128), ["intel", "apple"]),
    ((32, 4, 128), "activation", (128, 256), ["intel", "apple"]),
    ((16, 8, 128), "q8", (64, 128), ["intel", "apple"]),
    ((14, 2, 64), "q8", (64, 128), ["intel", "apple", "qualcomm"]),
    ((32, 4, 128), "q4", (128, 128), ["intel", "apple", "qualcomm", "nvidia", "amd"]),
)


@pytest.mark.parametrize(("heads", "kv", "tile", "vendors"), SMALL)
def test_vendors_whose_compilers_spill_try_small_sizes_first(
    heads: tuple[int, int, int], kv: KvName, tile: tuple[int, int], vendors: list[str]
) -> None:
    """Others may choose them, and keep the usual size until a tuner has measured."""
    num_heads, num_kv_heads, head_dim = heads
    form: dict[str, Any] = {} if kv == "activation" else {"kv": kv}
    op = "attention" if kv == "q4" else JOINT
    rows = rows_of(op, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, **form)
    by_need = {need: [row for row in rows if set(row.needs) <= {need}] for need in ("", *VENDORS)}
    for need, own in by_need.items():
        first: dict[str, Variant] = {}
        for row in own:
            first.setdefault(json.dumps(row.when), row)
        options = [call.facts["options"] for row in first.values() for call in row.kernels if decodes(call)]
        assert options
        is_small = need.removeprefix("vendor-") in vendors
        assert {(each.threads, each.tile) == tile and each.each_tile for each in options} == {is_small}, need
    # A tuner measures both sizes everywhere.
    sizes = {call.facts["options"] for row in by_need[""] for call in row.kernels if decodes(call)}
    assert {each.each_tile for each in sizes} == {True, False}


def decodes(call: KernelCall) -> bool:
    return call.template in (attention_decode, attention_few_rows)


@pytest.mark.parametrize("heads", [(8, 8, 128), (16, 8, 128), (24, 8, 128), (32, 8, 64), (8, 1, 256)])
def test_heads_that_spill_nowhere_have_one_size(heads: tuple[int, int, int]) -> None:
    num_heads, num_kv_heads, head_dim = heads
    rows = rows_of(JOINT, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    assert all(not row.needs for row in rows)


APPEND, FEW = ["rope_append"], ["attention_few_rows", "attention_merge"]
# The kernels after the append, for the new tokens of each sequence and the longest context.
MIXES: tuple[tuple[tuple[int, ...], int, list[str]], ...] = (
    ((8,), 200, ["attention"]),
    ((8,), 1000, FEW),
    ((5, 1, 4, 1), 1000, FEW),
    ((9,), 1000, ["TILES"]),
    ((4096,), 4096, ["TILES"]),
    # One token of 200 sequences beside a chunk, in any order; many short chunks; drafts beside a chunk.
    ((*[1] * 200, 512), 1024, ["TILES", *FEW]),
    ((512, *[1] * 200), 1024, ["TILES", *FEW]),
    (tuple([16] * 20), 300, ["TILES", *FEW]),
    ((5, 5, 40, 1), 100, ["TILES", *FEW]),
)


def dims_of(lengths: Sequence[int], context: int) -> dict[str, int]:
    return {"S": sum(lengths), "B": len(lengths), "R": len(lengths), "T": context}


@pytest.mark.parametrize(("lengths", "context", "expected"), MIXES)
@pytest.mark.parametrize(
    ("numbers", "activation", "tiles"),
    [(WEBGPU, "float16", "attention_tile"), (CUDA, "float32", "attention_tile"), (CUDA, "bfloat16", "attention_mma")],
)
def test_a_mixed_batch_is_split_into_ranges_of_keys_and_tiles_of_rows(
    numbers: AttentionNumbers, activation: str, tiles: str, lengths: tuple[int, ...], context: int, expected: list[str]
) -> None:
    for op, before in ((JOINT, APPEND), ("attention", [])):
        rows = rows_of(op, numbers, activations=(activation,))
        chosen = next(row for row in rows if holds(row.when, dims_of(lengths, context)))
        assert templates(chosen) == before + [tiles if each == "TILES" else each for each in expected]


LENGTHS = st.lists(st.one_of(st.just(1), st.integers(1, 12), st.integers(1, 300)), min_size=1, max_size=40)


def equalities(when: Condition) -> Condition:
    """The required part of a condition, which a runtime never ignores."""
    if when is None or when[0] == "==":
        return when
    parts = [part for part in map(equalities, when[1:]) if part is not None] if when[0] == "and" else []
    return ["and", *parts] if len(parts) == 2 else parts[0] if parts else None


@given(lengths=LENGTHS, numbers=st.sampled_from((WEBGPU, CUDA)))
def test_every_variant_computes_every_row_of_the_batches_that_its_equalities_allow(
    lengths: list[int], numbers: AttentionNumbers
) -> None:
    for row in rows_of(JOINT, numbers) + rows_of("attention", numbers):
        if not holds(equalities(row.when), dims_of(lengths, 600)):
            continue
        called = {call.template.__name__: call.facts for call in row.kernels}
        few = called.get("attention_few_rows", {}).get("max_rows", 0)
        tiles = [facts["few"] for name, facts in called.items() if name in ("attention_tile", "attention_mma")]
        for length in lengths:
            by_decode = bool({"attention_decode", "attention_decode_mma"} & {*called}) and length == 1
            by_tiles = any(length > few for few in tiles)
            ways = by_decode + (length <= few) + by_tiles + ("attention" in called)
            assert ways == 1, (templates(row), row.when, length)


@given(lengths=LENGTHS)
def test_every_tile_of_a_batch_has_a_slot_of_its_own(lengths: list[int]) -> None:
    starts = [0, *accumulate(lengths)]
    for rows, few in ((64, 8), (32, 8), (10, 8), (32, 0), (16, 2)):
        tiling = Tiling(rows, few)
        slots = evaluate(tiling.slots, dims_of(lengths, 300))
        first = [
            start // rows + (min(sequence, (start - sequence) // few) if few else sequence)
            for sequence, start in enumerate(starts)
        ]
        used = [
            first[sequence] + tile
            for sequence, length in enumerate(lengths)
            if length > few
            for tile in range(-(-length // rows))
        ]
        assert len(set(used)) == len(used)
        assert all(slot < slots for slot in used)
        # A kernel looks for the last sequence that starts at or before a slot.
        owner = [max(s for s in range(len(lengths)) if first[s] <= slot) for slot in used]
        assert owner == [s for s, length in enumerate(lengths) if length > few for _ in range(-(-length // rows))]


@pytest.mark.parametrize(("kv", "first"), [("q8", {"attention"}), ("q4", {"attention_decode", "rope_append"})])
def test_only_attention_over_rotated_keys_prepares_its_queries(kv: str, first: set[str]) -> None:
    found = {templates(row)[0] for row in rows_of("attention", kv=kv)}
    assert found & {"attention", "attention_decode", "rope_append"} == first


def test_heads_that_cannot_be_split_use_tiles_for_many_rows_a_sequence() -> None:
    found = [(templates(row), row.when) for row in rows_of("attention", page_size=6, head_dim=80)]
    assert found == [(["attention"], None)]
    found = [(templates(row), row.when) for row in rows_of("attention", page_size=2)]
    many = ["<=", ["mul", "B", 8], "S"]
    assert found == [*[(["attention_tile"], many)] * 3, (["attention"], None)]


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "expected"),
    [
        (32, 8, 64, [TileOptions(32, 16), TileOptions(16, 32), TileOptions(16, 32, 256)]),
        (16, 8, 128, [TileOptions(16, 32), TileOptions(16, 32, 256), TileOptions(16, 16)]),
    ],
)
def test_a_tuner_on_webgpu_can_choose_twice_the_threads_for_a_tile(
    num_heads: int, num_kv_heads: int, head_dim: int, expected: list[TileOptions]
) -> None:
    """For the heads of Llama-3.2-1B and Qwen3-0.6B, more of these threads fit on a GPU (`make gpu-static`)."""
    rows = rows_of(JOINT, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, activations=("float32",))
    tiles = [call.facts["options"] for row in rows for call in row.kernels if call.template is attention_tile]
    # A single long sequence, then a mixed batch.
    assert tiles == expected * 2


@pytest.mark.parametrize(("window", "split"), [(16, False), (241, False), (242, True)])
def test_a_window_that_one_workgroup_reads_at_once_is_never_split(window: int, split: bool) -> None:
    rows = [row for row in rows_of(JOINT, window=window) if templates(row)[0] == "attention_decode"]
    assert [row.when for row in rows] == ([SHORT, DECODE, DECODE] if split else [DECODE])


def test_a_window_bounds_the_ranges_of_a_split_kernel() -> None:
    rows = rows_of(JOINT, CUDA, window=1000, activations=("float32",))
    row = next(row for row in rows if "attention_merge" in templates(row))
    grid = row.kernels[0].build().grid
    # One workgroup per kv head and range.
    assert [evaluate(grid[0], {"T": tokens, "B": 2}) for tokens in (1, 600, 1015, 5000)] == [2, 6, 8, 8]


def test_a_long_context_has_fewer_ranges_a_row_in_a_large_batch() -> None:
    rows = rows_of(JOINT, CUDA, activations=("float32",))
    row = next(row for row in rows if "attention_merge" in templates(row))
    grid = row.kernels[0].build().grid
    assert [evaluate(grid[0], {"T": 32768, "B": size}) // 2 for size in (1, 8, 60, 256)] == [63, 56, 4, 4]
    assert [evaluate(grid[0], {"T": 600, "B": size}) // 2 for size in (1, 8, 60, 256)] == [3, 3, 3, 3]


@given(sequences=st.integers(1, 300), context=st.integers(1, 40_000), window=st.sampled_from((None, 90, 5000)))
def test_ranges_on_tensor_cores_fill_a_gpu_and_fit_into_their_scratch(
    sequences: int, context: int, window: int | None
) -> None:
    (row,) = (row for row in rows_of(JOINT, CUDA, window=window) if row.when == DECODE)
    (call,) = row.kernels
    facts = call.facts
    tile = facts["tile"]
    ranges = FilledRanges(facts["heads"], window, tile.keys, workgroups=tile.workgroups, row_parts=2)
    dims = {"B": sequences, "T": context}
    count = evaluate(ranges.count, dims)
    reach = context if window is None else min(context, window + 15)
    assert 1 <= count <= -(-reach // tile.keys)
    assert sequences * count <= evaluate(ranges.partials, dims)
    alone = evaluate(ranges.count, {"B": 1, "T": 1 << 14 if window is None else context})
    assert window is not None or 2 * alone >= tile.workgroups


def test_rows_that_are_equal_for_all_dtypes_fit_every_dtype() -> None:
    row = Variant(rows_of("attention")[-1].kernels)
    assert for_activations({"float16": [row], "float32": [row]}) == (row,)
    assert [each.activation for each in rows_of("append_kv", activations=("float16", "float32"))] == [
        "float16",
        "float32",
    ]


def test_kernels_are_named_by_what_they_depend_on() -> None:
    def names(**facts: Any) -> list[str]:
        return [call.name for row in rows_of(JOINT, **facts) for call in row.kernels]

    usual = names()
    assert names() == usual
    # Only scores use the scale; rope_append and attention_merge do not need it.
    assert {name.rsplit("_", 1)[0] for name in set(names(scale=0.5)) & set(usual)} == {"rope_append", "attention_merge"}


@pytest.mark.parametrize(
    ("target", "heads"),
    [
        pytest.param(target, heads, marks=() if heads in usual else pytest.mark.exhaustive)
        for target, usual in (("webgpu", HEADS[:1]), ("cuda", HEADS[3:4]))
        for heads in HEADS
    ],
)
def test_every_attention_op_has_kernels_for_heads_of_any_even_size(
    target: str, heads: tuple[int, int, int, int]
) -> None:
    numbers = {"webgpu": WEBGPU, "cuda": CUDA}[target]
    activations = ("float32",) if target == "webgpu" else ("bfloat16",)
    num_heads, num_kv_heads, head_dim, page_size = heads
    sizes: dict[str, Any] = {
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "page_size": page_size,
    }
    steps: tuple[tuple[str, dict[str, Any]], ...] = (
        ("append_kv", {}),
        (JOINT, {"rotary_dim": 0, "sinks": True}),
        ("attention", {"sinks": True, "window": 20, "softcap": 5.0}),
        (JOINT, {"rotary_dim": head_dim // 4 * 2, "causal": False}),
    )
    for op, attrs in steps:
        rows = rows_of(op, numbers, activations=activations, **sizes, **attrs)
        assert rows[-1].when is None
        for call in {call.name: call for row in rows for call in row.kernels}.values():
            if target == "webgpu":
                wgsl(call.build())
            else:
                cuda(call.build(), "sm_90")


@pytest.mark.parametrize(
    ("head_dim", "message"),
    [
        (65, "head_dim is 65; kernels for GPUs read pairs of elements and need an even number"),
        (1032, "head_dim is 1032; a workgroup holds 1024 elements at most"),
    ],
)
def test_heads_that_no_kernel_can_run_are_refused(head_dim: int, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"attention: {message}"):
        rows_of("attention", head_dim=head_dim)
