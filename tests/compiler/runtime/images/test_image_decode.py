"""Decoding pictures as transformers' load_image does, and refusing what is none."""

from __future__ import annotations

import io
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from image_families import pattern
from PIL import Image
from transformers.image_utils import load_image

from nearfar.compiler.runtime.errors import RequestError, ToolError
from nearfar.compiler.runtime.images.decode import decode_image

PHOTO = Image.fromarray(pattern(37, 21))
GREY = PHOTO.convert("L")
ALPHA = PHOTO.convert("RGBA")
ALPHA.putalpha(GREY)


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(PHOTO, kind, exif=exif)


def png_of_size(width: int, height: int) -> bytes:
    """A file that claims a size, and has next to no data."""
    data = bytearray(saved(PHOTO, "PNG"))
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


FILES = {
    "png": saved(PHOTO, "PNG"),
    "jpeg": saved(PHOTO, "JPEG"),
    "progressive jpeg": saved(PHOTO, "JPEG", progressive=True),
    "webp": saved(PHOTO, "WEBP"),
    "gif": saved(PHOTO, "GIF"),
    "bmp": saved(PHOTO, "BMP"),
    "avif": saved(PHOTO, "AVIF"),
    "grey": saved(GREY, "PNG"),
    "grey jpeg": saved(GREY, "JPEG"),
    "1 bit": saved(GREY.convert("1"), "PNG"),
    "16 bit": saved(Image.fromarray(np.asarray(GREY).astype(np.uint16) * 257), "PNG"),
    "alpha": saved(ALPHA, "PNG"),
    "alpha webp": saved(ALPHA, "WEBP", lossless=True),
    "grey and alpha": saved(ALPHA.convert("LA"), "PNG"),
    "palette": saved(PHOTO.convert("P"), "PNG"),
    "palette with a transparent colour": saved(PHOTO.convert("P"), "PNG", transparency=3),
    "cmyk": saved(PHOTO.convert("CMYK"), "JPEG"),
    **{f"turned {each}": turned(each, "JPEG") for each in range(2, 9)},
    "turned png": turned(6, "PNG"),
    # A second picture, such as the map of a phone's brighter parts.
    "two jpegs": saved(PHOTO, "MPO", save_all=True, append_images=[GREY.convert("RGB")]),
}


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_of_load_image(name: str) -> None:
    theirs = np.asarray(load_image(Image.open(io.BytesIO(FILES[name]))))
    ours = decode_image(FILES[name])
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours, theirs)


def frames(kind: str) -> bytes:
    return saved(PHOTO, kind, save_all=True, append_images=[PHOTO.rotate(90, expand=False)])


REFUSED = {
    "an animated gif": (frames("GIF"), "animated"),
    "an animated png": (frames("PNG"), "animated"),
    "an animated webp": (frames("WEBP"), "animated"),
    "an svg": (b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>', "SVG"),
    "an svg with a declaration": (b'\xef\xbb\xbf <?xml version="1.0"?><svg/>', "SVG"),
    "a tiff": (saved(PHOTO, "TIFF"), "TIFF"),
    "a pdf": (b"%PDF-1.7\n", "PDF"),
    "a heic file": (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
    "an icon": (saved(PHOTO, "ICO"), "unknown format"),
    "text": (b"a picture", "unknown format"),
    "nothing": (b"", "unknown format"),
    "half a png": (saved(PHOTO, "PNG")[:300], "damaged or incomplete"),
    "half a jpeg": (saved(PHOTO, "JPEG")[:-40], "damaged or incomplete"),
    "half a webp": (saved(PHOTO, "WEBP")[:-40], "damaged or incomplete|unknown format"),
    "half a gif": (saved(PHOTO, "GIF")[:-200], "damaged or incomplete"),
    "a bomb": (png_of_size(30000, 30000), "pixels"),
    "a large picture": (png_of_size(8000, 8000), "8000 x 8000 pixels, and at most 50000000"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_picture_is_refused_by_name(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(RequestError, match=reason):
        decode_image(data)


def test_a_bound_may_be_lower() -> None:
    with pytest.raises(RequestError, match="at most 776"):
        decode_image(FILES["png"], max_pixels=37 * 21 - 1)
    assert decode_image(FILES["png"], max_pixels=37 * 21).shape == (21, 37, 3)


def test_pillow_is_named_if_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ToolError, match=r"nearfar\[images\]"):
        decode_image(FILES["png"])
