"""Heads whose rows are stored for the interleaved form of the rotation, read for the rotate-half form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from decoder_families import make_family

from nearfar.compiler.formats import Checkpoint, load
from nearfar.compiler.formats.checkpoint import StoredMatrix
from nearfar.compiler.ir.graph import Parameter, Source
from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.ir.rotary_pairs import RotaryPairs
from nearfar.compiler.pipeline.weights import read_planes, read_rows
from nearfar.compiler.quant.codes import Codes

Q = "model.layers.1.self_attn.q_proj.weight"
PAIRS = RotaryPairs(24, 12)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("glm4")
    make_family("glm4", folder)
    return load(str(folder))


def test_the_rotated_rows_of_each_head_come_first_even_then_odd() -> None:
    assert RotaryPairs(8, 6).stored_rows(0, 16).tolist() == [0, 2, 4, 1, 3, 5, 6, 7, 8, 10, 12, 9, 11, 13, 14, 15]
    assert RotaryPairs(4, 4).stored_rows(3, 6).tolist() == [3, 4, 6]
    assert RotaryPairs(8, 6).heads(7, 9) == (0, 16)
    assert RotaryPairs(8, 6).heads(8, 16) == (8, 16)


def test_rotated_halves_are_rotated_pairs() -> None:
    """The definition of the interleaved form: elements 2i and 2i + 1 are a complex number that is rotated."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 2 * PAIRS.head_dim)).astype(np.float32)
    table = rope_table([0.7**pair for pair in range(PAIRS.rotary_dim // 2)], 5)
    order = PAIRS.stored_rows(0, x.shape[1])
    inputs = {"x": x[:, order], "positions": np.arange(5, dtype=np.int32), "table": table}
    found = OPS["rope"].run(inputs, {"head_dim": PAIRS.head_dim, "dtype": "float32"})
    assert found is not None
    heads = x.reshape(5, 2, PAIRS.head_dim)
    rotated = heads[..., : PAIRS.rotary_dim]
    turned = (rotated[..., ::2] + 1j * rotated[..., 1::2]) * (table[..., 0] + 1j * table[..., 1])[:, None]
    expected = heads.copy()
    expected[..., : PAIRS.rotary_dim : 2], expected[..., 1 : PAIRS.rotary_dim : 2] = turned.real, turned.imag
    np.testing.assert_allclose(found, expected.reshape(x.shape)[:, order], atol=1e-6)


def test_any_rows_can_be_read_from_floats_and_from_codes(checkpoint: Checkpoint) -> None:
    matrix = checkpoint.tensors[Q].rows(0, 144)
    form = Codes(8)
    scales = np.full((144, 1), 0.01, np.float32) * np.arange(1, 145, dtype=np.float32)[:, None]
    stored = {"q": np.arange(144 * 24, dtype=np.uint32).reshape(144, 24), "s": scales}
    codes = StoredMatrix(
        Q, (144, 72), form, lambda start, stop: {name: plane[start:stop] for name, plane in stored.items()}
    )
    quantized = replace(checkpoint, tensors={**checkpoint.tensors, Q: codes})
    # The parameter is a part of the tensor, such as the queries of a fused QKV tensor.
    parameter = Parameter("q", (Source(Q, 24, 144, factor=0.5, pairs=PAIRS),), 72)
    order = PAIRS.stored_rows(24, 144)
    for start, stop in ((0, 120), (0, 1), (7, 31), (23, 24), (24, 48), (119, 120)):
        np.testing.assert_array_equal(
            read_rows(checkpoint, parameter, start, stop), np.float32(0.5) * matrix[order][start:stop]
        )
        planes = read_planes(quantized, replace(parameter, form=form.name), start, stop)
        for name, plane in planes.items():
            np.testing.assert_array_equal(plane, stored[name][order][start:stop])
