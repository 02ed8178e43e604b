"""Whole bundles on this machine's CPU: against transformers, against the reference runner, and alone against under load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ragged import ragged_logits, sequences_alone, whole_and_in_chunks
from tiny_models import ARCHITECTURES, CHECKPOINTS
from tolerances import F32, INT15_MODEL, OF_ACTIVATION, relative_error

from nearfar.compiler import quant
from nearfar.compiler.batch import Limits
from nearfar.compiler.bundle import open_bundle
from nearfar.compiler.reference import ReferenceRunner
from nearfar.targets.cpu.runner import CpuRunner

CompileTiny = Callable[..., Path]
ALL_ROWS = Limits(tokens=75, sequences=3, rows=75, pages=20)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_logits_are_those_of_transformers_and_chunks_of_any_size_do_not_change_a_bit(
    checkpoint: str,
    compile_tiny: CompileTiny,
    transformers_logits: Callable[[str], np.ndarray],
    prompt_token_ids: list[int],
) -> None:
    runner = CpuRunner(open_bundle(compile_tiny(checkpoint, "f32", target="cpu")), limits=ALL_ROWS)
    whole = whole_and_in_chunks(runner, prompt_token_ids, 75)
    assert relative_error(whole, transformers_logits(checkpoint)) < F32
    for chunk in (1, 7, 64):
        np.testing.assert_array_equal(whole_and_in_chunks(runner, prompt_token_ids, chunk), whole)
    runner.close()


@pytest.mark.parametrize("checkpoint", ARCHITECTURES)
@pytest.mark.parametrize("quantization", quant.NAMES[:-1])
def test_logits_are_those_of_the_reference_in_the_same_activation_dtype(
    checkpoint: str, quantization: str, compile_tiny: CompileTiny, prompt_token_ids: list[int]
) -> None:
    bundle = open_bundle(compile_tiny(checkpoint, quantization, target="cpu"))
    for activation in quant.by_name(quantization).activations:
        expected = whole_and_in_chunks(ReferenceRunner(bundle, activation=activation), prompt_token_ids, 75)
        runner = CpuRunner(bundle, limits=ALL_ROWS, activation=activation)
        found = whole_and_in_chunks(runner, prompt_token_ids, 75)
        limit = max(OF_ACTIVATION[activation], INT15_MODEL if quantization.startswith("q") else 0)
        assert relative_error(found, expected) < limit, activation
        runner.close()


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_ragged_batch_computes_what_each_sequence_alone_does(checkpoint: str, compile_tiny: CompileTiny) -> None:
    bundle = open_bundle(compile_tiny(checkpoint, "q4f16", target="cpu"))
    runner = CpuRunner(bundle, limits=ALL_ROWS, activation="float32")
    found = ragged_logits(runner)
    reference = sequences_alone(ReferenceRunner(bundle, limits=Limits(sequences=8, pages=20)))
    for mine, alone, expected in zip(found, sequences_alone(runner), reference, strict=True):
        np.testing.assert_array_equal(mine, alone)
        assert relative_error(mine, expected) < INT15_MODEL
    runner.close()
