"""The rows of tables of positions, against transformers' own code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from nearfar.compiler.ir.images import PositionSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.patches import axis_taps, largest_taps, table_rows


def raster(down: int, across: int) -> npt.NDArray[np.int32]:
    return np.indices((down, across), np.int32).reshape(2, -1).T


def mixture(rows: npt.NDArray[np.int32], weights: npt.NDArray[np.float32], side: int) -> npt.NDArray[np.float32]:
    """The weight of every row of the table, (V, side^2)."""
    dense = np.zeros((len(rows), side * side), np.float32)
    np.add.at(dense, (np.arange(len(rows))[:, None], rows), weights)
    return dense


def buckets_of_idefics_3(side: int, count: int) -> list[int]:
    boundaries = torch.arange(1 / side, 1.0, 1 / side)
    at = (torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(count))).clamp(max=1.0 - 1e-6)
    rows: list[int] = torch.bucketize(at, boundaries, right=True).tolist()
    return rows


@pytest.mark.parametrize("side", [26, 27, 32])
def test_fractions_are_the_buckets_of_idefics_3_in_published_models(side: int) -> None:
    rows, weights = axis_taps(PositionSpec("fractions", side), side)
    assert rows[:, 0].tolist() == buckets_of_idefics_3(side, side) == list(range(side))
    assert np.all(weights == 1)


def test_fractions_are_exact_where_pytorch_rounds() -> None:
    """PyTorch's boundaries are rounded by its vectors, so for some sides a patch is in the bucket beside its own, on
    some machines.
    """
    for side in range(1, 73):
        for count in {side, side // 2 + 1, side + 3}:
            rows, _ = axis_taps(PositionSpec("fractions", side), count)
            assert rows[:, 0].tolist() == [patch * side // count for patch in range(count)]
            assert np.abs(rows[:, 0] - buckets_of_idefics_3(side, count)).max() <= 1


@pytest.mark.parametrize(("down", "across"), [(8, 32), (32, 32), (4, 64), (16, 16), (22, 46), (2, 128)])
def test_antialiased_rows_are_those_of_siglip_2(down: int, across: int) -> None:
    from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings

    side = 16
    table = torch.eye(side * side).reshape(side, side, -1)
    shape = torch.tensor([[down, across]])
    expected = Siglip2VisionEmbeddings.resize_positional_embeddings(table, shape, down * across)[0].numpy()
    spec = PositionSpec("antialiased", side, largest_taps(side, 2, 64))
    rows, weights = table_rows(spec, down, across, raster(down, across))
    np.testing.assert_allclose(mixture(rows, weights, side), expected, atol=2e-7)


@pytest.mark.parametrize(("down", "across"), [(2, 188), (48, 48), (26, 40), (100, 62)])
def test_corners_are_the_rows_of_qwen3_vl(down: int, across: int) -> None:
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights

    side = 48
    indices, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, down, across]]), side, "bilinear", align_corners=True
    )
    expected = mixture(indices.numpy().astype(np.int32), weights.numpy(), side)
    ours = table_rows(PositionSpec("corners", side, 4), down, across, raster(down, across))
    np.testing.assert_allclose(mixture(*ours, side), expected, atol=1e-7)


def test_axes_are_rows_of_two_tables() -> None:
    rows, weights = table_rows(PositionSpec("axes", 100, 2), 2, 3, raster(2, 3))
    assert rows.tolist() == [[0, 100], [1, 100], [2, 100], [0, 101], [1, 101], [2, 101]]
    assert np.all(weights == 1)


def test_a_patch_that_mixes_more_rows_than_a_plan_has_is_refused() -> None:
    with pytest.raises(RequestError, match="too unequal"):
        table_rows(PositionSpec("antialiased", 16, 4), 2, 4, raster(2, 4))
