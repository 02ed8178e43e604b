"""The weight formats: the error of packing and unpacking, exact values, refused input, and the layout of each bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nearfar.compiler import quant
from nearfar.compiler.quant.base import padded_columns
from nearfar.compiler.quant.q4 import SMALLEST_NORMAL
from nearfar.compiler.runtime.errors import QuantizationError

COLUMNS = (1, 31, 32, 33, 72, 96)
FAST = settings(max_examples=25, derandomize=True)

# In units of a group's largest magnitude: half a step, or a full step for Q4, whose codes do not reach the end of the
# other sign; and the rounding of the scale.
STEP = {"q4f16": 1 / 8, "q4f32": 1 / 8, "q8f16": 1 / 254, "f16": 0, "f32": 0}
ROUNDING = {"q4f16": 2.0**-11, "q4f32": 2.0**-22, "q8f16": 2.0**-11, "f16": 2.0**-11, "f32": 0}

# Numbers so small that f32 itself loses their digits have a test of their own.
ELEMENTS = st.floats(-100, 100, width=32).map(lambda value: value if abs(value) > 1e-30 else 0.0)
matrices = st.sampled_from(COLUMNS).flatmap(
    lambda columns: hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(columns)), elements=ELEMENTS)
)


def round_trip(name: str, matrix: np.ndarray) -> np.ndarray:
    fmt = quant.by_name(name)
    return fmt.unpack(fmt.pack(matrix), matrix.shape[1])


def largest_of_groups(matrix: np.ndarray) -> np.ndarray:
    """The largest magnitude of the group of 32 that each element belongs to."""
    padded = np.pad(np.abs(matrix), ((0, 0), (0, -matrix.shape[1] % 32)))
    return np.repeat(padded.reshape(len(matrix), -1, 32).max(-1), 32, axis=1)[:, : matrix.shape[1]]


@pytest.mark.parametrize("name", quant.NAMES)
@FAST
@given(matrix=matrices)
def test_unpacking_is_within_a_step_of_the_packed_values(name: str, matrix: np.ndarray) -> None:
    bound = largest_of_groups(matrix) * (STEP[name] + ROUNDING[name]) * 1.001
    # A scale is never below f16's smallest normal number.
    smallest = {"q4f16": 8, "q8f16": 127}.get(name, 0) * SMALLEST_NORMAL["float16"] + (2.0**-24 if name == "f16" else 0)
    assert (np.abs(round_trip(name, matrix) - matrix) <= np.maximum(bound, smallest)).all()


@pytest.mark.parametrize("name", quant.NAMES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_planes_have_the_shape_and_dtype_of_the_layout(name: str, columns: int) -> None:
    fmt = quant.by_name(name)
    planes = fmt.pack(np.random.default_rng(1).normal(size=(5, columns)).astype(np.float32))
    layouts = fmt.planes(columns)
    assert list(planes) == [layout.name for layout in layouts]
    for layout in layouts:
        plane = planes[layout.name]
        assert (plane.shape, str(plane.dtype)) == ((5, layout.columns), layout.dtype)
        assert plane.flags.c_contiguous
        assert plane.nbytes == 5 * layout.row_bytes
    assert fmt.unpack(planes, columns).shape == (5, columns)


@pytest.mark.parametrize("name", quant.NAMES)
@FAST
@given(matrix=matrices, block=st.integers(1, 3))
def test_packing_blocks_of_rows_equals_packing_the_matrix(name: str, matrix: np.ndarray, block: int) -> None:
    fmt = quant.by_name(name)
    whole = fmt.pack(matrix)
    parts = [fmt.pack(matrix[start : start + block]) for start in range(0, len(matrix), block)]
    for plane, expected in whole.items():
        assert b"".join(part[plane].tobytes() for part in parts) == expected.tobytes()


@pytest.mark.parametrize("name", quant.NAMES)
@FAST
@given(matrix=matrices)
def test_unpacked_weights_pack_to_the_same_numbers_again(name: str, matrix: np.ndarray) -> None:
    once = round_trip(name, matrix)
    again = round_trip(name, once)
    np.testing.assert_allclose(again, once, rtol=2.0**-10, atol=SMALLEST_NORMAL["float16"] * 127)


@pytest.mark.parametrize("name", ["q4f16", "q4f32"])
def test_every_multiple_of_the_scale_from_minus_8_to_7_is_exact_in_4_bits(name: str) -> None:
    matrix = np.tile(np.arange(-8, 8, dtype=np.float32), 2)[None] * np.array([[0.25], [-0.5], [3.0]], np.float32)
    np.testing.assert_array_equal(round_trip(name, matrix), matrix)


def test_every_multiple_of_the_scale_from_minus_127_to_127_is_exact_in_8_bits() -> None:
    values = np.arange(-127, 128, dtype=np.float32)
    # Each group's scale comes from its largest element, so each group contains 127.
    matrix = np.stack([np.append(values[start : start + 31], 127) for start in range(0, 255 - 31, 31)]).astype(
        np.float32
    ) * np.float32(0.5)
    np.testing.assert_array_equal(round_trip("q8f16", matrix), matrix)


@pytest.mark.parametrize("name", ["q4f16", "q4f32"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_magnitude_of_a_group_is_exact_in_4_bits(name: str, sign: int) -> None:
    matrix = np.linspace(-0.5, 0.5, 32, dtype=np.float32)[None].copy()
    matrix[0, 5] = sign * 4
    assert round_trip(name, matrix)[0, 5] == sign * 4


@pytest.mark.parametrize("name", quant.NAMES)
def test_zeros_stay_zeros_beside_other_groups(name: str) -> None:
    matrix = np.zeros((2, 72), np.float32)
    matrix[1, 40] = 127
    np.testing.assert_array_equal(round_trip(name, matrix), matrix)


@pytest.mark.parametrize("name", quant.NAMES)
@pytest.mark.parametrize("value", [1.2e-38, -3e-39, 1e-45])
def test_groups_of_numbers_at_the_end_of_f32_pack_to_almost_zero(name: str, value: float) -> None:
    matrix = np.zeros((1, 32), np.float32)
    matrix[0, :5] = value
    assert np.abs(round_trip(name, matrix)).max() < 0.01
    assert not round_trip(name, matrix)[0, 5:].any()


@pytest.mark.parametrize("name", ["q4f16", "q8f16"])
@FAST
@given(magnitude=st.floats(1e-38, 1e-3), sign=st.sampled_from([-1, 1]))
def test_an_f16_scale_is_zero_or_a_normal_number(name: str, magnitude: float, sign: int) -> None:
    matrix = np.full((1, 32), sign * magnitude, np.float32)
    scale = np.abs(quant.by_name(name).pack(matrix)["s"].astype(np.float64))
    assert ((scale == 0) | (scale >= SMALLEST_NORMAL["float16"])).all()
    assert np.isfinite(round_trip(name, matrix)).all()


@pytest.mark.parametrize("name", quant.NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(name: str, value: float) -> None:
    matrix = np.ones((3, 40), np.float32)
    matrix[2, 39] = value
    with pytest.raises(QuantizationError, match="NaN or infinity"):
        quant.by_name(name).pack(matrix)


@pytest.mark.parametrize(
    ("name", "fits", "too_large"),
    [("f16", 65504, 65536), ("q4f16", 65504 * 8, 65536 * 8), ("q8f16", 65504 * 127, 65536 * 127)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_weights_too_large_for_f16_are_refused_with_advice(name: str, fits: float, too_large: float, sign: int) -> None:
    matrix = np.zeros((2, 33), np.float32)
    matrix[1, 32] = sign * fits
    assert np.isfinite(round_trip(name, matrix)).all()
    matrix[1, 32] = sign * too_large
    with pytest.raises(QuantizationError, match="f32"):
        quant.by_name(name).pack(matrix)


@pytest.mark.parametrize("name", ["q4f32", "f32"])
def test_f32_formats_accept_the_largest_numbers(name: str) -> None:
    matrix = np.full((1, 32), 3e38, np.float32)
    np.testing.assert_allclose(round_trip(name, matrix), matrix, rtol=1e-6)


def test_4_bit_codes_lie_in_low_nibbles_then_in_high_ones() -> None:
    # Codes 0 to 15 of the first sixteen weights, scale 0.5; then fifteen times 0 (code 8), and -4, the largest
    # magnitude (code 0).
    matrix = np.concatenate([np.arange(-8, 8), np.zeros(15), [-8]]).astype(np.float32)[None] * np.float32(0.5)
    planes = quant.by_name("q4f16").pack(matrix)
    assert [f"{word:08x}" for word in planes["q"][0]] == ["73625140", "fbead9c8", "88888888", "08888888"]
    assert planes["s"].tolist() == [[0.5]]


def test_8_bit_codes_are_bytes_in_order() -> None:
    matrix = np.concatenate([[-127, -1, 0, 1], np.zeros(27), [127]]).astype(np.float32)[None] * np.float32(0.25)
    planes = quant.by_name("q8f16").pack(matrix)
    assert [f"{word:08x}" for word in planes["q"][0]] == ["81807f01", *["80808080"] * 6, "ff808080"]
    assert planes["s"].tolist() == [[0.25]]


@pytest.mark.parametrize("name", quant.NAMES)
def test_columns_beyond_the_last_unpack_to_zero(name: str) -> None:
    fmt = quant.by_name(name)
    planes = fmt.pack(np.random.default_rng(2).normal(size=(3, 37)).astype(np.float32))
    assert not fmt.unpack(planes, padded_columns(37))[:, 37:].any()


def test_an_unknown_quantization_is_refused_with_the_known_ones() -> None:
    with pytest.raises(QuantizationError, match="'q5' is not known; known: q4f16, q4f32"):
        quant.by_name("q5")


# --- groups of other sizes, for exports ---


@pytest.mark.parametrize("group", [64, 128])
@pytest.mark.parametrize("name", ["q4f16", "q4f32", "q8f16"])
def test_a_larger_group_shares_one_scale_and_keeps_its_largest_value(name: str, group: int) -> None:
    fmt = quant.by_name(name, group)
    matrix = np.random.default_rng(4).normal(size=(3, 200)).astype(np.float32)
    planes = fmt.pack(matrix)
    assert planes["s"].shape == (3, -(-200 // group))
    for layout in fmt.planes(200):
        assert planes[layout.name].shape == (3, layout.columns)
    error = np.abs(fmt.unpack(planes, 200) - matrix)
    padded = np.pad(np.abs(matrix), ((0, 0), (0, -200 % group))).reshape(3, -1, group)
    bound = np.repeat(padded.max(-1), group, axis=1)[:, :200] * (STEP[name] + ROUNDING[name]) * 1.001
    assert (error <= bound).all()
    # One scale for a complete row is coarser than one for each part of it.
    assert error.mean() > np.abs(quant.by_name(name).unpack(quant.by_name(name).pack(matrix), 200) - matrix).mean()


def test_groups_that_no_kernel_supports_are_refused() -> None:
    with pytest.raises(QuantizationError, match="groups of 48 is not known; q4 and q8 take 32, 64, 128"):
        quant.by_name("q4f16", 48)
    with pytest.raises(QuantizationError, match="'f16' with groups of 64"):
        quant.by_name("f16", 64)
