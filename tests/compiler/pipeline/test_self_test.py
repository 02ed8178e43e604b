"""The self-test of a bundle: its logits compared with transformers, its tolerances with faults of kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from light_bundle import few_kernels
from plain_target import compile_plain
from tiny_models import CHECKPOINTS, VOCAB_SIZE
from tolerances import F16, F32, relative_error

from nearfar.compiler import passes, quant
from nearfar.compiler.arch import by_model_type
from nearfar.compiler.bundle.entries import SelfTestEntry
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.ir.graph import Graph, Parameter
from nearfar.compiler.ir.ops import OPS, Array, Attrs, attention
from nearfar.compiler.passes.fuse_attention import fuse_attention
from nearfar.compiler.passes.quantize_kv import quantize_kv
from nearfar.compiler.passes.stack import stack_gates
from nearfar.compiler.pipeline import self_test, vector_test
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.self_test import Reference, make_self_test, packed_rows, reference_logits
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime import graph_walk
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import CheckpointError, DeviceError, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import largest_deviation
from nearfar.targets.webgpu.lower import MAX_BINDING_BYTES

CompileTiny = Callable[..., Path]
Pass = Callable[[Graph], Graph]
Inputs = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def bundle(compile_tiny: CompileTiny) -> Bundle:
    return open_bundle(compile_tiny("qwen3", "q4f16"))


def reference_of(bundle: Bundle) -> Reference:
    """The reference of `compile_model` for a bundle, created again from its spec."""
    manifest = bundle.manifest
    graph = by_model_type(manifest.spec.model_type).forward(manifest.spec, manifest.page_size, manifest.context)
    fused = passes.run_passes(graph, quant.by_name(manifest.quantization), MAX_BINDING_BYTES, manifest.kv)
    return Reference(bundle, quantize_kv(graph, manifest.kv), fused.parameters)


def self_test_of(bundle: Bundle) -> SelfTestEntry:
    assert bundle.manifest.self_test is not None
    return bundle.manifest.self_test


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_the_logits_are_those_of_transformers(
    checkpoint: str, compile_numpy: CompileTiny, tiny_checkpoints: Mapping[str, Path]
) -> None:
    import torch
    import transformers

    test = self_test_of(open_bundle(compile_numpy(checkpoint, "f32")))
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoints[checkpoint], dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([test.prompt_ids])).logits[0].numpy()
    scale = np.abs(logits).max()
    assert [row.row for row in test.rows] == list(range(24))
    for row, expected in zip(test.rows, logits, strict=True):
        assert np.abs(row.logits - expected[row.token_ids]).max() < F32 * scale
        assert abs(row.logsumexp - float(torch.logsumexp(torch.tensor(expected), 0))) < F32 * scale
        assert row.logits[0] == max(row.logits)
        np.testing.assert_allclose(row.logits[:8], np.sort(expected)[::-1][:8], atol=F32 * scale)


def test_the_prompt_is_half_a_sentence_and_half_spread_over_the_vocabulary(bundle: Bundle) -> None:
    prompt = self_test_of(bundle).prompt_ids
    assert len(prompt) == 24
    assert (prompt[12], prompt[-1]) == (0, VOCAB_SIZE - 1)
    assert all(token < 256 for token in prompt[:12]), "the text tokens of tiny models are bytes"


def test_every_part_of_the_logits_is_checked(bundle: Bundle) -> None:
    seen = {token for row in self_test_of(bundle).rows for token in row.token_ids}
    assert {0, VOCAB_SIZE - 1} <= seen
    assert max(np.diff(sorted(seen))) < VOCAB_SIZE / 10


def test_a_context_shorter_than_the_prompt_shortens_it(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    compiled = compile_plain(tiny_checkpoints["llama"], tmp_path / "bundle", None, 3, self_test=True)
    assert len(self_test_of(compiled).prompt_ids) == 3


def test_the_manifest_states_that_a_bundle_has_no_self_test(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    compiled = compile_plain(tiny_checkpoints["llama"], tmp_path / "bundle", None, 64)
    assert compiled.manifest.self_test is None
    assert open_bundle(tmp_path / "bundle").manifest.self_test is None


def test_each_activation_dtype_of_the_bundle_has_a_tolerance(compile_numpy: CompileTiny) -> None:
    def dtypes(*arguments: str, **options: tuple[str, ...]) -> set[str]:
        return set(self_test_of(open_bundle(compile_numpy(*arguments, **options))).tolerances)

    assert dtypes("qwen3", "f32") == {"float32"}
    assert dtypes("qwen3", "q4f16") == {"float32", "float16"}
    assert dtypes("qwen3", "q4f16", activations=("float16",)) == {"float16"}


# --- tolerances
# --------------------------------------------------------------------------------------------------------------------


def deviation(bundle: Bundle) -> float:
    """The error of the numpy runner, which runs the plan, relative to the bundle's self-test."""
    return largest_deviation(
        ReferenceRunner(bundle, limits=Limits(rows=64)), self_test_of(bundle), bundle.manifest.page_size
    )


def test_rounding_activations_to_float16_is_well_within_its_tolerance(bundle: Bundle) -> None:
    exact, half = reference_logits(reference_of(bundle), self_test_of(bundle).prompt_ids, lambda *_: None)
    tolerances = self_test_of(bundle).tolerances
    assert 0 < 4 * relative_error(half, exact) <= tolerances["float16"]
    assert 10 * F32 <= tolerances["float32"] < F16 <= tolerances["float16"]
    assert relative_error(half, exact) <= tolerances["float32"], "integers in the KV pages may round like float16"


def forget_a_column(inputs: Inputs) -> Inputs:
    return {
        **inputs,
        "weight": np.concatenate([inputs["weight"][:, :-1], np.zeros_like(inputs["weight"][:, :1])], axis=1),
    }


def forget_an_output(inputs: Inputs) -> Inputs:
    return {**inputs, "weight": np.concatenate([inputs["weight"][:-1], np.zeros_like(inputs["weight"][:1])])}


def forget_the_own_key(inputs: Inputs) -> Inputs:
    return {**inputs, "positions": np.maximum(inputs["positions"] - 1, 0)}


def scale_scores_wrongly(inputs: Inputs) -> Inputs:
    return {**inputs, "q": inputs["q"] * np.float32(1.02)}


def forget_the_second_page(inputs: Inputs) -> Inputs:
    return {**inputs, "page_ids": np.zeros_like(inputs["page_ids"])}


@pytest.mark.parametrize(
    ("op", "fault"),
    [
        ("linear", forget_a_column),
        ("linear", forget_an_output),
        # With prepared queries.
        (None, forget_the_own_key),
        (None, scale_scores_wrongly),
        (None, forget_the_second_page),
    ],
)
def test_faults_of_kernels_exceed_the_widest_tolerance(
    op: str | None, fault: Callable[[Inputs], Inputs], bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deviation(bundle) < F32
    if op is None:
        right = attention.attended

        def faulty(inputs: Inputs, attrs: Attrs, _: object) -> Array:
            wrong = fault(dict(inputs))
            return right(wrong, attrs, attention.read_sequences(wrong, attrs))

        monkeypatch.setattr(attention, "attended", faulty)
    else:
        declared = OPS[op]
        compute = lambda inputs, attrs: declared.run(fault(dict(inputs)), attrs)  # noqa: E731
        monkeypatch.setitem(OPS, op, dataclasses.replace(declared, compute=compute))
    assert deviation(bundle) > 2 * max(self_test_of(bundle).tolerances.values())


def test_a_model_that_float16_cannot_hold_gets_the_largest_tolerances(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = OPS["attention"]

    def large(inputs: Mapping[str, np.ndarray], attrs: Mapping[str, object]) -> np.ndarray:
        y = attend.compute(inputs, attrs)
        assert y is not None
        return y * np.float32(1e6)

    monkeypatch.setitem(OPS, "attention", dataclasses.replace(attend, compute=large))
    reference = reference_of(bundle)
    assert make_self_test(reference).tolerances == {"float32": 0.005, "float16": 0.25}
    # A device falls back to float32, unless the bundle has only float16.
    manifest = bundle.manifest
    half = [entry for entry in manifest.activations if entry.dtype == "float16"]
    only = Bundle(bundle.path, manifest.model_copy(update={"activations": half}))
    with pytest.raises(CheckpointError, match=r"exceed float16's largest number, 65504; use --activations float32"):
        make_self_test(dataclasses.replace(reference, bundle=only))


def test_a_model_that_int8_changes_too_much_is_refused_before_a_device_refuses_it(
    compile_light: CompileTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compile_light("qwen3", "q4f16", activations=("int8", "float32"))
    reference = reference_of(open_bundle(compiled))
    assert make_self_test(reference).tolerances == {"float32": 0.001, "int8": 0.05}
    # The rounding of this model changes it by 2 %.
    monkeypatch.setattr(self_test, "INT8", 0.01)
    with pytest.raises(RequestError, match=r"int8: .* by 0\.0[1-4]\d* of the largest, and .* more than 0\.01; leave"):
        make_self_test(reference)


def test_vectors_that_int8_changes_too_much_are_refused(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_test, "INT8", 1e-3)
    options = CompileOptions(quantization="q8f16", context=64, activations=("int8",))
    with few_kernels(), pytest.raises(RequestError, match=r"--activations int8: .* changes the results of .* by 0\.0"):
        compile_model(str(tiny_checkpoints["embedding"]), tmp_path / "bundle", options)
    assert not any(tmp_path.iterdir())


def test_logits_that_are_not_numbers_are_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = dataclasses.replace(OPS["embed"], compute=lambda *_: np.full((24, 72), np.nan, np.float32))
    monkeypatch.setitem(OPS, "embed", nothing)
    with pytest.raises(CheckpointError, match="computes logits that are not finite numbers"):
        make_self_test(reference_of(bundle))


# --- the reference
# -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["llama_plain", "qwen2", "qwen3"])
def test_a_walk_in_blocks_of_rows_computes_the_same_as_the_plan(
    checkpoint: str, compile_numpy: CompileTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(compile_numpy(checkpoint, "q8f16"))
    prompt = self_test_of(bundle).prompt_ids
    expected = ReferenceRunner(bundle).forward(make_batch([Chunk(prompt, 0, (0, 1), range(24))], 16)).logits
    monkeypatch.setattr(graph_walk, "BLOCK_ELEMENTS", 700)
    reference = reference_of(bundle)
    read, sizes = packed_rows(reference), []

    def counted(parameter: Parameter, start: int, stop: int) -> np.ndarray:
        rows = read(parameter, start, stop)
        sizes.append(rows.size)
        return rows

    monkeypatch.setattr(self_test, "packed_rows", lambda _: counted)
    assert relative_error(reference_logits(reference, prompt, lambda *_: None)[0], expected) < F32
    assert 0 < max(sizes) <= 700


def swap_gate_and_up(graph: Graph) -> Graph:
    """A faulty pass, which swaps gate and up."""
    fused = stack_gates(graph)
    for name, parameter in fused.parameters.items():
        if name.endswith("gate_up_proj.weight"):
            fused.parameters[name] = dataclasses.replace(parameter, sources=parameter.sources[::-1])
    return fused


def norm_with_another_eps(graph: Graph) -> Graph:
    """A faulty pass, which loses an attribute."""
    fused = fuse_attention(graph)
    nodes = [dataclasses.replace(node, attrs={"eps": 0.5}) if node.op == "attention" else node for node in fused.nodes]
    return dataclasses.replace(graph, values={}, nodes=[]).with_nodes(nodes, fused.parameters.values())


@pytest.mark.parametrize(
    ("right", "faulty"), [(stack_gates, swap_gate_and_up), (fuse_attention, norm_with_another_eps)]
)
def test_the_self_test_detects_the_fault_of_a_pass(
    right: Pass, faulty: Pass, tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "FUSIONS", tuple(faulty if each is right else each for each in passes.FUSIONS))
    bundle = compile_plain(tiny_checkpoints["qwen3"], tmp_path / "bundle", "f32", 64, self_test=True)
    with pytest.raises(DeviceError, match="incorrectly"):
        open_runner("numpy", bundle, Limits())
