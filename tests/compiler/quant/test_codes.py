"""A checkpoint's own integers: the layout of each bit, exact values, and refused forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nearfar.compiler import quant
from nearfar.compiler.quant import ROW, Codes
from nearfar.compiler.quant.codes import block_of, in_order
from nearfar.compiler.runtime.errors import QuantizationError

FORMS = [
    *(Codes(bits, group) for bits in (2, 4, 8) for group in (ROW, 32, 64)),
    *(Codes(bits, 16) for bits in (2, 3, 6)),
    *(Codes(bits, 32, "b") for bits in (2, 4, 5, 8)),
    *(Codes(bits, group, "z", "float16") for bits in (3, 4, 8) for group in (ROW, 128)),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("columns", [1, 37, 64, 200])
def test_codes_and_scales_are_kept_exactly(form: Codes, columns: int) -> None:
    rng = np.random.default_rng(columns)
    codes = rng.integers(0, 1 << form.bits, (5, columns)).astype(np.uint8)
    size = 5, form.scales_of(columns)
    scales = rng.normal(size=size).astype(form.scale)
    # A zero point may lie above all codes, as GPTQ's can.
    offsets = {
        "": None,
        "z": rng.integers(0, (1 << form.bits) + 1, size).astype(np.float32),
        "b": rng.normal(size=size).astype(form.scale),
    }[form.offset]
    planes = form.store(codes, scales, offsets)
    assert list(planes) == [layout.name for layout in form.planes(columns)]
    for layout in form.planes(columns):
        plane = planes[layout.name]
        assert (plane.shape, str(plane.dtype)) == ((5, layout.columns), layout.dtype)
    width = columns if form.group == ROW else form.group

    def of_columns(factors: Any) -> Any:
        return np.repeat(factors.astype(np.float64), width, axis=1)[:, :columns]

    zero, bias = (of_columns(offsets) if form.offset == name else 0 for name in ("z", "b"))
    if not form.offset:
        zero = 1 << (form.bits - 1)
    expected = (codes.astype(np.float64) - zero) * of_columns(scales) + bias
    np.testing.assert_allclose(form.unpack(planes, columns), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(form.codes(planes)[:, :columns], codes)
    assert (form.codes(planes)[:, columns:] == (0 if form.offset else form.zero)).all()
    # Storing a part of the rows gives the same rows as storing all of them.
    part = form.store(codes[1:3], scales[1:3], None if offsets is None else offsets[1:3])
    assert all((part[name] == planes[name][1:3]).all() for name in planes)


def test_2_bit_codes_lie_four_apart_in_a_byte() -> None:
    codes = np.tile(np.arange(4, dtype=np.uint8), 8)[None]
    codes[0, 4] = 3
    (words,) = Codes(2).store(codes, np.ones((1, 1), np.float32))["q"]
    # Byte b holds elements b, b + 4, b + 8 and b + 12, the first in its lowest bits.
    assert [f"{word:08x}" for word in words] == ["ffaa550c", "ffaa5500"]


def test_the_high_bits_of_codes_are_a_plane_of_their_own() -> None:
    codes = np.zeros((1, 32), np.uint8)
    # Element 6 is in byte 2, and in its second part.
    codes[0, 6] = 0b110_001
    planes = Codes(6).store(codes, np.ones((1, 1), np.float32))
    assert [f"{word:08x}" for word in planes["q"][0]] == ["00100000", *3 * ["00000000"]]
    assert [f"{word:08x}" for word in planes["h"][0]] == ["000c0000", "00000000"]
    # A word of single bits holds 32 elements: bit i of byte b belongs to element 4 i + b.
    codes[0, 6] = 0b1_0000
    codes[0, 29] = 0b1_0000
    planes = Codes(5).store(codes, np.ones((1, 1), np.float32))
    assert [f"{word:08x}" for word in planes["h"][0]] == [f"{1 << 17 | 1 << 15:08x}"]


@pytest.mark.parametrize(("bits", "name"), [(4, "q4f32"), (8, "q8f16")])
def test_4_and_8_bits_are_in_the_order_of_our_own_formats(bits: int, name: str) -> None:
    form, own = Codes(bits, 32), quant.by_name(name)
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 64)).astype(np.uint8)
    planes = form.store(codes, np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(own.unpack(planes, 64), codes.astype(np.float32) - form.zero)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bytes_in_order_have_lower_elements_in_lower_bits(bits: int) -> None:
    form = Codes(bits)
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 64)).astype(np.uint8)
    ordered = in_order(form.store(codes, np.ones((3, 1), np.float32))["q"].view(np.uint32), bits)
    parts = ordered[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    np.testing.assert_array_equal(parts.reshape(3, 64), codes)


def test_names_lead_to_their_formats() -> None:
    for form in FORMS:
        assert quant.form_by_name(form.name) == form
    assert quant.form_by_name("q4f16") == quant.by_name("q4f16")


@pytest.mark.parametrize(
    "name", ["q7c", "q4", "q4g", "q4g33", "q4g0", "q4c32", "q4g9999999999", "Q4c", "q4czb", "q4c_f32"]
)
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(QuantizationError, match=f"'{name}' is not known"):
        quant.form_by_name(name)


def test_formats_that_kernels_cannot_read_are_refused() -> None:
    with pytest.raises(QuantizationError, match="codes of 7 bits"):
        Codes(7)
    with pytest.raises(QuantizationError, match="a scale for 24 columns"):
        Codes(4, 24)
    with pytest.raises(QuantizationError, match="offset 'm'"):
        Codes(4, 32, "m")
    zeros = np.zeros((2, 4), np.uint8)
    with pytest.raises(QuantizationError, match="NaN or infinity"):
        Codes(4).store(zeros, np.array([[1], [np.nan]], np.float32))
    with pytest.raises(QuantizationError, match="not exact in float16"):
        Codes(4, scale="float16").store(zeros, np.array([[1], [0.1]], np.float32))


def test_blocks_of_other_frameworks_divide_the_columns() -> None:
    assert [block_of(columns) for columns in (384, 192, 96, 70)] == [128, 64, 32, 32]
