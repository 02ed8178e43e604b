"""The guard against slow kernels, and the order of codes."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.compiler import quant
from nearfar.compiler.errors import QuantizationError
from nearfar.targets.onnx.matmul_nbits import blob_rows, require_fast


@pytest.mark.parametrize(
    ("bits", "block", "zero_points", "level", "message"),
    [
        (3, 32, None, 4, "3 bits"),
        (4, 16, None, 4, "blocks of 32, 64 or 128"),
        (2, 256, None, 4, "blocks of 32, 64 or 128"),
        (4, 32, "float16", 4, "zero points of float16"),
        (8, 32, None, 1, "accuracy level 1"),
    ],
)
def test_what_has_no_fast_kernel_is_refused(bits: int, block: int, zero_points: str | None, level: int, message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        require_fast(bits, block, zero_points, level)


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_what_has_a_fast_kernel_passes(bits: int, block: int) -> None:
    require_fast(bits, block)
    require_fast(bits, block, "uint8")


def test_lower_elements_have_the_lower_bits() -> None:
    matrix = np.random.default_rng(0).normal(size=(7, 70)).astype(np.float32)
    planes = quant.by_name("q4f32").pack(matrix)
    blob = blob_rows("q4", planes["q"])
    codes = np.stack([blob & 15, blob >> 4], axis=-1).reshape(7, 3, 32).astype(np.float32)
    weights = ((codes - 8) * planes["s"].astype(np.float32)[..., None]).reshape(7, 96)[:, :70]
    assert np.array_equal(weights, quant.by_name("q4f32").unpack(planes, 70))
