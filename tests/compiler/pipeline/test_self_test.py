"""The self-test of a bundle: its figures against transformers, its tolerances against faults of kernels, its parts against the whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CHECKPOINTS, VOCAB_SIZE
from tolerances import F16, F32, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import SelfTestEntry
from nearfar.compiler.errors import CheckpointError
from nearfar.compiler.ir.ops import OPS, attention
from nearfar.compiler.pipeline import row_blocks
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.self_test import make_self_test, reference_logits
from nearfar.compiler.runtime.reference import ReferenceRunner

CompileTiny = Callable[..., Path]
Inputs = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def bundle(compile_tiny: CompileTiny) -> Bundle:
    return open_bundle(compile_tiny("qwen3", "q4f16"))


def self_test_of(bundle: Bundle) -> SelfTestEntry:
    assert bundle.manifest.self_test is not None
    return bundle.manifest.self_test


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_the_logits_are_those_of_transformers(checkpoint: str, compile_tiny: CompileTiny, tiny_checkpoints: Mapping[str, Path]) -> None:
    import torch
    import transformers

    found = self_test_of(open_bundle(compile_tiny(checkpoint, "f32")))
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoints[checkpoint], dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([found.prompt_ids])).logits[0].numpy()
    scale = np.abs(logits).max()
    assert [row.row for row in found.rows] == list(range(24))
    for row, expected in zip(found.rows, logits, strict=True):
        assert np.abs(row.logits - expected[row.token_ids]).max() < F32 * scale
        assert abs(row.logsumexp - float(torch.logsumexp(torch.tensor(expected), 0))) < F32 * scale
        assert row.logits[0] == max(row.logits)
        np.testing.assert_allclose(row.logits[:8], np.sort(expected)[::-1][:8], atol=F32 * scale)


def test_the_prompt_is_half_a_sentence_and_half_spread_over_the_vocabulary(bundle: Bundle) -> None:
    prompt = self_test_of(bundle).prompt_ids
    assert len(prompt) == 24
    assert (prompt[12], prompt[-1]) == (0, VOCAB_SIZE - 1)
    assert all(token < 256 for token in prompt[:12]), "the tiny models' tokens of text are bytes"


def test_every_part_of_the_logits_is_looked_at(bundle: Bundle) -> None:
    seen = {token for row in self_test_of(bundle).rows for token in row.token_ids}
    assert {0, VOCAB_SIZE - 1} <= seen
    assert max(np.diff(sorted(seen))) < VOCAB_SIZE / 10


def test_a_context_shorter_than_the_prompt_shortens_it(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    compiled = compile_model(str(tiny_checkpoints["llama"]), tmp_path / "bundle", CompileOptions(context=3, activations=("float32",)))
    assert len(self_test_of(compiled).prompt_ids) == 3


def test_without_a_self_test_the_manifest_says_so(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    options = CompileOptions(context=64, activations=("float32",), self_test=False)
    compiled = compile_model(str(tiny_checkpoints["llama"]), tmp_path / "bundle", options)
    assert compiled.manifest.self_test is None
    assert open_bundle(tmp_path / "bundle").manifest.self_test is None


def test_a_tolerance_is_given_for_each_activation_dtype_that_the_bundle_offers(compile_tiny: CompileTiny) -> None:
    def dtypes(*arguments: str, **options: tuple[str, ...]) -> set[str]:
        return set(self_test_of(open_bundle(compile_tiny(*arguments, **options))).tolerances)

    assert dtypes("qwen3", "f32") == {"float32"}
    assert dtypes("qwen3", "q4f16") == {"float32", "float16"}
    assert dtypes("qwen3", "q4f16", activations=("float16",)) == {"float16"}


# --- tolerances --------------------------------------------------------------------------------------------------------------------


def distance(bundle: Bundle, expected: np.ndarray) -> float:
    return relative_error(reference_logits(bundle, self_test_of(bundle).prompt_ids, lambda *_: None)[0], expected)


def test_rounding_activations_to_float16_is_well_within_its_tolerance(bundle: Bundle) -> None:
    exact, half = reference_logits(bundle, self_test_of(bundle).prompt_ids, lambda *_: None)
    tolerances = self_test_of(bundle).tolerances
    assert 0 < 4 * relative_error(half, exact) <= tolerances["float16"]
    assert 10 * F32 <= tolerances["float32"] < F16 <= tolerances["float16"]
    assert relative_error(half, exact) <= tolerances["float32"], "integers in the KV pages may round like float16"


def forget_a_column(inputs: Inputs) -> Inputs:
    return {**inputs, "weight": np.concatenate([inputs["weight"][:, :-1], np.zeros_like(inputs["weight"][:, :1])], axis=1)}


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
        ("gated_linear", forget_a_column),
        ("linear", forget_an_output),
        # The one function behind every attention.
        (None, forget_the_own_key),
        (None, scale_scores_wrongly),
        (None, forget_the_second_page),
    ],
)
def test_faults_of_kernels_are_beyond_the_widest_tolerance(
    op: str | None, fault: Callable[[Inputs], Inputs], bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, _ = reference_logits(bundle, self_test_of(bundle).prompt_ids, lambda *_: None)
    assert distance(bundle, exact) == 0
    if op is None:
        attend = attention.attention
        monkeypatch.setattr(attention, "attention", lambda inputs, attrs: attend(fault(dict(inputs)), attrs))
    else:
        right = OPS[op]
        monkeypatch.setitem(OPS, op, dataclasses.replace(right, compute=lambda inputs, attrs: right.run(fault(dict(inputs)), attrs)))
    assert distance(bundle, exact) > 2 * max(self_test_of(bundle).tolerances.values())


def test_a_model_that_float16_cannot_hold_gets_the_largest_tolerances(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = attention.attention
    monkeypatch.setattr(attention, "attention", lambda inputs, attrs: attend(inputs, attrs) * np.float32(1e6))
    assert make_self_test(bundle).tolerances == {"float32": 0.005, "float16": 0.25}


def test_logits_that_are_not_numbers_are_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = dataclasses.replace(OPS["embed"], compute=lambda *_: np.full((24, 72), np.nan, np.float32))
    monkeypatch.setitem(OPS, "embed", nothing)
    with pytest.raises(CheckpointError, match="computes logits that are not numbers"):
        make_self_test(bundle)


# --- blocks of rows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["llama_plain", "qwen2", "qwen3"])
def test_steps_in_blocks_compute_what_whole_steps_do(checkpoint: str, compile_tiny: CompileTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.compiler.runtime.batch import Chunk, make_batch

    bundle = open_bundle(compile_tiny(checkpoint, "q8f16"))
    prompt = self_test_of(bundle).prompt_ids
    whole = ReferenceRunner(bundle).forward(make_batch([Chunk(prompt, 0, (0, 1), range(24))], 16)).logits
    monkeypatch.setattr(row_blocks, "BLOCK_ELEMENTS", 700)
    largest = 0
    for step in bundle.manifest.plan("generate").steps:
        for _, weights in row_blocks.row_blocks(bundle, step, prompt):
            largest = max(largest, *(weight.size for weight in weights.values()), 0)
    assert 0 < largest <= 700
    assert relative_error(reference_logits(bundle, prompt, lambda *_: None)[0], whole) < F32
