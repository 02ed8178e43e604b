"""From the pixels of a picture to what a tower reads: patches, and the rows of its table of positions.

The layout comes from `web/src/shared/images`; `web/src/images/patches.ts` computes the same in the page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...ir.images import ImageSpec, MediumKind, PositionSpec
from ...shared.script import SharedScript
from ..errors import RequestError
from .resize import Bytes, resize_u8

Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CutImage:
    """A picture, or a video, in ``tiles`` of bytes (H, W, 3), each with its number of ``features``. A tile of two
    frames has six channels. ``text`` is what stands for it in the prompt, and ``key`` names its pixels and how they
    were read.
    """

    tiles: tuple[Bytes, ...]
    features: tuple[int, ...]
    text: str
    key: str
    kind: MediumKind = "image"


class TilePatches(NamedTuple):
    """A tile for the plan "vision", as in `PreparedImage`."""

    patches: Floats
    rows: Ints
    weights: Floats
    positions: Ints
    changes: Floats


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """A picture for the plan "vision": ``patches`` (V, 3 patch^2), block by block; ``rows`` and ``weights`` (V, taps)
    of the table of positions; ``positions`` (V, 2), row and column; ``starts`` (I + 1), the first patch of each tile.
    ``changes`` are empty (0, 3 patch^2), or for tiles of two frames, of which ``patches`` are the mean, half of what
    the first has more than the second (V, 3 patch^2).

    ``features`` are the numbers of features of its tiles, ``text`` is what stands for it in the prompt, and ``key``
    names its pixels and how they were read.
    """

    patches: Floats
    rows: Ints
    weights: Floats
    positions: Ints
    starts: Ints
    features: tuple[int, ...]
    text: str
    key: str
    changes: Floats
    kind: MediumKind = "image"


def image_layout(spec: ImageSpec, width: int, height: int) -> dict[str, Any]:
    """`imageLayout` of `web/src/shared/images/layout.ts`. Raises RequestError."""
    layout: dict[str, Any] = SharedScript.of_thread().ask("imageLayout", asdict(spec), width, height)
    return layout


def cut_image(spec: ImageSpec, picture: Bytes) -> CutImage:
    """``picture`` (H, W, 3), RGB. Raises RequestError for sides that the model's own processor refuses, too."""
    height, width = picture.shape[:2]
    layout = image_layout(spec, width, height)
    sizes = [picture]
    for each in layout["resizes"]:
        sizes.append(resize_u8(sizes[each["from"]], each["width"], each["height"], spec.filter))
    tiles = [_cropped(sizes[each["from"]], each) for each in layout["tiles"]]
    return CutImage(tuple(tiles), tuple(layout["features"]), layout["text"], image_key(spec, picture))


def prepare_image(spec: ImageSpec, picture: Bytes) -> PreparedImage:
    """``picture`` (H, W, 3), RGB. Raises RequestError for sides that the model's own processor refuses, too."""
    return prepared(spec, cut_image(spec, picture))


def prepared(spec: ImageSpec, cut: CutImage) -> PreparedImage:
    """What the tower reads of a picture, or of a video, that is cut into tiles."""
    tiles = [tile_patches(spec, tile) for tile in cut.tiles]
    patches, rows, weights, positions, changes = (np.concatenate(parts) for parts in zip(*tiles, strict=True))
    starts = np.cumsum([0, *(len(tile.patches) for tile in tiles)], dtype=np.int32)
    return PreparedImage(patches, rows, weights, positions, starts, cut.features, cut.text, cut.key, changes, cut.kind)


def image_key(spec: ImageSpec, picture: Bytes) -> str:
    """The SHA-256 of a picture's pixels and of how they are read, in hexadecimal."""
    height, width = picture.shape[:2]
    head = SharedScript.of_thread().ask("imageKeyHead", asdict(spec), width, height)
    return hashlib.sha256(head.encode() + np.ascontiguousarray(picture).data).hexdigest()


def tile_patches(spec: ImageSpec, tile: Bytes) -> TilePatches:
    """The patches of a tile (H, W, 3), or of one of two frames (H, W, 6). Pixels beyond the last block are not read."""
    side, block = spec.patch, spec.block
    down, across = tile.shape[0] // (side * block), tile.shape[1] // (side * block)
    pixels = tile[: down * side * block, : across * side * block]
    patches = _frame_patches(spec, pixels[:, :, :3])
    changes = np.empty((0, patches.shape[1]), np.float32)
    if pixels.shape[2] > 3:
        second = _frame_patches(spec, pixels[:, :, 3:])
        half = np.float32(0.5)
        patches, changes = half * (patches + second), half * (patches - second)
    grid = np.indices((down * block, across * block), np.int32).reshape(2, down, block, across, block)
    positions = np.ascontiguousarray(grid.transpose(1, 3, 2, 4, 0).reshape(-1, 2))
    rows, weights = table_rows(spec.positions, down * block, across * block, positions)
    return TilePatches(patches, rows, weights, positions, changes)


def _frame_patches(spec: ImageSpec, pixels: Bytes) -> Floats:
    """The patches (V, 3 patch^2) of pixels in whole blocks, block by block."""
    side, block = spec.patch, spec.block
    down, across = pixels.shape[0] // (side * block), pixels.shape[1] // (side * block)
    values = np.empty(pixels.shape, np.float32)
    for channel, table in enumerate(channel_values(spec)):
        np.take(table, pixels[:, :, channel], out=values[:, :, channel])
    # (row of blocks, row in the block, row in the patch, the same of columns, channel)
    values = values.reshape(down, block, side, across, block, side, 3)
    by_patch = (0, 3, 1, 4, 6, 2, 5) if spec.order == "channel_row_column" else (0, 3, 1, 4, 2, 5, 6)
    return values.transpose(by_patch).reshape(down * across * block * block, -1)


def _cropped(picture: Bytes, tile: Mapping[str, int]) -> Bytes:
    top, left = tile["top"], tile["left"]
    return np.ascontiguousarray(picture[top : top + tile["height"], left : left + tile["width"]])


def channel_values(spec: ImageSpec) -> Floats:
    """(3, 256): what a tower reads for each byte of a channel."""
    bytes_ = np.arange(256, dtype=np.float32)
    if spec.mean is None or spec.std is None:
        return np.tile(bytes_ * np.float32(1 / 255), (3, 1))
    mean, std = (np.array(each, np.float32)[:, None] * np.float32(255) for each in (spec.mean, spec.std))
    return np.asarray((bytes_ - mean) / std, np.float32)


def table_rows(spec: PositionSpec, down: int, across: int, positions: Ints) -> tuple[Ints, Floats]:
    """The rows (V, taps) of the table that patches at ``positions`` (V, 2) of a tile mix, and their weights."""
    row, column = positions[:, 0], positions[:, 1]
    if spec.rule == "axes":
        return np.stack([column, spec.side + row], -1).astype(np.int32), np.ones((len(row), 2), np.float32)
    (down_rows, down_weights), (across_rows, across_weights) = (axis_taps(spec, count) for count in (down, across))
    mixed = down_rows[row][:, :, None] * spec.side + across_rows[column][:, None, :]
    weights = down_weights[row][:, :, None] * across_weights[column][:, None, :]
    mixed, weights = mixed.reshape(len(row), -1), weights.reshape(len(row), -1)
    # First the rows that have a weight.
    order = np.argsort(weights == 0, axis=1, kind="stable")
    mixed, weights = np.take_along_axis(mixed, order, 1), np.take_along_axis(weights, order, 1)
    if np.any(weights[:, spec.taps :]):
        raise RequestError("images: the sides of a picture are too unequal for the model; crop it")
    mixed[weights == 0] = 0
    missing = ((0, 0), (0, max(spec.taps - weights.shape[1], 0)))
    return np.pad(mixed[:, : spec.taps], missing), np.pad(weights[:, : spec.taps], missing)


def largest_taps(side: int, block: int, least: int) -> int:
    """The most rows of a table of ``side`` x ``side`` that a patch mixes with the rule "antialiased", in a tile of
    at least ``least`` features of ``block`` x ``block`` patches.
    """

    def taps(count: int) -> int:
        _, weights = axis_taps(PositionSpec("antialiased", side), count)
        return int(np.count_nonzero(weights, axis=1).max())

    return max(taps(down * block) * taps(-(-least // down) * block) for down in range(1, side // block + 2))


@lru_cache(maxsize=256)
def axis_taps(spec: PositionSpec, count: int) -> tuple[Ints, Floats]:
    """`axisTaps` of `web/src/shared/images/positions.ts`: rows and weights, both (count, taps)."""
    taps = SharedScript.of_thread().ask("axisTaps", asdict(spec), count)
    return np.array(taps["rows"], np.int32), np.array(taps["weights"], np.float32)
