"""What quantization costs an encoder: the default format, and the note of a compile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_encoders import make_encoder

from nearfar.compiler.formats import load
from nearfar.compiler.measure.vector_loss import RoundedReference, loss_notes, passages
from nearfar.compiler.measure.vector_quality import unit_rows
from nearfar.compiler.measure.vector_reference import VectorReference
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.stored_forms import choose_quantization
from nearfar.compiler.quant import by_name
from nearfar.compiler.runtime.errors import OutputError

TEXTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13, 14, 15, 16, 17]]


@pytest.mark.parametrize(("family", "default"), [("bert", "q8f16"), ("gemma3_text", "q8f16"), ("qwen3", "q4f16")])
def test_encoders_have_8_bits_by_default(family: str, default: str, tmp_path: Path) -> None:
    make_encoder(family, "lasttoken" if family == "qwen3" else "mean_tokens", tmp_path)
    chosen, _ = choose_quantization(None, load(str(tmp_path)), lambda _: None)
    assert chosen.name == default
    assert choose_quantization("q4f16", load(str(tmp_path)), lambda _: None)[0].name == "q4f16"


def test_fewer_bits_report_the_cosines_of_rounded_weights(tmp_path: Path) -> None:
    make_encoder("bert", "mean_tokens", tmp_path)
    checkpoint, q4 = load(str(tmp_path)), by_name("q4f16")
    (note,) = loss_notes(checkpoint, q4)
    assert f"with q4f16, the vectors of {len(passages())} texts have a cosine of 0.9" in note
    for name in ("q8f16", "f16", "f32"):
        assert not list(loss_notes(checkpoint, by_name(name)))
    expected = VectorReference(checkpoint, 32).vectors(TEXTS)
    found = RoundedReference(checkpoint, 32, q4).vectors(TEXTS)
    exact = RoundedReference(checkpoint, 32, by_name("f32")).vectors(TEXTS)
    np.testing.assert_array_equal(exact, expected)
    assert 0.5 < (unit_rows(found) * unit_rows(expected)).sum(axis=1).min() < 0.9999


def test_a_compile_reports_the_loss(tmp_path: Path) -> None:
    make_encoder("bert", "mean_tokens", tmp_path / "model")
    notes: list[str] = []
    # The error ends the compile before the kernels.
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for quantization in ("q4f16", "q8f16"):
        options = CompileOptions(target="webgpu", quantization=quantization, context=32)
        with pytest.raises(OutputError):
            compile_model(str(tmp_path / "model"), tmp_path / "taken", options, note=notes.append)
    assert [note for note in notes if "have a cosine of" in note] == [note for note in notes if "with q4f16" in note]
    assert sum("with q4f16" in note for note in notes) == 1
