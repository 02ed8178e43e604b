"""ImageSpec: how pictures become patches, and how they read in a prompt. It is data, which Python and the page evaluate
with `web/src/shared/images`.

A picture is resized and may be cut into **tiles**, which a model's tower reads one by one. A tile consists of
**patches**, squares of pixels, in the order of **blocks**: a block is a square of patches that becomes one **feature**,
a row in place of the embedding of one placeholder token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .expr import Count, Natural, Positive
from .videos import VideoSpec

# The type of the part of a message that a chat template writes a mark for.
MediumKind: TypeAlias = Literal["image", "video"]


@dataclass(frozen=True, slots=True)
class FixedSize:
    """Every picture gets this size, whatever its aspect ratio (Gemma 3)."""

    height: Count
    width: Count
    rule: Literal["fixed"] = "fixed"


@dataclass(frozen=True, slots=True)
class LongestEdge:
    """The longer side becomes ``pixels``. The other one keeps the aspect ratio; it is rounded down, and an odd length
    is increased by 1. Afterwards no side exceeds ``most`` (SmolVLM, Idefics 3).
    """

    pixels: Count
    most: Count
    rule: Literal["longest_edge"] = "longest_edge"


@dataclass(frozen=True, slots=True)
class AreaBounds:
    """Both sides become multiples of a block's side: rounded, half to even, if the area is then ``least`` to ``most``
    pixels, otherwise scaled to these bounds (Qwen2-VL's smart_resize). With ``whole_blocks``, sides are at least one
    block before their area is compared (LFM2-VL). Pictures whose longer side is more than ``max_aspect`` times the
    other one are refused; None: not for that reason.
    """

    least: Count
    most: Count
    whole_blocks: bool
    max_aspect: Positive | None
    rule: Literal["area_bounds"] = "area_bounds"


@dataclass(frozen=True, slots=True)
class LargestArea:
    """The sides become the largest multiples of a block's side that keep the aspect ratio, with at most ``most``
    pixels. Small pictures grow (Gemma 4).
    """

    most: Count
    rule: Literal["largest_area"] = "largest_area"


@dataclass(frozen=True, slots=True)
class EvenTiles:
    """The resized picture is resized again, to multiples of ``side``, and cut into tiles of that side. If there are
    several, that picture as one tile is the last, the overview (SmolVLM, Idefics 3).
    """

    side: Count
    rule: Literal["even"] = "even"


@dataclass(frozen=True, slots=True)
class TileGrid:
    """Pictures of more than ``above`` pixels, as multiples of a block's side, are resized to a grid of ``least`` to
    ``most`` tiles of ``side`` pixels, whose aspect ratio is the closest. With ``overview``, the picture without a grid
    is the last tile (LFM2-VL).
    """

    side: Count
    least: Count
    most: Count
    above: Positive
    overview: bool
    rule: Literal["grid"] = "grid"


@dataclass(frozen=True, slots=True)
class PositionSpec:
    """Which rows of the tower's table of positions a patch's position mixes, and with which weights.

    The table has ``side`` x ``side`` rows. "plain": a tile has as many patches. "fractions": the row at the same
    fraction of both sides (Idefics 3). "antialiased" and "corners": bilinear between the centres of rows,
    with a wider filter for fewer patches than rows, or between the outermost rows (PyTorch's align_corners). "axes":
    two tables of ``side`` rows, one behind the other, first of columns, then of rows, whose rows are added.
    ``taps``: the most rows that a patch mixes; patches with fewer have row 0 with weight 0.
    """

    rule: Literal["plain", "fractions", "antialiased", "corners", "axes"]
    side: Count
    taps: Count = 1


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """How a picture reads in a prompt. A chat template writes ``mark`` for it, which is replaced by: ``start``, the
    tiles, ``end``. A tile is a text and as many of ``placeholder``, token ``placeholder_id``, as it has features. The
    text is ``whole`` for a single tile, ``overview`` for the last one, and ``tile`` for others, in which {row} and
    {column} count from 1. ``row_end`` follows each row of tiles.
    """

    mark: str
    placeholder: str
    placeholder_id: Natural
    start: str = ""
    whole: str = ""
    tile: str = ""
    row_end: str = ""
    overview: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """How pictures become patches of ``patch`` x ``patch`` pixels, in blocks of ``block`` x ``block`` patches.

    ``filter`` resizes, with antialiasing. The value of one of the 3 channels is (x - 255 mean) / (255 std), with x from
    0 to 255, or x / 255 if ``mean`` and ``std`` are None. ``order`` is that of a patch's elements. If ``tiles`` is
    None, a picture is one tile. ``video`` is None if the model reads no videos.
    """

    patch: Count
    block: Count
    order: Literal["channel_row_column", "row_column_channel"]
    filter: Literal["bilinear", "bicubic", "lanczos"]
    mean: tuple[float, ...] | None
    std: tuple[Positive, ...] | None
    size: FixedSize | LongestEdge | AreaBounds | LargestArea
    tiles: EvenTiles | TileGrid | None
    positions: PositionSpec
    prompt: ImagePrompt
    video: VideoSpec | None = None
