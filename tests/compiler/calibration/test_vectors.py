"""--quality best of embedding models: formats and codes by the vectors, within the budget of bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_encoders import make_encoder
from tolerances import relative_error

from nearfar.compiler.calibration import vectors
from nearfar.compiler.calibration.choice import CANDIDATES
from nearfar.compiler.calibration.fit import Fitted, fit
from nearfar.compiler.calibration.vectors import BUILT_IN, fit_vectors, sample_texts
from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import Checkpoint
from nearfar.compiler.measure.vector_loss import RoundedReference
from nearfar.compiler.measure.vector_quality import unit_rows
from nearfar.compiler.measure.vector_reference import VectorReference
from nearfar.compiler.quant import by_name
from nearfar.compiler.quant.base import FloatArray
from nearfar.compiler.quant.codes import Codes
from nearfar.compiler.runtime.errors import RequestError


@pytest.fixture(params=["bert", pytest.param("gemma3_text", marks=pytest.mark.exhaustive)])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    make_encoder(request.param, "mean_tokens", tmp_path)
    return load(str(tmp_path))


def test_the_vectors_are_nearer_than_those_of_rounding_within_the_budget(checkpoint: Checkpoint) -> None:
    sample = sample_texts(checkpoint, None)
    assert sample.source == BUILT_IN
    texts = sample.windows[:9]
    quantized = fit_vectors(checkpoint, sample, 5.5)
    record = quantized.record
    assert 4.5 < record.bits <= 5.5
    assert record.cosine_mean is not None
    assert record.cosine_min is not None
    fitted = VectorReference(checkpoint, sample.window)
    fitted._graph, fitted.checkpoint = quantized.on(fitted._graph), quantized.checkpoint(checkpoint)
    expected = unit_rows(VectorReference(checkpoint, sample.window).vectors(texts))
    rounded = unit_rows(RoundedReference(checkpoint, sample.window, by_name("q4f16")).vectors(texts))
    found = unit_rows(fitted.vectors(texts))
    assert (1 - (expected * found).sum(axis=1)).mean() < (1 - (expected * rounded).sum(axis=1)).mean()
    assert 0 < 1 - record.cosine_mean <= 1 - record.cosine_min < 0.1
    # More bits are nearer.
    more = fit_vectors(checkpoint, sample, 7).record
    assert more.cosine_mean is not None
    assert more.bits > record.bits
    assert more.cosine_mean > record.cosine_mean


def test_a_matrix_is_fitted_to_inputs_with_the_errors_of_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_encoder("bert", "mean_tokens", tmp_path)
    checkpoint = load(str(tmp_path))
    sample = sample_texts(checkpoint, None)
    few = replace(sample, windows=sample.windows[:5])
    hessians: dict[int, FloatArray] = {}
    for form in CANDIDATES[0], CANDIDATES[-1]:

        def recorded(matrix: FloatArray, hessian: FloatArray, form: Codes, sweeps: int) -> Fitted:
            hessians[form.bits] = hessian
            return fit(matrix, hessian, form, min(sweeps, 1))

        monkeypatch.setattr(vectors, "fit", recorded)
        monkeypatch.setattr(
            vectors, "choose", lambda units, _, form=form: {name: form for unit in units for name in unit.names}
        )
        fit_vectors(checkpoint, few, 4.5)
    # The inputs of the last matrix, after matrices of 2 and of 8 bits.
    assert relative_error(hessians[2], hessians[8]) > 0.05


def test_a_budget_that_cannot_be_met_and_a_short_text_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be met"):
        fit_vectors(checkpoint, sample_texts(checkpoint, None), 1.2)
    (tmp_path / "short.txt").write_text("Too short.")
    with pytest.raises(RequestError, match="pass paragraphs of at least 1024 tokens"):
        sample_texts(checkpoint, tmp_path / "short.txt")
