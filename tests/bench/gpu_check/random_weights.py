"""Fills a bundle that was compiled from a model's shapes alone (`weightless.py`) with random weights, on the machine
that measures it. A bundle of an 8B model travels as 3 MB instead of 5 GB.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.bundle.manifest import MANIFEST_FILE

# The range of scales, norms and other floats: small enough that no sum overflows in float16.
LARGEST = 0.02
BLOCK_BYTES = 64 << 20


def with_random_weights(bundle: Path) -> None:
    """Write the shards and their hashes, unless all shards exist. Needs only numpy."""
    manifest: dict[str, Any] = json.loads((bundle / MANIFEST_FILE).read_text())
    shards = manifest["shards"]
    if all((bundle / shard["file"]).exists() for shard in shards):
        return
    planes = [plane for entry in stored_weights(manifest) for plane in entry["planes"]]
    for number, shard in enumerate(shards):
        path = bundle / shard["file"]
        path.parent.mkdir(exist_ok=True)
        digest = hashlib.sha256()
        with path.open("wb") as file:
            own = [plane for plane in planes if plane["shard"] == number]
            for data in shard_data(own, shard["size"], np.random.Generator(np.random.SFC64(number))):
                digest.update(data)
                file.write(data)
        shard["sha256"] = digest.hexdigest()
    (bundle / MANIFEST_FILE).write_text(json.dumps(manifest, separators=(",", ":"), ensure_ascii=False))


def stored_weights(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [*manifest["weights"].values(), *manifest["host_weights"].values()]


def shard_data(planes: list[dict[str, Any]], size: int, rng: np.random.Generator) -> Iterator[bytes]:
    """The planes of a shard in the order of their offsets, with zeros between them."""
    end = 0
    for plane in sorted(planes, key=lambda plane: int(plane["offset"])):
        yield bytes(plane["offset"] - end)
        for start in range(0, plane["size"], BLOCK_BYTES):
            count = min(BLOCK_BYTES, plane["size"] - start)
            if plane["dtype"] == "uint32":
                yield rng.bytes(count)
            else:
                dtype = np.dtype(plane["dtype"])
                yield rng.uniform(LARGEST / 2, LARGEST, count // dtype.itemsize).astype(dtype).tobytes()
        end = plane["offset"] + plane["size"]
    yield bytes(size - end)
