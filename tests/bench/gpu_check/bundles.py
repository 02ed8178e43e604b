"""Bundles without weights: the shards are removed, and random ones of the same layout are written on the target
machine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearfar.compiler.bundle.folder import sha256_of
from nearfar.compiler.bundle.manifest import MANIFEST_FILE, Manifest

# The range of scales, norms and other floats: small enough that no sum overflows in float16.
LARGEST = 0.02


def without_weights(bundle: Path) -> None:
    for shard in read_manifest(bundle).shards:
        (bundle / shard.file).unlink()


def with_random_weights(bundle: Path) -> None:
    """Write the shards, unless they exist, and their hashes into the manifest."""
    manifest = read_manifest(bundle)
    if all((bundle / shard.file).exists() for shard in manifest.shards):
        return
    rng = np.random.default_rng(0)
    shards = [np.zeros(shard.size, np.uint8) for shard in manifest.shards]
    for plane in (plane for weight in manifest.weights.values() for plane in weight.planes):
        place = shards[plane.shard][plane.offset : plane.offset + plane.size]
        if plane.dtype == "uint32":
            place[:] = rng.integers(0, 256, plane.size, np.uint8)
        else:
            values = rng.uniform(LARGEST / 2, LARGEST, plane.size // np.dtype(plane.dtype).itemsize)
            place[:] = values.astype(plane.dtype).view(np.uint8)
    text = (bundle / MANIFEST_FILE).read_text()
    for shard, data in zip(manifest.shards, shards, strict=True):
        (bundle / shard.file).write_bytes(data.tobytes())
        text = text.replace(shard.sha256, sha256_of(bundle / shard.file))
    (bundle / MANIFEST_FILE).write_text(text)


def read_manifest(bundle: Path) -> Manifest:
    return Manifest.model_validate_json((bundle / MANIFEST_FILE).read_text())
