"""Decoding pictures as transformers' load_image does, and refusing files that are not pictures."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
from random import Random
from typing import Any

import numpy as np
import pytest
from image_files import RECORDED
from PIL import Image
from transformers.image_utils import load_image

from nearfar.compiler.runtime.errors import RequestError, ToolError
from nearfar.compiler.runtime.images.decode import decode_image

FILES: dict[str, Any] = json.loads(RECORDED.read_text())
PICTURES = [name for name, file in FILES.items() if file["kind"] != "refused"]


def data_of(name: str) -> bytes:
    return base64.b64decode(FILES[name]["data"])


# `load_image` makes white of its greys.
@pytest.mark.parametrize("name", [name for name in PICTURES if name != "16 bit"])
def test_pixels_are_those_of_load_image(name: str) -> None:
    theirs = np.asarray(load_image(Image.open(io.BytesIO(data_of(name)))))
    ours = decode_image(data_of(name))
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours, theirs)
    if "pixels" in FILES[name]:
        assert hashlib.sha256(ours.tobytes()).hexdigest() == FILES[name]["pixels"]


def test_greys_of_16_bits_are_those_of_8() -> None:
    """Pillow's own conversion would make white of all from 255 on."""
    greys = np.arange(0, 2**16, 257, dtype=np.uint16).reshape(16, 16)
    file = io.BytesIO()
    Image.fromarray(greys).save(file, "PNG", exif=turned(6))
    expected = np.rot90(np.arange(256, dtype=np.uint8).reshape(16, 16), -1)
    np.testing.assert_array_equal(decode_image(file.getvalue()), np.repeat(expected[..., None], 3, axis=2))


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x112] = orientation
    return exif


@pytest.mark.parametrize("name", sorted(FILES.keys() - PICTURES))
def test_what_is_no_picture_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=FILES[name]["reason"]):
        decode_image(data_of(name))


# Pillow warns of odd EXIF data.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_files_are_decoded_or_refused() -> None:
    """Bytes that change, are missing or are added."""
    random = Random(0)
    for name in FILES:
        for _ in range(60):
            data = bytearray(data_of(name))
            for _ in range(random.choice((1, 1, 2, 5, 20)) if data else 0):
                at = random.randrange(len(data))
                match random.randrange(4):
                    case 0:
                        data = data[: at + 1]
                    case 1:
                        data[at:at] = random.randbytes(8)
                    case _:
                        data[at] = random.randrange(256)
            try:
                decoded = decode_image(bytes(data), max_pixels=10**6)
            except RequestError:
                continue
            assert decoded.ndim == 3


def test_the_bound_of_pixels_may_be_lower() -> None:
    with pytest.raises(RequestError, match="at most 76 are allowed"):
        decode_image(data_of("png"), max_pixels=76)
    assert decode_image(data_of("png"), max_pixels=77).shape == (7, 11, 3)


def test_pillow_is_named_if_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ToolError, match=r"nearfar\[images\]"):
        decode_image(data_of("png"))
