"""ImageTower: a runner's plans "vision" and "hearing" as the engine's `Tower`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, takewhile

import numpy as np

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.ir.sounds import SoundSpec
from nearfar.compiler.runtime.audio.prepared_sound import sound_rows
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.images.patches import tile_patches
from nearfar.compiler.runtime.media import sound_features
from nearfar.compiler.runtime.patches import PatchBatch
from nearfar.compiler.runtime.runner import Runner

from .images import Pixels


class ImageTower:
    """The engine owns the runner and closes it. ``images`` and ``sounds`` are None if the model does not see or
    hear.
    """

    def __init__(self, runner: Runner, images: ImageSpec | None, sounds: SoundSpec | None = None) -> None:
        self._runner, self._images, self._sounds = runner, images, sounds

    def num_at_once(self, images: Sequence[Pixels]) -> int:
        """The pictures that come first together, a sound alone."""
        most = self._runner.limits.patches or 0
        pictures = takewhile(lambda each: each.ndim > 1, images)
        totals = accumulate(map(self._num_patches, pictures))
        return max(1, sum(total <= most for total in totals))

    def encode(self, images: Sequence[Pixels]) -> list[FloatArray]:
        if images[0].ndim == 1:
            (samples,) = images
            assert self._sounds is not None, "check_request refuses sounds for models that do not hear"
            return [sound_features(self._runner, sound_rows(self._sounds, samples))]
        assert self._images is not None, "check_request refuses images for models that do not see"
        tiles = [tile_patches(self._images, image) for image in images]
        lengths = [len(tile.patches) for tile in tiles]
        starts = np.cumsum([0, *lengths], dtype=np.int32)
        features = self._runner.features(
            PatchBatch(
                np.concatenate([tile.patches for tile in tiles]),
                np.concatenate([tile.rows for tile in tiles]),
                np.concatenate([tile.weights for tile in tiles]),
                starts,
                np.concatenate([tile.positions for tile in tiles]),
                np.concatenate([tile.changes for tile in tiles]),
                # The tiles of videos have as many as patches, those of pictures none.
                np.concatenate(
                    [start + np.arange(len(tile.changes)) for start, tile in zip(starts, tiles, strict=False)]
                ).astype(np.int32),
            )
        )
        ends = np.cumsum([length // self._images.block**2 for length in lengths])
        return [np.ascontiguousarray(own) for own in np.split(features, ends[:-1])]

    def _num_patches(self, image: Pixels) -> int:
        assert self._images is not None, "check_request refuses images for models that do not see"
        side, block = self._images.patch * self._images.block, self._images.block
        return int(math.prod(length // side for length in image.shape[:2])) * block * block
