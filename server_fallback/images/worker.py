"""The code that runs in the process that decodes images and cuts them into tiles. Files may be hostile, so their
decoders may hang, crash or use all memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.images.decode import decode_image
from nearfar.compiler.runtime.images.patches import CutImage, cut_image

from ..processes.worker_loop import serve


@dataclass(frozen=True, slots=True)
class ReadJob:
    """The bytes of a file, and how the model reads pictures."""

    data: bytes
    spec: ImageSpec
    max_pixels: int | None


def main() -> None:
    serve(lambda _: read)


def read(job: object) -> CutImage:
    """Raises RequestError for a file that is not an image, or too large."""
    assert isinstance(job, ReadJob)
    return cut_image(job.spec, decode_image(job.data, job.max_pixels))
