"""PatchBatch: the arrays from which the plan "vision" makes the features of pictures; `ops/images.py` defines them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np

from ..ir.spec import VisionSpec
from .batch import Array, Batch, FloatArray, IntArray
from .errors import RequestError
from .images.patches import PreparedImage
from .runner import Runner


@dataclass(frozen=True, slots=True)
class PatchBatch:
    """The V patches of I complete tiles, one tile after the other. ``patches`` (V, elements) are normalized pixels.
    ``patch_rows`` and ``patch_weights`` (V, taps) are the rows of the tower's table of positions that each patch mixes;
    unused ones have the weight 0. ``patch_starts`` (I + 1,): the first patch of each tile, then V. ``patch_positions``
    (V, 2): the row and the column of each patch in its tile. ``change_rows`` (C,) are the patches of two frames, of
    which ``patches`` are the mean, and ``changes`` (C, elements) half of what the first frame has more than the second.
    """

    patches: FloatArray
    patch_rows: IntArray
    patch_weights: FloatArray
    patch_starts: IntArray
    patch_positions: IntArray
    changes: FloatArray
    change_rows: IntArray

    def arrays(self, declared: Collection[str] = ()) -> dict[str, Array]:
        """The inputs that a plan declares."""
        return {name: getattr(self, name) for name in declared}

    def dims(self, known: Mapping[str, int], block: int) -> dict[str, int]:
        """The values of all ``known`` dims for this batch."""
        patches = len(self.patches)
        own = {"V": patches, "I": len(self.patch_starts) - 1, "F": patches // block**2, "C": len(self.changes)}
        return {**dict.fromkeys(known, 0), **own}


AnyBatch: TypeAlias = Batch | PatchBatch
PATCH_INPUTS = tuple(each.name for each in fields(PatchBatch))


def image_features(runner: Runner, image: PreparedImage) -> FloatArray:
    """The features (F, E) of all tiles of a picture, as many tiles at a time as the runner's limits allow. Raises
    RequestError as `Runner.features`.
    """
    starts, most = image.starts.tolist(), runner.limits.patches or 0
    found, first = [], 0
    while first < len(starts) - 1:
        last = first + 1
        while last + 1 < len(starts) and starts[last + 1] - starts[first] <= most:
            last += 1
        own = slice(starts[first], starts[last])
        batch = PatchBatch(
            image.patches[own],
            image.rows[own],
            image.weights[own],
            image.starts[first : last + 1] - starts[first],
            image.positions[own],
            *changed(image.changes[own]),
        )
        found.append(runner.features(batch))
        first = last
    return np.concatenate(found)


def changed(changes: FloatArray) -> tuple[FloatArray, IntArray]:
    """The changes of all patches of a batch, or of none, and their rows."""
    return changes, np.arange(len(changes), dtype=np.int32)


def require_patches(batch: PatchBatch, spec: VisionSpec, taps: int) -> None:
    """Raise RequestError for arrays that do not fit the tower, because its kernels use their values as indices."""
    count, starts = len(batch.patches), batch.patch_starts
    expected = {
        "patches": ((count, spec.patch_elements), "float32"),
        "patch_rows": ((count, taps), "int32"),
        "patch_weights": ((count, taps), "float32"),
        "patch_starts": ((len(starts),), "int32"),
        "patch_positions": ((count, 2), "int32"),
        "changes": ((len(batch.change_rows), spec.patch_elements), "float32"),
        "change_rows": ((len(batch.change_rows),), "int32"),
    }
    for name, (shape, dtype) in expected.items():
        array = getattr(batch, name)
        if array.shape != shape or array.dtype != dtype:
            raise RequestError(
                f"{name} of pictures is {list(array.shape)} of {array.dtype}; the model needs {list(shape)} of {dtype}"
            )
    changed_rows = batch.change_rows
    if len(changed_rows) and (
        spec.frames == 1 or changed_rows.min() < 0 or np.unique(changed_rows).size < len(changed_rows)
    ):
        raise RequestError("patches of two frames are not for this model, or have changes twice")
    if len(changed_rows) and changed_rows.max() >= count:
        raise RequestError(f"change_rows name patch {changed_rows.max()} of {count}")
    tiles = np.diff(starts)
    if len(tiles) == 0 or starts[0] != 0 or starts[-1] != count or tiles.min() <= 0 or (tiles % spec.block**2).any():
        raise RequestError(
            f"the tiles of {count} patches start at {starts.tolist()[:20]}; each must have complete blocks of "
            f"{spec.block**2} patches"
        )
    if not 0 <= batch.patch_rows.min() <= batch.patch_rows.max() < spec.positions:
        raise RequestError(f"a patch names a position beyond the {spec.positions} of the tower's table")
    places = batch.patch_positions
    if spec.tile_side and not 0 <= places.min() <= places.max() < spec.tile_side:
        raise RequestError(f"a patch is at row or column {places.max()}; a tile has at most {spec.tile_side} of them")
