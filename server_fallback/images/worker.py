"""The code that runs in the process that decodes images and videos and cuts them into tiles. Files may be hostile, so
their decoders may hang, crash or use all memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.images.decode import decode_image
from nearfar.compiler.runtime.images.decode_video import open_video
from nearfar.compiler.runtime.images.patches import CutImage, cut_image
from nearfar.compiler.runtime.images.videos import VideoFrames, cut_video

from ..processes.worker_loop import serve


@dataclass(frozen=True, slots=True)
class ReadJob:
    """The bytes of a file, and how the model reads pictures."""

    data: bytes
    spec: ImageSpec
    max_pixels: int | None

    def digest(self) -> bytes:
        return sha256(self.data).digest()


@dataclass(frozen=True, slots=True)
class VideoJob:
    """The bytes of a video's file, or of those of its frames, of which a second has ``fps``."""

    data: bytes
    spec: ImageSpec
    frames: tuple[bytes, ...] = ()
    fps: float = 0.0

    def digest(self) -> bytes:
        """Differs from that of a picture with the same bytes."""
        found = sha256(f"video {self.fps} ".encode())
        for each in (self.data, *self.frames):
            found.update(sha256(each).digest())
        return found.digest()


def main() -> None:
    serve(lambda _: read)


def read(job: object) -> CutImage:
    """Raises RequestError for a file that is not an image or a video, or too large."""
    if isinstance(job, VideoJob):
        if not job.frames:
            return cut_video(job.spec, open_video(job.data))
        return cut_video(job.spec, VideoFrames.of([decode_image(data) for data in job.frames], job.fps))
    assert isinstance(job, ReadJob)
    return cut_image(job.spec, decode_image(job.data, job.max_pixels))
