"""The process that decodes images: whatever a file does there, the server goes on."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from nearfar.compiler.ir.images import FixedSize, ImagePrompt, ImageSpec, PositionSpec
from nearfar.compiler.runtime.errors import NearfarError, RequestError, Unavailable
from nearfar.compiler.runtime.images.patches import CutImage
from nearfar.server_fallback.images import reader
from nearfar.server_fallback.images.options import ImageOptions
from nearfar.server_fallback.images.reader import ImageReader
from nearfar.server_fallback.processes.worker import WorkerEnded
from nearfar.server_fallback.text.chat_prompt import ChatImage

PROMPT = ImagePrompt("i", "i", 1)
SPEC = ImageSpec(
    2, 2, "row_column_channel", "bicubic", None, None, FixedSize(8, 8), None, PositionSpec("plain", 4), PROMPT
)


def data_url(data: bytes) -> str:
    return f"data:;base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def claiming(width: int, height: int) -> bytes:
    """A small PNG that says it has this size."""
    header = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 8, 2, 0, 0, 0)
    data = png(1, 1)
    start = data.index(b"IHDR")
    crc = struct.pack(">I", zlib.crc32(header))
    return data[:start] + header + crc + data[start + len(header) + 4 :]


def read(
    *files: bytes, seconds: float = 20.0, context: int = 100, change: Callable[[ImageReader], None] = lambda _: None
) -> list[CutImage]:
    async def work() -> list[CutImage]:
        opened = ImageReader(SPEC, ImageOptions(), seconds=seconds)
        change(opened)
        try:
            images = [ChatImage(data_url(data), f"messages[{index}]") for index, data in enumerate(files)]
            return await opened.read(images, context, "")
        finally:
            opened.close()

    return asyncio.run(work())


def test_files_are_decoded_in_one_process_one_after_the_other() -> None:
    pids: list[int | None] = []

    def keep(opened: ImageReader) -> None:
        call = opened._process.call

        async def counted(*given: object) -> object:
            found = await call(*given)  # type: ignore[arg-type]
            pids.append(opened._process.pid)
            return found

        opened._process.call = counted  # type: ignore[method-assign, assignment]

    first, second, again = read(png(20, 10), png(3, 3), png(20, 10), change=keep)
    assert first.tiles[0].shape == second.tiles[0].shape == (8, 8, 3)
    assert len(set(pids)) == 1
    # A file that was read a moment ago is not decoded again.
    assert again is first
    assert len(pids) == 2


def test_the_tiles_of_files_that_were_not_read_for_longest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "RECENT_BYTES", 2 * 8 * 8 * 3)
    files = [png(size, size) for size in (1, 2, 1, 3, 1, 2)]
    one, two, same, _, kept, anew = read(*files)
    assert one is same is kept
    assert anew is not two


def test_images_after_those_that_fill_the_context_are_not_decoded() -> None:
    """Each takes 4 tokens."""
    assert len(read(png(1, 1), png(2, 2), context=8)) == 2
    with pytest.raises(RequestError, match=r"length is 7 tokens\. However, messages has at least 8") as error:
        read(png(1, 1), png(2, 2), b"not an image", context=7)
    assert error.value.details["code"] == "context_length_exceeded"
    # Nor after one that is wrong.
    with pytest.raises(RequestError, match=r"^messages\[0\]") as error:
        read(b"not an image", png(1, 1), png(2, 2), b"another", context=7)
    assert "messages[3]" not in error.value.message


def test_a_file_that_claims_a_huge_size_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(RequestError, match="has 9000 x 9000 pixels, and at most 50000000 are allowed"):
        read(claiming(9000, 9000))
    with pytest.raises(RequestError, match="has more than 50000000 pixels"):
        read(claiming(100_000, 100_000))


def test_a_file_that_takes_too_long_is_an_error_of_its_request() -> None:
    with pytest.raises(RequestError, match=r"messages\[0\]: the picture takes more than 0\.001 s to read") as error:
        read(png(4000, 4000), seconds=0.001)
    assert (error.value.details["param"], error.value.details["code"]) == ("messages[0]", "invalid_image")


@pytest.mark.parametrize(
    ("ended", "error", "message"),
    [
        (WorkerEnded(1), RequestError, "needs too much memory, or is damaged"),
        (MemoryError(), RequestError, "needs too much memory"),
        (WorkerEnded(-9), Unavailable, "the process that decodes images was ended"),
    ],
)
def test_a_process_that_ends_fails_the_request_only(ended: Exception, error: type[NearfarError], message: str) -> None:
    def fail(opened: ImageReader) -> None:
        async def call(*_: object) -> object:
            raise ended

        opened._process.call = call  # type: ignore[method-assign, assignment]

    with pytest.raises(error, match=message):
        read(png(1, 1), change=fail)
