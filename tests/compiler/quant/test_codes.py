"""A checkpoint's own integers: where each bit lies, that nothing is rounded, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.compiler import quant
from nearfar.compiler.errors import QuantizationError
from nearfar.compiler.quant import ROW, Codes
from nearfar.compiler.quant.codes import block_of, in_order

FORMS = [Codes(bits, group) for bits in (2, 4, 8) for group in (ROW, 32, 64)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("columns", [1, 37, 64, 200])
def test_integers_and_scales_are_kept_exactly(form: Codes, columns: int) -> None:
    rng = np.random.default_rng(columns)
    integers = rng.integers(-form.zero, form.zero, (5, columns)).astype(np.int8)
    scales = rng.normal(size=(5, form.planes(columns)[1].columns)).astype(np.float32)
    planes = form.store(integers, scales)
    for layout in form.planes(columns):
        plane = planes[layout.name]
        assert (plane.shape, str(plane.dtype)) == ((5, layout.columns), layout.dtype)
    width = columns if form.group == ROW else form.group
    expected = integers.astype(np.float32) * np.repeat(scales, width, axis=1)[:, :columns]
    np.testing.assert_array_equal(form.unpack(planes, columns), expected)
    assert (form.codes(planes)[:, columns:] == form.zero).all()
    # A part of the rows is the rows of a part.
    part = form.store(integers[1:3], scales[1:3])
    assert all((part[name] == planes[name][1:3]).all() for name in planes)


def test_2_bit_codes_lie_four_apart_in_a_byte() -> None:
    integers = np.tile(np.arange(-2, 2, dtype=np.int8), 8)[None]
    integers[0, 4] = 1
    (words,) = Codes(2).store(integers, np.ones((1, 1), np.float32))["q"]
    # Byte b holds elements b, b + 4, b + 8 and b + 12, the first in its lowest bits.
    assert [f"{word:08x}" for word in words] == ["ffaa550c", "ffaa5500"]


@pytest.mark.parametrize(("bits", "name"), [(4, "q4f32"), (8, "q8f16")])
def test_4_and_8_bits_are_in_the_order_of_our_own_formats(bits: int, name: str) -> None:
    form, own = Codes(bits, 32), quant.by_name(name)
    integers = np.random.default_rng(bits).integers(-form.zero, form.zero, (3, 64)).astype(np.int8)
    planes = form.store(integers, np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(own.unpack(planes, 64), integers.astype(np.float32))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bytes_in_order_have_lower_elements_in_lower_bits(bits: int) -> None:
    form = Codes(bits)
    integers = np.random.default_rng(bits).integers(-form.zero, form.zero, (3, 64)).astype(np.int8)
    ordered = in_order(form.store(integers, np.ones((3, 1), np.float32))["q"].view(np.uint32), bits)
    parts = ordered[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    np.testing.assert_array_equal(parts.reshape(3, 64).astype(int) - form.zero, integers)


def test_names_lead_to_their_formats() -> None:
    for form in FORMS:
        assert quant.form_by_name(form.name) == form
    assert quant.form_by_name("q4f16") == quant.by_name("q4f16")


@pytest.mark.parametrize("name", ["q3c", "q4", "q4g", "q4g33", "q4g0", "q4c32", "q4g9999999999", "Q4c"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(QuantizationError, match=f"'{name}' is not known"):
        quant.form_by_name(name)


def test_what_kernels_cannot_read_is_refused() -> None:
    with pytest.raises(QuantizationError, match="codes of 3 bits"):
        Codes(3)
    with pytest.raises(QuantizationError, match="a scale for 24 columns"):
        Codes(4, 24)
    with pytest.raises(QuantizationError, match="NaN or infinity"):
        Codes(4).store(np.zeros((2, 4), np.int8), np.array([[1], [np.nan]], np.float32))


def test_blocks_of_other_frameworks_divide_the_columns() -> None:
    assert [block_of(columns) for columns in (384, 192, 96, 70)] == [128, 64, 32, 32]
