"""The measured cost of formats that replace a quantized checkpoint's own."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nearfar.compiler import quant
from nearfar.compiler.formats.checkpoint import DequantizedMatrix, StoredMatrix
from nearfar.compiler.pipeline.rounding import SAMPLE_ROWS, rounding_notes
from nearfar.compiler.quant import Codes
from nearfar.compiler.runtime.errors import QuantizationError

ROWS, COLUMNS = 40, 96
WEIGHTS = np.random.default_rng(3).normal(size=(ROWS, COLUMNS)).astype(np.float32)
MIDDLE = WEIGHTS[12:28]


def notes(*tensors: Any, name: str, keeps_forms: bool) -> list[str]:
    checkpoint: Any = SimpleNamespace(path=Path("model"), tensors={tensor.name: tensor for tensor in tensors})
    return list(rounding_notes(checkpoint, quant.by_name(name), keeps_forms=keeps_forms))


def stored(**exact: Any) -> StoredMatrix:
    """A matrix of 8-bit codes."""
    form = Codes(8, 32)
    codes = np.clip(np.rint(WEIGHTS * 32) + 128, 0, 255).astype(np.uint8)
    scales = np.full((ROWS, 3), 1 / 32, np.float32)
    return StoredMatrix(
        "stored", (ROWS, COLUMNS), form, lambda start, stop: form.store(codes[start:stop], scales[start:stop]), **exact
    )


def floats(weights: Any = WEIGHTS) -> DequantizedMatrix:
    return DequantizedMatrix("floats", (ROWS, COLUMNS), "table", lambda start, stop: weights[start:stop])


def measured(text: str) -> float:
    match = re.search(r"changes their weights by (\S+) of their size", text)
    assert match is not None, text
    return float(match[1])


def relative(found: Any) -> float:
    return float(np.linalg.norm(found - MIDDLE) / np.linalg.norm(MIDDLE))


@pytest.mark.parametrize("name", ["f16", "q4f16", "q8f16"])
def test_the_error_is_that_of_the_middle_rows(name: str) -> None:
    assert len(MIDDLE) == SAMPLE_ROWS
    form = quant.by_name(name)
    (text,) = notes(floats(), name=name, keeps_forms=True)
    assert f"model: 1 matrices of table become {name}" in text
    assert measured(text) == pytest.approx(relative(form.unpack(form.pack(MIDDLE), COLUMNS)), rel=0.06)


def test_codes_that_stay_cost_nothing_unless_they_round_their_source() -> None:
    assert notes(stored(), name="f16", keeps_forms=True) == []
    (text,) = notes(stored(source="nf4", exact=lambda start, stop: WEIGHTS[start:stop]), name="f16", keeps_forms=True)
    assert "1 matrices of nf4 become q8g32" in text
    assert measured(text) == pytest.approx(relative(stored().rows(12, 28)), rel=0.06)


def test_converted_codes_are_compared_with_what_they_meant() -> None:
    (text,) = notes(stored(), name="q4f16", keeps_forms=False)
    assert "1 matrices of q8g32 become q4f16" in text
    assert 0.05 < measured(text) < 0.15


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(QuantizationError, match="model: floats: weights exceed f16's largest value"):
        notes(floats(WEIGHTS * 1e6), name="f16", keeps_forms=True)
