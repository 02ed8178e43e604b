"""Decodes the frames of a video's file with PyAV: those at the wanted indices, turned upright, RGB."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...shared.script import SharedScript
from ..errors import RequestError, ToolError
from .resize import Bytes
from .videos import VideoFrames, require_same_size

# FFmpeg's names of what `videoKind` tells apart.
DEMUXERS = {"mp4": "mov", "webm": "matroska"}
MAX_PACKETS = 240 * 600


def open_video(data: bytes) -> VideoFrames:
    """The video of a file's bytes.

    Raises RequestError for files of other formats, damaged and incomplete ones, and those without pictures; ToolError
    without PyAV.
    """
    try:
        import av
        import av.error
    except ImportError as error:
        raise ToolError("videos need PyAV; run pip install 'nearfar[video]'") from error
    script = SharedScript.of_thread()
    script.ask("requireVideoBytes", len(data))
    kind = script.ask("videoKind", data[:1024].decode("latin-1"), len(data))
    if kind["problem"] is not None:
        raise RequestError(f"videos: the video {kind['problem']}")
    try:
        # A format that is named cannot be another one, such as a playlist that names further files.
        container = av.open(io.BytesIO(data), format=DEMUXERS[kind["container"]])
        if not container.streams.video:
            raise RequestError("videos: the video has sound alone; send it as input_audio")
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        return _frames(container, stream)
    except (av.error.FFmpegError, EOFError, OverflowError, ValueError) as error:
        raise damaged(error) from error


def damaged(error: Exception | None = None) -> RequestError:
    reason = "" if error is None else f": {error}"
    return RequestError(f"videos: the video is damaged or incomplete{reason}; send it again")


def _frames(container: Any, stream: Any) -> VideoFrames:
    times, starts, count = list[int](), list[int](), 0
    for packet in container.demux(stream):
        time = packet.pts if packet.pts is not None else packet.dts
        if packet.size == 0 or time is None:
            continue
        count += 1
        if count > MAX_PACKETS:
            raise RequestError(f"videos: the video has more than {MAX_PACKETS} frames; cut it")
        if not packet.is_discard:
            times.append(time)
            if packet.is_keyframe:
                starts.append(time)
    if stream.frames > count:
        raise damaged()
    times.sort()
    starts.sort()
    if not times:
        raise RequestError("videos: the video has no frames; send another one")
    rate = stream.average_rate or stream.guessed_rate
    if not rate:
        raise RequestError("videos: the video does not say how many frames a second has; convert it to MP4 or WebM")
    first = next(_decoded(container, stream, times[:1], starts))
    height, width = first.shape[:2]

    def read(indices: Sequence[int]) -> Iterator[Bytes]:
        for frame in _decoded(container, stream, [times[index] for index in indices], starts):
            require_same_size(first, frame)
            yield frame

    return VideoFrames(len(times), float(rate), width, height, read)


def _decoded(container: Any, stream: Any, wanted: Sequence[int], starts: Sequence[int]) -> Iterator[Bytes]:
    """The frames at these times. Raises RequestError for a damaged one."""
    import av.error

    try:
        frames: Iterator[Any] = iter(())
        at: int | None = None
        frame: Any = None
        for time in wanted:
            start = starts[max(bisect_right(starts, time) - 1, 0)] if starts else time
            # The decoder continues unless a frame that needs no other one is nearer.
            if at is None or start > at:
                container.seek(min(start, time), stream=stream, backward=True)
                frames, frame = container.decode(stream), None
            # A frame that is not shown stands for the next one.
            if frame is None or frame.pts < time:
                frame = next((frame for frame in frames if frame.pts is not None and frame.pts >= time), None)
            if frame is None:
                raise damaged()
            at = time
            pixels = frame.to_ndarray(format="rgb24")
            yield np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90) % 4))
    except (av.error.FFmpegError, EOFError) as error:
        raise damaged(error) from error
