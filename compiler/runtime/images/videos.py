"""From the frames of a video to what a tower reads: `web/src/shared/videos` chooses the frames, their sizes, and the
text in the prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ...ir.images import ImageSpec
from ...shared.script import SharedScript
from ..errors import RequestError
from .patches import CutImage, PreparedImage, prepared
from .resize import Bytes, resize_u8


@dataclass(frozen=True, slots=True)
class VideoFrames:
    """``total`` frames, of which a second has ``fps`` on average. ``read`` returns those at ascending indices, each
    (height, width, 3).
    """

    total: int
    fps: float
    width: int
    height: int
    read: Callable[[Sequence[int]], Iterable[Bytes]]

    @staticmethod
    def of(frames: Sequence[Bytes], fps: float) -> VideoFrames:
        """Raises RequestError for frames of different sizes."""
        if not frames:
            raise RequestError("videos: the video has no frames; send another one")
        for frame in frames:
            require_same_size(frames[0], frame)
        height, width = frames[0].shape[:2]
        return VideoFrames(len(frames), fps, width, height, lambda indices: (frames[index] for index in indices))


def require_same_size(first: Bytes, frame: Bytes) -> None:
    if frame.shape != first.shape:
        sizes = " to ".join(f"{each.shape[1]} x {each.shape[0]}" for each in (first, frame))
        raise RequestError(f"videos: the size of the frames changes from {sizes}; convert the video to a single size")


def cut_video(spec: ImageSpec, video: VideoFrames) -> CutImage:
    """A video as a picture of many tiles. A tile of several frames has their channels one after the other.

    Raises RequestError for videos that are not read.
    """
    shape = {"total": video.total, "fps": video.fps, "width": video.width, "height": video.height}
    script = SharedScript.of_thread()
    layout = script.ask("videoLayout", asdict(spec), shape)
    assert spec.video is not None, "videoLayout refuses models that read no videos"
    frames = list[Bytes]()
    # A frame is resized before the next one is decoded.
    for frame in video.read(layout["indices"]):
        for size in layout["resizes"]:
            frame = resize_u8(frame, size["width"], size["height"], spec.filter)
        frames.append(frame)
    if len(frames) != len(layout["indices"]):
        raise RequestError("videos: the video is damaged or incomplete; send it again")
    height, width = frames[0].shape[:2]
    digest = hashlib.sha256(script.ask("imageKeyHead", asdict(spec), width, height, len(frames)).encode())
    for frame in frames:
        digest.update(np.ascontiguousarray(frame).data)
    each = spec.video.frames
    frames += [frames[-1]] * (-len(frames) % each)
    tiles = frames if each == 1 else [np.concatenate(frames[at : at + each], -1) for at in range(0, len(frames), each)]
    return CutImage(tuple(tiles), (layout["features"],) * len(tiles), layout["text"], digest.hexdigest(), "video")


def prepare_video(spec: ImageSpec, video: VideoFrames) -> PreparedImage:
    """Raises RequestError for videos that are not read."""
    return prepared(spec, cut_video(spec, video))
