"""resize_u8 against PyTorch's own resizing of bytes, which torchvision calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearfar.compiler.runtime.images.resize import resize_u8

# Height and width before and after.
SIZES = [
    ((43, 64), (20, 31)),
    ((43, 64), (90, 100)),
    ((1, 1), (33, 17)),
    ((20, 300), (32, 449)),
    ((300, 20), (10, 77)),
    ((95, 71), (95, 20)),
    ((64, 42), (33, 42)),
    ((1000, 3), (2, 3)),
]


@pytest.mark.parametrize("kind", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_every_byte_is_that_of_pytorch(before: tuple[int, int], after: tuple[int, int], kind: str) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (*before, 3)).astype(np.uint8)
    # The overshoot of sharp filters is clipped.
    picture[: before[0] // 2, : before[1] // 2] = 255
    planes = torch.from_numpy(picture).permute(2, 0, 1)[None].contiguous()
    theirs = torch.nn.functional.interpolate(planes, size=after, mode=kind, antialias=True)
    np.testing.assert_array_equal(resize_u8(picture, after[1], after[0], kind), theirs[0].permute(1, 2, 0).numpy())


def test_a_picture_of_the_right_size_is_unchanged() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    assert resize_u8(picture, 7, 5, "lanczos") is picture
