"""Run a bundle's test of its tower on a runner: patches whose features are known."""

from __future__ import annotations

import numpy as np

from ..bundle.entries import VisionTestEntry
from ..ir.images import ImageSpec
from ..ir.spec import VisionSpec
from .batch import FloatArray
from .patches import PatchBatch
from .runner import Runner
from .vector_test import lengths_of_differences

# The most patches of the test: several tiles of keys.
PATCHES = 160


def test_patches(vision: VisionSpec, images: ImageSpec) -> PatchBatch:
    """The patches of the test, in a tile of all blocks but one, and a tile of one block if there are several. Every
    runtime makes them.
    """
    block = vision.block**2
    blocks = max(1, min(PATCHES, vision.tile_patches) // block)
    patch, element = np.arange(blocks * block)[:, None], np.arange(vision.patch_elements)[None]
    tap = np.arange(images.positions.taps)[None]
    weights = np.broadcast_to(0.5 ** np.minimum(tap + 1, 8), (len(patch), tap.size))
    starts = [0, blocks * block] if blocks == 1 else [0, (blocks - 1) * block, blocks * block]
    return PatchBatch(
        patches=((31 * patch + 17 * element + patch * element // 3) % 41 / 20 - 1).astype(np.float32),
        patch_rows=((7 * patch + 3 * tap) % vision.positions).astype(np.int32),
        patch_weights=weights.astype(np.float32),
        patch_starts=np.array(starts, np.int32),
        patch_positions=np.concatenate([5 * patch, 3 * patch + 1], axis=1).astype(np.int32) % max(1, vision.tile_side),
    )


def vision_difference(runner: Runner, test: VisionTestEntry) -> float:
    """The largest length of the difference from the expected values of a feature, relative to the longest one; infinite
    if not finite.
    """
    manifest = runner.manifest
    assert manifest.spec.vision is not None
    assert manifest.images is not None
    found: FloatArray = runner.features(test_patches(manifest.spec.vision, manifest.images))
    return float(lengths_of_differences(test.rows, found).max()) if np.isfinite(found).all() else float("inf")
