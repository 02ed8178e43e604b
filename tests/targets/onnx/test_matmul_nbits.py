"""The guard against slow kernels, the order of codes, and the error of the kernels of level 4."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from onnx_cases import relative_rms
from tolerances import ONNX_INT8_KERNEL

from nearfar.compiler import quant
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.quant import Codes
from nearfar.compiler.runtime.errors import QuantizationError
from nearfar.targets.onnx.builder import MICROSOFT, Builder
from nearfar.targets.onnx.matmul_nbits import ACCURACY_LEVEL, BITS, blob_rows, require_fast, zero_rows


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
def test_formats_without_a_fast_kernel_are_refused(
    bits: int, block: int, zero_points: str | None, level: int, message: str
) -> None:
    with pytest.raises(QuantizationError, match=message):
        require_fast(bits, block, zero_points, level)


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_formats_with_a_fast_kernel_are_accepted(bits: int, block: int) -> None:
    require_fast(bits, block)
    require_fast(bits, block, "uint8")


def test_lower_elements_have_the_lower_bits() -> None:
    matrix = np.random.default_rng(0).normal(size=(7, 70)).astype(np.float32)
    planes = quant.by_name("q4f32").pack(matrix)
    blob = blob_rows("q4", planes["q"])
    codes = np.stack([blob & 15, blob >> 4], axis=-1).reshape(7, 3, 32).astype(np.float32)
    weights = ((codes - 8) * planes["s"].astype(np.float32)[..., None]).reshape(7, 96)[:, :70]
    assert np.array_equal(weights, quant.by_name("q4f32").unpack(planes, 70))


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("name", ["q4f32", "q8f16"])
def test_a_product_of_level_4_is_off_by_the_rounding_of_its_inputs(name: str, block: int) -> None:
    """One row and more; one column of the matrix, and more columns than a kernel computes at once; and a last block
    that is partly filled.
    """
    random = np.random.default_rng(block)
    for rows, k, n in ((1, 1024, 1), (1, 72, 33), (3, 352, 17), (33, 2048, 129), (64, 3072, 1024)):
        matrix, x = (random.normal(size=shape).astype(np.float32) for shape in ((n, k), (rows, k)))
        quantization = quant.by_name(name, block)
        planes = quantization.pack(matrix)
        error = relative_rms(product(quantization.kind, block, planes, x), x @ quantization.unpack(planes, k).T)
        assert 0 < error < ONNX_INT8_KERNEL, (rows, k, n)


@pytest.mark.parametrize(("bits", "block"), [(2, 64), (4, 32), (4, 128), (8, 32)])
def test_zero_points_are_those_of_a_checkpoint(bits: int, block: int) -> None:
    random = np.random.default_rng(bits)
    for n, k in ((1, 1024), (33, 3 * block), (129, 2048)):
        form = Codes(bits, block, "z")
        codes = random.integers(0, 1 << bits, (n, k)).astype(np.uint8)
        scales = random.uniform(0.5, 1.5, (n, k // block)).astype(np.float32)
        planes = form.store(codes, scales, random.integers(0, 1 << bits, scales.shape).astype(np.float32))
        x = random.normal(size=(3, k)).astype(np.float32)
        error = relative_rms(product(f"q{bits}", block, planes, x), x @ form.unpack(planes, k).T)
        assert error < ONNX_INT8_KERNEL, (n, k)


@pytest.mark.parametrize("zero", [16, 7.5])
def test_zero_points_that_codes_cannot_hold_are_refused(zero: float) -> None:
    with pytest.raises(QuantizationError, match="whole numbers below 16"):
        zero_rows(np.full((1, 1), zero, np.float32), 4)


def product(kind: str, block: int, planes: Mapping[str, Array], x: Array) -> Array:
    """x (rows, K) times a packed matrix (N, K), by one node."""
    import onnxruntime

    builder, k, n = Builder(), x.shape[1], len(planes["s"])
    builder.add_input("x", "float32", ("rows", k))
    builder.add_output("y", "float32", ("rows", n))
    blocks = -(-k // block)
    codes = builder.constant("codes", blob_rows(kind, planes["q"]).reshape(n, blocks, block * BITS[kind] // 8))
    scales = builder.constant("scales", planes["s"].astype(np.float32).reshape(n, blocks))
    attrs = {"K": k, "N": n, "bits": BITS[kind], "block_size": block, "accuracy_level": ACCURACY_LEVEL}
    zeros = [builder.constant("zeros", zero_rows(planes["z"], BITS[kind]))] if "z" in planes else []
    builder.add("MatMulNBits", ["x", codes, scales, *zeros], "y", domain=MICROSOFT, **attrs)
    session = onnxruntime.InferenceSession(builder.model({}).SerializeToString(), providers=["CPUExecutionProvider"])
    y: Array = session.run(None, {"x": x})[0]
    return y
