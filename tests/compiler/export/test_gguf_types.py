"""The type of GGUF that holds each format exactly, with its values in the package gguf."""

from __future__ import annotations

import dataclasses
from typing import Any

import gguf
import numpy as np
import pytest

from nearfar.compiler.export.bundle_tensors import BundleTensor
from nearfar.compiler.export.gguf_types import Exact, Inexact, exact_type
from nearfar.compiler.quant import Codes, by_name, form_by_name

ROWS, COLUMNS = 5, 192
ALL = np.arange(ROWS)


@dataclasses.dataclass(frozen=True, slots=True)
class Stored(BundleTensor):
    """A tensor whose planes are given."""

    given: Any = None

    def planes(self, rows: Any) -> Any:
        return {name: plane[rows] for name, plane in self.given.items()}


def tensor_of(name: str, columns: int = COLUMNS, zeros: Any = None, scale: float = 1.0) -> Stored:
    form = form_by_name(name)
    rng = np.random.default_rng(len(name))
    if isinstance(form, Codes):
        codes = rng.integers(0, 1 << form.bits, (ROWS, columns), np.uint8)
        shape = ROWS, form.scales_of(columns)
        scales = rng.uniform(0.01, 0.1, shape).astype(np.float16).astype(np.float32) * np.float32(scale)
        offsets = zeros if form.offset == "z" else -scales if form.offset == "b" else None
        planes: Any = form.store(codes, scales, offsets)
    else:
        planes = by_name(name).pack(rng.standard_normal((ROWS, columns)).astype(np.float32))
    return Stored(None, name, (ROWS, columns), form, (), planes)  # type: ignore[arg-type]


def zero_points(high: int, groups: int) -> Any:
    return np.random.default_rng(1).integers(0, high + 1, (ROWS, groups)).astype(np.float32)


CASES = {
    "q4f16": "Q4_0", "q8f16": "Q8_0", "q4g32_f16": "Q4_0", "q4g64_f16": "Q4_0", "q2c_f16": "Q4_0", "q3g32_f16": "Q4_0",
    "q5g32_f16": "Q5_0", "q6g64_f16": "Q8_0", "q8g32_f16": "Q8_0", "q4g32b_f16": "Q4_1", "q2g32b_f16": "Q4_1",
    "q5g32b_f16": "Q5_1", "q4g32": "Q4_0", "q4g64z_f16": "Q5_0", "q2g64z_f16": "Q4_0", "q4f32": None,
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), CASES.items())
def test_values_are_those_of_the_bundle(name: str, kind: str | None) -> None:
    bits = int(name[1])
    tensor = tensor_of(name, zeros=zero_points((1 << bits) - 1, COLUMNS // 64) if "z" in name else None)
    found = exact_type(tensor)
    if kind is None:
        # Scales of float32.
        assert isinstance(found, Inexact)
        return
    assert isinstance(found, Exact)
    assert found.kind == kind
    values = gguf.quants.dequantize(np.asarray(found.read(ALL)), gguf.GGMLQuantizationType[kind])
    assert tensor.form is not None
    np.testing.assert_array_equal(values, tensor.form.unpack(tensor.given, COLUMNS))


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (tensor_of("q4f16", columns=48), "rows of 48 weights are not whole blocks of 32"),
        (tensor_of("q6g16"), "scales are for 16 weights"),
        (tensor_of("q4g32", scale=1 / 3), "scales or offsets are not float16 numbers"),
        (tensor_of("q4g64z_f16", zeros=np.full((ROWS, 3), 7.5)), "scales or offsets are not float16 numbers"),
        (tensor_of("q8g64z_f16", zeros=zero_points(255, 3)), "do not fit 8 bits"),
        (tensor_of("q6g32b_f16"), "no type of 6 bits with a bias"),
    ],
)
def test_what_no_type_holds_has_a_reason(tensor: Stored, reason: str) -> None:
    found = exact_type(tensor)
    assert isinstance(found, Inexact)
    assert reason in found.reason
