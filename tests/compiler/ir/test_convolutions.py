"""`convolve` is PyTorch's convolution of each text alone, whatever texts are beside it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.compiler.ir.ops import OPS

# Frames of each text, of which a row has 8.
TEXTS = (13, 1, 24, 50)


@pytest.mark.parametrize("steps", [8, 4, 2])
@pytest.mark.parametrize(("places", "depthwise"), [(7, False), (6, True)])
def test_a_stride_of_two_halves_time_and_places(steps: int, places: int, *, depthwise: bool) -> None:
    rng = np.random.default_rng(steps + places)
    channels, outputs = 5, 5 if depthwise else 3
    weight = rng.normal(size=(3, 3, channels, *(() if depthwise else (outputs,)))).astype(np.float32)
    bias = rng.normal(size=outputs).astype(np.float32)
    # The steps of each text that exist; those behind them in its last row have numbers that must not count.
    lengths = [-(-frames * steps // 8) for frames in TEXTS]
    rows = [-(-frames // 8) for frames in TEXTS]
    starts = np.cumsum([0, *rows])
    x = rng.normal(size=(starts[-1], steps * places * channels)).astype(np.float32)
    frames = np.concatenate(
        [[8] * (count - 1) + [total - 8 * (count - 1)] for count, total in zip(rows, TEXTS, strict=True)]
    )
    inputs = {
        "x": x,
        "positions": np.concatenate([np.arange(count) for count in rows]),
        "weight": weight.ravel(),
        "bias": bias,
        "row_frames": frames,
    }
    attrs: dict[str, Any] = {"size": 3, "before": 1, "width": 3, "stride": 2, "frames": 8, "depthwise": depthwise}
    y = OPS["convolve"].run(inputs, {**attrs, "steps": steps, "places": places})
    assert y is not None

    filters = torch.tensor(weight[..., None].transpose(2, 3, 0, 1) if depthwise else weight.transpose(3, 2, 0, 1))
    for (start, stop), length in zip(pairwise(starts), lengths, strict=True):
        image = torch.tensor(x[start:stop].reshape(-1, places, channels)[:length].transpose(2, 0, 1))
        groups = channels if depthwise else 1
        expected = torch.nn.functional.conv2d(image, filters, torch.tensor(bias), stride=2, padding=1, groups=groups)
        mine = y[start:stop].reshape(-1, -(-places // 2), outputs).transpose(2, 0, 1)[:, : expected.shape[1]]
        np.testing.assert_allclose(mine, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(("before", "padding"), [(4, (4, 4)), (8, (8, 0))])
def test_filters_of_time_see_their_own_text_only(before: int, padding: tuple[int, int]) -> None:
    rng = np.random.default_rng(before)
    starts = np.cumsum([0, *TEXTS])
    x, weight = (rng.normal(size=(size, 7)).astype(np.float32) for size in (starts[-1], 9))
    positions = np.concatenate([np.arange(count) for count in TEXTS])
    inputs = {"x": x, "positions": positions, "weight": weight.ravel()}
    y = OPS["convolve"].run(inputs, {"size": 9, "before": before, "depthwise": True})
    assert y is not None
    for start, stop in pairwise(starts):
        text = torch.nn.functional.pad(torch.tensor(x[start:stop].T), padding)
        expected = torch.nn.functional.conv1d(text, torch.tensor(weight.T[:, None].copy()), groups=7)
        np.testing.assert_allclose(y[start:stop], expected.numpy().T, atol=1e-5)
