"""Run a bundle's tests of its towers on a runner: patches of pictures, and frames of sound, whose features are
known.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..bundle.entries import FeatureTestEntry
from ..bundle.manifest import VISION, Manifest
from ..ir.images import ImageSpec
from ..ir.spec import HearingSpec, VisionSpec
from .batch import Array, Batch, FloatArray
from .encoder_batch import make_frame_batch
from .patches import PatchBatch
from .runner import Runner
from .vector_test import lengths_of_differences

# The most patches of the test: several tiles of keys.
PATCHES = 160
# The most rows of the test of sound, which the smallest batches have.
ROWS = 48


def test_patches(vision: VisionSpec, images: ImageSpec) -> PatchBatch:
    """The patches of the test, in a tile of all blocks but one, and a tile of one block if there are several. If the
    tower joins frames, every other patch has changes. Every runtime makes them.
    """
    block = vision.block**2
    blocks = max(1, min(PATCHES, vision.tile_patches) // block)
    patch, element = np.arange(blocks * block)[:, None], np.arange(vision.patch_elements)[None]
    tap = np.arange(images.positions.taps)[None]
    weights = np.broadcast_to(0.5 ** np.minimum(tap + 1, 8), (len(patch), tap.size))
    starts = [0, blocks * block] if blocks == 1 else [0, (blocks - 1) * block, blocks * block]
    patches = ((31 * patch + 17 * element + patch * element // 3) % 41 / 20 - 1).astype(np.float32)
    changed = np.arange(0, len(patch) if vision.frames > 1 else 0, 2)
    return PatchBatch(
        patches=patches,
        patch_rows=((7 * patch + 3 * tap) % vision.positions).astype(np.int32),
        patch_weights=weights.astype(np.float32),
        patch_starts=np.array(starts, np.int32),
        patch_positions=np.concatenate([5 * patch, 3 * patch + 1], axis=1).astype(np.int32) % max(1, vision.tile_side),
        changes=patches[::-1][changed],
        change_rows=changed.astype(np.int32),
    )


def test_sound(hearing: HearingSpec) -> Batch:
    """The rows of frames of the test. Every runtime makes them. If rows have several frames, the last one has one."""
    row, element = np.arange(min(ROWS, hearing.sound_rows))[:, None], np.arange(hearing.row_elements)[None]
    frames: FloatArray = ((31 * row + 17 * element + row * element // 3) % 41 / 20 - 1).astype(np.float32)
    if not hearing.whole:
        return make_frame_batch([frames])
    # Each convolution halves them.
    row_frames = np.full(len(row), 2 ** len(hearing.channels), np.int32)
    row_frames[-1] = 1
    return make_frame_batch([frames], [row_frames])


def test_size(manifest: Manifest, plan: str) -> int:
    """The features of the test of a plan that makes them."""
    vision, hearing = manifest.spec.vision, manifest.spec.hearing
    if plan == VISION:
        assert vision is not None
        assert manifest.images is not None
        return len(test_patches(vision, manifest.images).patches) // vision.block**2
    assert hearing is not None
    return len(test_sound(hearing).token_ids)


def test_arrays(manifest: Manifest, plan: str, declared: Collection[str]) -> tuple[dict[str, Array], dict[str, int]]:
    """The inputs that a plan declares, and the dims, of its test."""
    vision, hearing = manifest.spec.vision, manifest.spec.hearing
    if plan == VISION:
        assert vision is not None
        assert manifest.images is not None
        patches = test_patches(vision, manifest.images)
        return patches.arrays(declared), patches.dims({}, vision.block)
    assert hearing is not None
    batch = test_sound(hearing)
    return batch.arrays(declared), batch.dims(0)


def feature_difference(runner: Runner, manifest: Manifest, plan: str, test: FeatureTestEntry) -> float:
    """The largest length of the difference from the expected values of a feature, relative to the longest one; infinite
    if not finite.
    """
    found: FloatArray
    if plan == VISION:
        assert manifest.spec.vision is not None
        assert manifest.images is not None
        found = runner.features(test_patches(manifest.spec.vision, manifest.images))
    else:
        assert manifest.spec.hearing is not None
        found = runner.listen(test_sound(manifest.spec.hearing))
    return float(lengths_of_differences(test.rows, found).max()) if np.isfinite(found).all() else float("inf")
