"""Blocks of GGUF against the package of llama.cpp that reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import SCALES, random_blocks

from nearfar.compiler.formats.checkpoint import DequantizedMatrix, StoredMatrix, Tensor
from nearfar.compiler.formats.gguf.block_types import BlockType
from nearfar.compiler.formats.gguf.container import Container, StoredTensor
from nearfar.compiler.formats.gguf.relations import Axes, Relation, halves_of_experts, interleaved
from nearfar.compiler.formats.gguf.table_types import TYPES
from nearfar.compiler.formats.gguf.tensors import related_tensors

ROWS, COLUMNS = 24, 768
# The types that the package reads.
PACKAGED = [number for number in TYPES if number not in (41, 42)]


def stored(kind: Type, folder: Path) -> tuple[StoredTensor, np.ndarray]:
    """A tensor of random blocks, preceded by seven other bytes, and its weights as the package reads them."""
    if kind in SCALES:
        data = random_blocks(kind, (ROWS, COLUMNS), 0.5)
    else:
        rng = np.random.default_rng(kind.value)
        if kind in (Type.MXFP4, Type.NVFP4):
            elements, size, scales = (32, 17, 1) if kind == Type.MXFP4 else (64, 36, 4)
            data = rng.integers(0, 256, (ROWS, COLUMNS // elements, size), np.uint8)
            # Scales near 1.
            data[..., :scales] = rng.integers(120, 134, (*data.shape[:-1], scales)) // (1 if scales == 1 else 2)
            data = data.reshape(ROWS, -1)
        elif kind == Type.IQ1_M:
            data = rng.integers(0, 256, (ROWS, COLUMNS // 256, 56), np.uint8)
            # The four parts of a float16 near 0.01.
            parts = data[..., 48:].view("<u2")
            parts[...] = parts & 0x0FFF | np.array([3, 9, 10, 2], np.uint16) << 12
            data = data.reshape(ROWS, -1)
        else:
            data = gguf.quants.quantize(rng.standard_normal((ROWS, COLUMNS)).astype(np.float32), kind)
            data = data.view(np.uint8).reshape(ROWS, -1)
    path = folder / f"{kind.name}.bin"
    path.write_bytes(bytes(7) + data.tobytes())
    expected = gguf.quants.dequantize(data, kind).reshape(ROWS, COLUMNS)
    return StoredTensor("w", (ROWS, COLUMNS), TYPES[kind.value], path, 7), expected


def matrix_of(tensor: StoredTensor, **order: Any) -> Tensor:
    return related_tensors(Relation(("w",), ("w",), **order), Container(tensor.path, {}, {"w": tensor}))["w"]


@pytest.mark.parametrize("number", PACKAGED)
def test_weights_are_those_of_the_package(number: int, tmp_path: Path) -> None:
    kind = Type(number)
    tensor, expected = stored(kind, tmp_path)
    assert tensor.row_bytes * ROWS == (tmp_path / f"{kind.name}.bin").stat().st_size - 7
    matrix = matrix_of(tensor)
    assert matrix.shape == (ROWS, COLUMNS)
    assert isinstance(matrix, StoredMatrix) == (kind not in (Type.F32, Type.F16, Type.BF16))
    # A weight is one product and one sum in both.
    np.testing.assert_allclose(matrix.rows(3, 17), expected[3:17], rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("number", [0, 8, 12, 14])
def test_rows_of_heads_are_read_in_the_order_of_the_checkpoint(number: int, tmp_path: Path) -> None:
    tensor, expected = stored(Type(number), tmp_path)
    # Two heads of 12 rows: the converter stores rows of the order (heads, 2, pairs) as (heads, pairs, 2).
    original = expected.reshape(2, 6, 2, COLUMNS).swapaxes(1, 2).reshape(ROWS, COLUMNS)
    matrix = matrix_of(tensor, rows=interleaved(2, 12))
    for start, stop in ((0, ROWS), (5, 6), (7, 19)):
        np.testing.assert_allclose(matrix.rows(start, stop), original[start:stop], atol=1e-5)


@pytest.mark.parametrize("number", [0, 2, 12, 14])
def test_columns_of_heads_are_read_in_the_order_of_the_checkpoint(number: int, tmp_path: Path) -> None:
    tensor, expected = stored(Type(number), tmp_path)
    for size in (96, 8):
        # 2 groups of heads are stored with the first heads of both in front.
        heads = COLUMNS // size // 2
        original = expected.reshape(ROWS, heads, 2, size).swapaxes(1, 2).reshape(ROWS, COLUMNS)
        matrix = matrix_of(tensor, columns=Axes((2, heads, size), (1, 0, 2)))
        # Heads of 8 divide groups that share a scale.
        kinds = StoredMatrix, DequantizedMatrix
        assert number == 0 or isinstance(matrix, kinds[size == 8])
        np.testing.assert_allclose(matrix.rows(5, 19), original[5:19], atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("alternate", [False, True])
def test_rows_of_experts_come_from_two_stacks(alternate: bool, tmp_path: Path) -> None:
    files: dict[str, StoredTensor] = {}
    weights: list[np.ndarray] = []
    for name in ("ffn_gate_exps", "ffn_up_exps"):
        (tmp_path / name).mkdir()
        tensor, expected = stored(Type.Q8_0, tmp_path / name)
        weights.append(np.roll(expected, len(files), axis=0) * 2 ** len(files))
        tensor.path.write_bytes(bytes(7) + gguf.quants.quantize(weights[-1], Type.Q8_0).tobytes())
        files[f"{name}.weight"] = replace(tensor, name=f"{name}.weight", shape=(4, 6, COLUMNS))
        weights[-1] = gguf.quants.dequantize(gguf.quants.quantize(weights[-1], Type.Q8_0), Type.Q8_0)
    relation = halves_of_experts("both", 4, 6, alternate=alternate)
    both = related_tensors(relation, Container(tmp_path, {}, files))["both"]
    halves = np.stack([each.reshape(4, 6, COLUMNS) for each in weights], axis=2 if alternate else 1)
    assert isinstance(both, StoredMatrix)
    np.testing.assert_allclose(both.rows(5, 43), halves.reshape(48, COLUMNS)[5:43], atol=1e-5)


@pytest.mark.parametrize(("kind", "bits"), [(TYPES[41], 1), (TYPES[42], 2), (TYPES[42].other, 2)])
def test_weights_of_one_and_two_bits_are_those_of_ggml(kind: BlockType, bits: int, tmp_path: Path) -> None:
    # dequantize_row_q1_0 and dequantize_row_q2_0 of ggml-quants.c, one weight after the other.
    rng = np.random.default_rng(bits)
    data = rng.integers(0, 256, (2, 256 // kind.elements, kind.bytes), np.uint8)
    scales = rng.normal(size=data.shape[:2]).astype(np.float16)
    data[..., :2] = scales[..., None].view(np.uint8)
    expected = np.empty((2, 256 // kind.elements, kind.elements), np.float32)
    for row, block, element in np.ndindex(*expected.shape):
        byte = int(data[row, block, 2 + element * bits // 8])
        code = byte >> element * bits % 8 & (1 << bits) - 1
        expected[row, block, element] = (2 * code - 1 if bits == 1 else code - 1) * np.float32(scales[row, block])
    path = tmp_path / "blocks.bin"
    path.write_bytes(data.tobytes())
    matrix = matrix_of(StoredTensor("w", (2, 256), kind, path, 0))
    np.testing.assert_array_equal(matrix.rows(0, 2), expected.reshape(2, 256))


def test_every_type_is_known_to_the_package() -> None:
    for number, kind in TYPES.items():
        if number == 42:
            continue
        assert Type(number).name == kind.name
        assert gguf.GGML_QUANT_SIZES[Type(number)] == (kind.elements, kind.bytes)
