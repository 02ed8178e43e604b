"""The WGSL of complete models: Chrome's compiler accepts all of it, it stays within WebGPU's default limits, and it is
the same every time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from case_selection import selected
from kernel_cases import all_cases
from kernel_harness import Case, validate
from step_cases import step_cases

from nearfar.compiler import quant
from nearfar.compiler.arch import by_model_type
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.formats import load
from nearfar.compiler.ir.ops.parts import Part
from nearfar.compiler.ir.ops.states import OPS as STATES
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.passes import run_passes
from nearfar.compiler.quant.kernel_format import weight_format
from nearfar.targets.context import Context
from nearfar.targets.webgpu.lower import wgsl
from nearfar.targets.webgpu.variants import half_shapes, variants_of, vector_shapes

Sources = Mapping[str, tuple[str, str]]
BYTES = {"f32": 4, "i32": 4, "u32": 4, "f16": 2}


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["usual", "all"])
def sources(request: pytest.FixtureRequest, compile_tiny: Callable[..., Path]) -> Sources:
    """(code, entry) of every kernel of one checkpoint in one quantization, and of the kernels' own cases, which combine
    every template with every quantization; with the exhaustive cases, of that checkpoint in all quantizations, and of
    the checkpoints with other kernels. Kernels of equal names are equal.
    """
    found = {}
    more = [("phi3", "q4f16"), ("llama", "f32"), *(("qwen3", quantization) for quantization in quant.NAMES)]
    for checkpoint, quantization in more if request.param else [("qwen3", "q4f16")]:
        bundle = open_bundle(compile_tiny(checkpoint, quantization))
        for name, kernel in bundle.manifest.kernels.items():
            found[name] = ((bundle.path / kernel.file).read_text(), kernel.entry)
    # The checkpoints have no states.
    states = (case for case in step_cases(variants_of, "q4f16", ("float32",)) if case.name.startswith(tuple(STATES)))
    cases = (*selected("webgpu", all_cases()).values(), *states)
    for case in cases if request.param else first_of_their_words(case for case in cases if not case.exhaustive):
        for lowered in map(wgsl, case.kernels()):
            found[f"case/{case.name}/{lowered.kernel.name}"] = (lowered.text, lowered.entry)
    return found


def first_of_their_words(cases: Iterable[Case]) -> Iterator[Case]:
    """Of cases, whose names are a template, its sizes, the formats and the options, those with a word that is new."""
    seen: set[tuple[str, str]] = set()
    for case in cases:
        template, *words = [word for word in case.name.split("_") if not re.fullmatch(r"[\dx]*|[0-9a-f]{4}", word)]
        facts = {(template, word) for word in words}
        if not facts <= seen or not facts:
            yield case
        seen |= facts


def test_tint_accepts_every_kernel(sources: Sources, node: str, tmp_path: Path) -> None:
    assert any("enable f16;" in code for code, _ in sources.values())
    answers = validate(sources, node, os.environ, tmp_path)
    assert answers.keys() == sources.keys()
    assert {name: error for name, error in answers.items() if error} == {}


def test_tint_rejects_broken_kernels(sources: Sources, node: str, tmp_path: Path) -> None:
    code, entry = next(each for name, each in sources.items() if "/sample_" in name)
    barrier = re.sub(r"workgroupBarrier\(\);", "if (threadIdx.x < 3u) { workgroupBarrier(); }", code, count=1)
    assert barrier != code
    broken = {
        "sound": (code, entry),
        "a barrier that not all threads reach": (barrier, entry),
        "a missing name": (code.replace("PODArgs {", "Arguments {"), entry),
        "too many threads": (code.replace("workgroup_size(256", "workgroup_size(512"), entry),
        "no such entry": (code, "nothing"),
    }
    answers = validate(broken, node, os.environ, tmp_path)
    assert [name for name, error in answers.items() if not error] == ["sound"]


def test_every_kernel_keeps_to_the_default_limits(sources: Sources) -> None:
    for name, (code, _) in sources.items():
        assert code.count("var<storage") <= 8, name
        sizes = re.search(r"@workgroup_size\((\d+), (\d+), (\d+)\)", code)
        assert sizes is not None
        assert int(sizes[1]) * int(sizes[2]) * int(sizes[3]) <= 256, name
        shared = re.findall(r"var<workgroup> \w+ : array<(?:vec(\d)<(\w+)>|(\w+)), (\d+)>", code)
        assert len(shared) == code.count("var<workgroup>"), name
        assert (
            sum(int(lanes or 1) * BYTES[vector or scalar] * int(count) for lanes, vector, scalar, count in shared)
            <= 16 << 10
        ), name


def test_float32_kernels_need_no_f16(compile_tiny: Callable[..., Path]) -> None:
    manifest = (bundle := open_bundle(compile_tiny("qwen3", "q4f16"))).manifest
    for variant in (variant for row in manifest.variants.values() for variant in row):
        for name in variant.kernels if variant.activation != "float16" else ():
            assert "f16;" not in (bundle.path / manifest.kernels[name].file).read_text()


def test_kernels_with_subgroups_state_their_requirements(compile_tiny: Callable[..., Path]) -> None:
    manifest = (bundle := open_bundle(compile_tiny("qwen3", "q4f16"))).manifest
    found = set()
    for variant in (variant for row in manifest.variants.values() for variant in row):
        codes = [(bundle.path / manifest.kernels[name].file).read_text() for name in variant.kernels]
        for code in codes:
            needs = {"subgroups", "subgroup_id"} if "subgroup" in code else set()
            assert needs <= set(variant.needs), variant
            assert code.startswith("enable subgroups;") == bool(needs), variant
            found |= needs
    assert found


def test_int8_has_integer_products_first_which_state_their_requirement(compile_tiny: Callable[..., Path]) -> None:
    path = compile_tiny("qwen3", "q4f16", activations=("int8", "float32"), self_test=False)
    manifest = (bundle := open_bundle(path)).manifest
    feature = "packed_4x8_integer_dot_product"
    assert [entry.needs for entry in manifest.activations] == [[feature], []]
    dispatches, exact = (make_report(manifest, activation=dtype).dispatches_per_token for dtype in ("int8", "float32"))
    assert dispatches == exact + sum(step.op == "linear" for step in manifest.plan("generate").steps)
    products = {"linear_dots", "linear_dot_tile"}
    for step in manifest.plan("generate").steps:
        rows = manifest.variants[step.variants]
        if step.op == "linear":
            own = [row for row in rows if row.activation == "int8"]
            few, many = ([row for row in own if row.when == when] for when in (rows[0].when, None))
            assert rows[0].when is not None
            for first in (few[0], many[0]):
                assert manifest.kernels[first.kernels[-1]].template in products
            # What a tuner may prefer is as exact as float32, and runs anywhere.
            assert manifest.kernels[many[-1].kernels[-1]].template == "linear_tile"
        for row in rows:
            for name in row.kernels:
                kernel = manifest.kernels[name]
                needs = kernel.template in {*products, "quantize_rows"}
                code = (bundle.path / kernel.file).read_text()
                assert code.startswith(f"requires {feature};") == needs
                assert not needs or (row.activation, row.needs) == ("int8", [feature])


@pytest.mark.parametrize(
    ("quantization", "limit"), [("q4f16", 40_000), pytest.param("q8f16", 128 << 20, marks=pytest.mark.exhaustive)]
)
def test_kernels_of_one_name_are_equal_and_lowering_is_deterministic(
    quantization: str, limit: int, tiny_checkpoints: Mapping[str, Path]
) -> None:
    from tvm_ffi import structural_hash

    spec = load(str(tiny_checkpoints["llama"])).spec
    fmt = quant.by_name(quantization)
    plan = make_plan(run_passes(by_model_type("llama").forward(spec, 16, 16), fmt, limit))
    context = Context(plan, fmt, fmt.activations)
    calls = [call for step in plan.steps[:14] for variant in variants_of(step, context) for call in variant.kernels]
    facts: dict[str, set[object]] = {}
    names_of: dict[object, set[str]] = {}
    for call in calls:
        kernel = call.template("kernel", **call.facts)
        # Equal functions are lowered to equal code, which takes ten times as long as the hash.
        built = structural_hash(kernel.function), kernel.bindings, repr(kernel.grid), kernel.workgroup_size
        facts.setdefault(call.name, set()).add(built)
        names_of.setdefault(built, set()).add(call.name)
    assert {name: len(found) for name, found in facts.items() if len(found) > 1} == {}
    assert all(len(names) == 1 for names in names_of.values())
    for call in {call.template: call for call in calls}.values():
        assert wgsl(call.build()).text == wgsl(call.build()).text


def test_the_last_variant_of_every_step_runs_anywhere(compile_tiny: Callable[..., Path]) -> None:
    for quantization in ("q4f16", "f32"):
        manifest = open_bundle(compile_tiny("qwen3", quantization)).manifest
        for row in manifest.variants.values():
            for activation in (entry.dtype for entry in manifest.activations):
                fitting = [variant for variant in row if variant.activation in (None, activation)]
                assert fitting[-1].when is None
                assert fitting[-1].needs == []


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("columns", [64, 192, 896, 1024, 1536, 2048, 3072, 4096, 8192])
def test_no_thread_holds_four_rows_of_several_passes(columns: int, gated: bool) -> None:
    gate: list[Part] = [{"op": "gate_halves"}] if gated else []
    weight = weight_format(quant.form_by_name("q4f16"))
    facts = Projection("S", columns, 8192, weight, "float32", "float32", store=gate)
    shapes = vector_shapes(facts)
    for shape in shapes:
        passes = -(-columns // (32 * shape.lanes))
        assert shape.rows * (1 + gated) < 4 or passes == 1 or passes >= 4, shape
        assert shape.rows <= shape.lanes <= shape.threads <= 256
    # One row for each thread, whatever its registers.
    assert [(shape.threads, shape.rows) for shape in shapes][-1] == (256, 1)
    # Registers for float16 hold two numbers.
    for shape in half_shapes(facts):
        passes = -(-columns // (32 * shape.lanes))
        assert passes == 1 or passes >= 4, shape
        assert shape.rows * (1 + gated) <= 8, shape
        assert shape.rows <= shape.lanes <= shape.threads <= 256
