"""Small files of videos, which PyAV makes."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

# Frames, each with the grey level 8 times its number.
GREYS = 30
CODECS = {
    "webm": ("webm", "libvpx"),
    "vp9": ("webm", "libvpx-vp9"),
    "mp4": ("mp4", "mpeg4"),
    "h264": ("mp4", "libx264"),
}


def open_file(kind: str) -> tuple[Any, io.BytesIO, str]:
    av = pytest.importorskip("av", reason="PyAV is not installed; pip install 'nearfar[video]'")
    container, codec = CODECS[kind]
    file = io.BytesIO()
    return av.open(file, "w", format=container), file, codec


@cache
def grey_video(kind: str, width: int = 48, height: int = 32) -> bytes:
    """GREYS frames, ten a second, with a key frame at every eighth one."""
    import av

    container, file, codec = open_file(kind)
    stream = container.add_stream(codec, rate=10)
    stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", 8
    for number in range(GREYS):
        pixels = np.full((height, width, 3), 8 * number, np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
    container.mux(stream.encode(None))
    container.close()
    return file.getvalue()


def still_video(kind: str) -> bytes:
    """ "sound": a WebM without pictures; "sizes": a VP9 whose frames change their size."""
    import av

    container, file, codec = open_file("vp9")
    if kind == "sound":
        stream = container.add_stream("libopus", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48000), np.float32), format="flt", layout="mono")
        frame.sample_rate = 48000
        container.mux([*stream.encode(frame), *stream.encode(None)])
        container.close()
        return file.getvalue()
    stream = container.add_stream(codec, rate=10)
    stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
    other = av.CodecContext.create(codec, "w")
    other.width, other.height, other.pix_fmt, other.time_base = 32, 48, "yuv420p", Fraction(1, 10)
    packets = [*stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 48, 3), np.uint8), format="rgb24"))]
    packets += stream.encode(None)
    container.mux(packets)
    frame = av.VideoFrame.from_ndarray(np.zeros((48, 32, 3), np.uint8), format="rgb24")
    for packet in [*other.encode(frame), *other.encode(None)]:
        packet.stream, packet.pts, packet.dts, packet.time_base = stream, 1000, 1000, stream.time_base
        container.mux(packet)
    container.close()
    return file.getvalue()


def trimmed_video(first: int) -> bytes:
    """grey_video("h264") whose edit list begins with another frame."""
    data = bytearray(grey_video("h264"))
    edit = data.index(b"elst") + 16
    scale = int.from_bytes(data[(at := data.index(b"mdhd") + 16) : at + 4], "big")
    start = int.from_bytes(data[edit : edit + 4], "big") + first * scale // 10
    data[edit : edit + 4] = start.to_bytes(4, "big")
    return bytes(data)


def turned_video(quarters: int) -> bytes:
    """A frame of H.264 with a bright corner, which its file turns clockwise."""
    import av

    container, file, codec = open_file("h264")
    stream = container.add_stream(codec, rate=10)
    stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
    pixels = np.full((32, 48, 3), 60, np.uint8)
    pixels[:16, :16] = 220
    container.mux([*stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")), *stream.encode(None)])
    container.close()
    data = bytearray(file.getvalue())
    cos, sin = [(1, 0), (0, 1), (-1, 0), (0, -1)][quarters]
    matrix = data.index(b"tkhd") + 44
    for offset, value in ((0, cos), (4, sin), (12, -sin), (16, cos)):
        data[matrix + offset : matrix + offset + 4] = (value << 16).to_bytes(4, "big", signed=True)
    return bytes(data)


def record() -> None:
    """Write `tests/conformance/video_files.json`: files, and the samples that FFmpeg finds in them."""
    import base64
    import json
    from pathlib import Path

    import av

    found = {}
    for kind, codec in (("webm", "vp8"), ("vp9", "vp09"), ("h264", "avc1")):
        data = grey_video(kind)
        with av.open(io.BytesIO(data)) as container:
            packets = [packet for packet in container.demux(video=0) if packet.size]
        keys = [index for index, packet in enumerate(packets) if packet.is_keyframe]
        text = base64.b64encode(data).decode()
        found[kind] = {"data": text, "codec": codec, "keys": keys, "sizes": [packet.size for packet in packets]}
    (Path(__file__).parent / "conformance/video_files.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    record()
