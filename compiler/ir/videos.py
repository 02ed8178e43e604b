"""VideoSpec: which frames of a video a model reads, how they become tiles, and how the video reads in a prompt. It is
data, which Python and the page evaluate with `web/src/shared/videos`.

Each tile is one frame, or for towers that join frames several consecutive ones. Its features take the places of the
placeholders of pictures, so the engines treat a video as a picture of many tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .expr import Count, Natural, Positive


@dataclass(frozen=True, slots=True)
class BySeconds:
    """``fps`` frames a second, rounded, but 1 to ``most``, evenly from the first to the last one, with indices rounded
    down. Of videos that are more than 2 ``skip`` seconds longer than ``most`` times ``fps``, ``skip`` seconds at both
    ends are left out (SmolVLM).
    """

    fps: Positive
    most: Count
    skip: Natural
    rule: Literal["seconds"] = "seconds"


@dataclass(frozen=True, slots=True)
class ByRate:
    """``fps`` frames a second, rounded down, but ``least`` to ``most`` and no more than there are, evenly from the
    first to the last one, with indices rounded, half to even (Qwen3-VL).
    """

    fps: Positive
    least: Count
    most: Count
    rule: Literal["rate"] = "rate"


@dataclass(frozen=True, slots=True)
class ByCount:
    """``count`` frames at the beginnings of equal parts of the video; all of a video that has no more (Gemma 4)."""

    count: Count
    rule: Literal["count"] = "count"


@dataclass(frozen=True, slots=True)
class FrameEdge:
    """The longer side becomes ``pixels``, as by `LongestEdge`; the frame is then resized to ``side`` x ``side``,
    whatever its aspect ratio (SmolVLM).
    """

    pixels: Count
    most: Count
    side: Count
    rule: Literal["edge"] = "edge"


@dataclass(frozen=True, slots=True)
class FrameArea:
    """As `LargestArea`, for each frame (Gemma 4)."""

    most: Count
    rule: Literal["area"] = "area"


@dataclass(frozen=True, slots=True)
class FrameVolume:
    """Both sides become multiples of a block's side: rounded, half to even, if all frames together then have ``least``
    to ``most`` pixels, otherwise scaled to these bounds. If ``each`` is given, ``most`` is the smaller one of ``each``
    and an equal part of ``most`` for each frame, but at least 1.05 times ``least``. No frame is larger than a picture.
    Frames whose longer side is more than ``max_aspect`` times the other one are refused (Qwen3-VL).
    """

    least: Count
    most: Count
    each: Count | None
    max_aspect: Positive
    rule: Literal["volume"] = "volume"


@dataclass(frozen=True, slots=True)
class VideoPrompt:
    """How a video reads in a prompt. A chat template writes ``mark`` for it, which is replaced by: ``start``, the tiles
    with ``between`` between them, ``end``. A tile is ``tile`` with its placeholders for {features}.

    {mm:ss} and {seconds} are the time of a tile, the latter with one decimal; the time of several frames is the mean of
    the first and the last one. In ``start``, {count} is the number of frames in English words, and {h:mm:ss} the length
    of the video.
    """

    mark: str
    tile: str
    start: str = ""
    between: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class VideoSpec:
    """``frames`` are those of a tile; the last one is repeated for a tile that lacks some."""

    sampling: BySeconds | ByRate | ByCount
    size: FrameEdge | FrameArea | FrameVolume
    frames: Count
    prompt: VideoPrompt
