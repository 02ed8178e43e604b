"""Small files of pictures for `tests/conformance/image_files.json`, with which Python and the page are compared.

``python tests/image_files.py`` writes it. Files that are refused have a part of the reason, which both sides name.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from image_families import pattern
from PIL import Image, PngImagePlugin

RECORDED = Path(__file__).parent / "conformance/image_files.json"
PHOTO = Image.fromarray(pattern(11, 7))
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


def frames(kind: str) -> bytes:
    return saved(PHOTO, kind, save_all=True, append_images=[PHOTO.rotate(180)])


def with_gamma(gamma: float) -> bytes:
    """A PNG that says how bright its numbers are, which transformers does not read."""
    chunks = PngImagePlugin.PngInfo()
    chunks.add(b"gAMA", round(100_000 * gamma).to_bytes(4, "big"))
    return saved(PHOTO, "PNG", pnginfo=chunks)


def png_of_size(width: int, height: int) -> bytes:
    """A file that claims a size, and has next to no data."""
    data = bytearray(saved(PHOTO, "PNG"))
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def lossless() -> dict[str, bytes]:
    """Those whose pixels are the same wherever they are decoded."""
    return {
        "png": saved(PHOTO, "PNG"),
        "interlaced gif": saved(PHOTO.quantize(16), "GIF", interlace=1),
        "bmp": saved(PHOTO, "BMP"),
        "webp": saved(PHOTO, "WEBP", lossless=True),
        "grey": saved(GREY, "PNG"),
        "1 bit": saved(GREY.convert("1"), "PNG"),
        "alpha": saved(ALPHA, "PNG"),
        "alpha webp": saved(ALPHA, "WEBP", lossless=True, exact=True),
        "grey and alpha": saved(ALPHA.convert("LA"), "PNG"),
        "palette": saved(PHOTO.convert("P"), "PNG"),
        "palette with a transparent colour": saved(PHOTO.convert("P"), "PNG", transparency=3),
        "gamma": with_gamma(1.0),
        "turned png": turned(6, "PNG"),
    }


def lossy() -> dict[str, bytes]:
    return {
        "jpeg": saved(PHOTO, "JPEG"),
        "progressive jpeg": saved(PHOTO, "JPEG", progressive=True),
        "grey jpeg": saved(GREY, "JPEG"),
        "webp with losses": saved(PHOTO, "WEBP"),
        "avif": saved(PHOTO, "AVIF", quality=90),
        **{f"turned {each}": turned(each, "JPEG") for each in range(2, 9)},
        # The second one is such as the map of a phone's brighter parts.
        "two jpegs": saved(PHOTO, "MPO", save_all=True, append_images=[GREY.convert("RGB")]),
    }


def converted() -> dict[str, bytes]:
    """Those that Python and a browser convert each in its own way, CMYK as transformers does."""
    return {
        "cmyk": saved(PHOTO.convert("CMYK"), "JPEG"),
        "16 bit": saved(Image.fromarray(np.asarray(GREY).astype(np.uint16) * 257), "PNG"),
    }


def refused() -> dict[str, tuple[bytes, str]]:
    return {
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
        "half a png": (saved(PHOTO, "PNG")[:110], "damaged or incomplete"),
        "the start of a png": (saved(PHOTO, "PNG")[:20], "damaged or incomplete"),
        "the start of a jpeg": (saved(PHOTO, "JPEG")[:60], "damaged or incomplete"),
        "half a gif": (saved(PHOTO, "GIF")[:-30], "damaged or incomplete"),
        "a bomb": (png_of_size(30000, 30000), "pixels"),
        "a large picture": (png_of_size(8000, 8000), "8000 x 8000 pixels, and at most 50000000"),
    }


def record() -> None:
    files: dict[str, dict[str, Any]] = {}
    groups = {"lossless": lossless(), "lossy": lossy(), "converted": converted()}
    for kind, group in groups.items():
        for name, data in group.items():
            with Image.open(io.BytesIO(data)) as picture:
                width, height = picture.size
                upright = np.asarray(picture.convert("RGB"))
            files[name] = {"kind": kind, "width": width, "height": height, "data": text_of(data)}
            if kind == "lossless" and not name.startswith("turned"):
                files[name]["pixels"] = hashlib.sha256(upright.tobytes()).hexdigest()
    for name, (data, reason) in refused().items():
        files[name] = {"kind": "refused", "reason": reason, "data": text_of(data)}
    files["turned png"]["pixels"] = hashlib.sha256(np.rot90(np.asarray(PHOTO), -1).tobytes()).hexdigest()
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in files.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    record()
