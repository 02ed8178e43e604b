"""The patches with which runtimes test a tower: Python and the page make the same.

``python tests/vision_vectors.py`` writes `tests/conformance/vision_test.json`, with the hashes of their arrays.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from image_families import FAMILIES, spec_of, write_family

from nearfar.compiler.formats.towers import largest_tile, longest_side
from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.ir.spec import VisionSpec
from nearfar.compiler.runtime.feature_test import test_patches as patches_of_test

RECORDED = Path(__file__).parent / "conformance/vision_test.json"


def tower_of(spec: ImageSpec) -> VisionSpec:
    """A tower whose patches and positions are those of the spec."""
    positions = spec.positions.side * 2 if spec.positions.rule == "axes" else spec.positions.side**2
    return VisionSpec(
        model_type="tower",
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        intermediate_size=8,
        activation="gelu",
        norm_eps=1e-6,
        patch_elements=3 * spec.patch**2,
        positions=positions,
        block=spec.block,
        tile_patches=largest_tile(spec),
        tile_side=longest_side(spec),
        frames=2 if spec.video is not None and spec.video.frames == 2 else 1,
    )


def vectors() -> dict[str, Any]:
    """For each family, the patches of its largest tile, and the SHA-256 of each array of the test."""
    found: dict[str, Any] = {}
    for name, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            spec = spec_of(write_family(family, Path(folder)))
        tower = tower_of(spec)
        batch = patches_of_test(tower, spec)
        names = ("patches", "patch_rows", "patch_weights", "patch_starts", "patch_positions", "changes", "change_rows")
        hashes = {each: hashlib.sha256(getattr(batch, each).tobytes()).hexdigest() for each in names}
        found[name] = {
            "tile_patches": tower.tile_patches,
            "tile_side": tower.tile_side,
            "count": len(batch.patches),
            **hashes,
        }
    return found


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(vectors(), indent=2) + "\n")
