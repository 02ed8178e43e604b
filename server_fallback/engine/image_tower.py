"""ImageTower: a runner's plan "vision" as the engine's `Tower`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.images.patches import tile_patches
from nearfar.compiler.runtime.patches import PatchBatch
from nearfar.compiler.runtime.runner import Runner

from .image_encoder import Pixels


class ImageTower:
    """The engine owns the runner and closes it."""

    def __init__(self, runner: Runner, spec: ImageSpec) -> None:
        self._runner, self._spec = runner, spec

    def num_at_once(self, images: Sequence[Pixels]) -> int:
        most = self._runner.limits.patches or 0
        totals = accumulate(map(self._num_patches, images))
        return max(1, sum(total <= most for total in totals))

    def encode(self, images: Sequence[Pixels]) -> list[FloatArray]:
        tiles = [tile_patches(self._spec, image) for image in images]
        lengths = [len(tile.patches) for tile in tiles]
        features = self._runner.features(
            PatchBatch(
                np.concatenate([tile.patches for tile in tiles]),
                np.concatenate([tile.rows for tile in tiles]),
                np.concatenate([tile.weights for tile in tiles]),
                np.cumsum([0, *lengths], dtype=np.int32),
                np.concatenate([tile.positions for tile in tiles]),
            )
        )
        ends = np.cumsum([length // self._spec.block**2 for length in lengths])
        return [np.ascontiguousarray(own) for own in np.split(features, ends[:-1])]

    def _num_patches(self, image: Pixels) -> int:
        side, block = self._spec.patch * self._spec.block, self._spec.block
        return int(math.prod(length // side for length in image.shape[:2])) * block * block
