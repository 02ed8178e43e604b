"""MLX reads back the values of our weight formats, and formats that it cannot read are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_planes import random_planes
from tolerances import BF16_ROUNDING, F32, relative_error

from nearfar.compiler import quant
from nearfar.compiler.ir.graph import Parameter, Source
from nearfar.compiler.quant import ROW, Codes
from nearfar.compiler.runtime.errors import QuantizationError
from nearfar.targets.mlx.packing import Packing


def parameter(rows: int, columns: int | None) -> Parameter:
    return Parameter("some.weight", (Source("some.weight", 0, rows),), columns)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(
    ("name", "activation"), [("q4f16", "float16"), ("q4f32", "float32"), ("q8f16", "float16"), ("q8f16", "float32")]
)
def test_mlx_dequantizes_to_the_weights_of_a_plan(name: str, activation: str, group: int, mlx: Any) -> None:
    matrix = np.random.default_rng(group).normal(size=(5, 384)).astype(np.float32)
    quantization = quant.by_name(name, group)
    packing = Packing(quantization, activation)
    codes, scales, biases = packing.pack(parameter(5, 384), matrix)
    given = [mlx.array(array) for array in (codes, scales.astype(np.float32), biases.astype(np.float32))]
    bits = 4 if name.startswith("q4") else 8
    found = np.array(mlx.dequantize(*given, group_size=group, bits=bits))
    expected = quantization.unpack(quantization.pack(matrix), 384)
    # Float16 scales times codes are exact. With float32 scales, the sum with the bias is rounded once more.
    np.testing.assert_array_equal(found, expected) if name.endswith("f16") else np.testing.assert_allclose(
        found, expected, rtol=F32
    )
    shapes = [shape for _, shape in packing.tensors(parameter(5, 384)).values()]
    assert [array.shape for array in (codes, scales, biases)] == shapes
    assert scales.dtype == biases.dtype == np.dtype(activation)


@pytest.mark.parametrize("offset", ["", "z", "b"])
@pytest.mark.parametrize(("bits", "group"), [(2, 64), (3, 32), (4, 128), (5, 32), (6, 64), (8, 256), (4, ROW)])
def test_mlx_dequantizes_a_checkpoints_codes(bits: int, group: int, offset: str, mlx: Any) -> None:
    form = Codes(bits, group, offset)
    planes = random_planes(form, np.random.default_rng(bits), 7, 768)
    matrix = replace(parameter(7, 768), form=form.name)
    packing = Packing(quant.by_name("f32"), "float32")
    mlx_group, mlx_bits = packing.group_of(matrix) or (0, 0)
    arrays = [mlx.array(array) for array in packing.pack_planes(matrix, planes)]
    found = np.array(mlx.dequantize(*arrays, group_size=mlx_group, bits=mlx_bits))
    np.testing.assert_allclose(found, form.unpack(planes, 768), rtol=1e-5, atol=1e-5)
    assert [array.shape for array in arrays] == [shape for _, shape in packing.tensors(matrix).values()]


def test_groups_that_mlx_lacks_are_refused_by_name() -> None:
    matrix = replace(parameter(7, 768), form="q6g16")
    with pytest.raises(QuantizationError, match=r"scales of q6g16, and MLX needs .* --target webgpu, cpu or cuda"):
        Packing(quant.by_name("f32"), "float32").tensors(matrix)


def test_bfloat16_is_rounded_as_mlx_rounds(mlx: Any) -> None:
    values = np.random.default_rng(0).normal(size=4096).astype(np.float32) * np.float32(1e6)
    (found,) = Packing(quant.by_name("f16"), "bfloat16").pack(parameter(4096, None), values)
    np.testing.assert_array_equal(found, np.array(mlx.array(values).astype(mlx.bfloat16).view(mlx.uint16)))


def test_bfloat16_scales_change_weights_by_no_more_than_their_rounding() -> None:
    matrix = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    quantization = quant.by_name("q4f16")
    _, scales, biases = (
        array.astype(np.uint32) << 16 for array in Packing(quantization, "bfloat16").pack(parameter(3, 64), matrix)
    )
    assert relative_error(scales.view(np.float32), quantization.pack(matrix)["s"].astype(np.float32)) < BF16_ROUNDING
    np.testing.assert_array_equal(biases.view(np.float32), scales.view(np.float32) * -8)


def test_a_matrix_that_groups_do_not_divide_is_refused_by_name() -> None:
    with pytest.raises(QuantizationError, match=r"some\.weight has 96 columns, not a multiple of the group size 64"):
        Packing(quant.by_name("q4f16", 64), "float16").tensors(parameter(2, 96))
    assert len(Packing(quant.by_name("f16"), "float16").tensors(parameter(2, 97))) == 1


@pytest.mark.parametrize(("name", "columns"), [("q8f16", 32), ("f16", None)])
def test_values_beyond_float16_are_refused(name: str, columns: int | None) -> None:
    # 8-bit scales fit into the dtype, but their biases, which are 128 times as large, do not.
    values = np.full((1, 32) if columns else 32, 65504 * 1.5 if columns is None else 65504 * 1.0, np.float32)
    with pytest.raises(QuantizationError, match="--activations bfloat16 or float32"):
        Packing(quant.by_name(name), "float16").pack(parameter(1, columns), values)
