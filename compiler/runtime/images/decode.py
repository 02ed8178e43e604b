"""Decodes pictures as transformers' load_image does: turned upright by their EXIF orientation, then converted to RGB.

Pillow decodes them, and nothing else is left to it. What it cannot decode whole is a RequestError. Greys of 16 bits are
scaled, as browsers do and `load_image` does not.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ...shared.script import SharedScript
from ..errors import RequestError, ToolError

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes: TypeAlias = npt.NDArray[np.uint8]

# Formats that browsers decode, too. Pillow's other decoders are of no use here, and some run other programs.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")
# What Pillow's decoders raise for damaged files.
DAMAGED = (
    EOFError, IndexError, KeyError, OSError, OverflowError, RuntimeError, SyntaxError, TypeError, ValueError,
    struct.error, zlib.error,
)  # fmt: skip


def decode_image(data: bytes, max_pixels: int | None = None) -> Bytes:
    """The pixels (H, W, 3) of a file's bytes, RGB.

    Raises RequestError for files of other formats, damaged and animated ones, and pictures of more than ``max_pixels``
    (None: as many as pages decode), which are not decoded; ToolError without Pillow.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ToolError("pictures need Pillow; run pip install 'nearfar[images]'") from error
    script = SharedScript.of_thread()
    reason = script.ask("unreadablePicture", data[:1024].decode("latin-1"))
    if reason is not None:
        raise RequestError(f"images: the picture {reason}")
    if max_pixels is None:
        max_pixels = int(script.ask("attachmentBounds")["picture_pixels"])
    try:
        # Reads the header only.
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
        _require_size(opened.width, opened.height, max_pixels)
        _require_one_picture(opened)
        picture = _of_8_bits(ImageOps.exif_transpose(opened)).convert("RGB")
    except UnidentifiedImageError as error:
        raise RequestError(
            "images: the picture has an unknown format; send a PNG, JPEG, WebP, GIF, BMP or AVIF file"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RequestError(f"images: the picture has more than {max_pixels} pixels; make it smaller") from error
    except DAMAGED as error:
        raise RequestError(f"images: the picture is damaged or incomplete: {error}; send it again") from error
    return np.asarray(picture)


def _of_8_bits(picture: Image) -> Image:
    """Greys of 16 bits by their upper eight, as Pillow itself reads colours of 16 bits; its conversion would make white
    of all but the darkest ones.
    """
    from PIL import Image as pillow

    if not picture.mode.startswith("I"):
        return picture
    greys = np.clip(np.asarray(picture), 0, 2**16 - 1)
    return pillow.fromarray((greys >> 8).astype(np.uint8))


def _require_one_picture(opened: Image) -> None:
    # In a JPEG, the further pictures are its depth or its brighter parts.
    if opened.format != "MPO" and getattr(opened, "is_animated", False):
        raise RequestError("images: the picture is animated, which is not supported; send one of its pictures")


def _require_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise RequestError(
            f"images: the picture has {width} x {height} pixels, and at most {max_pixels} are allowed; make it smaller",
            width=width,
            height=height,
        )
