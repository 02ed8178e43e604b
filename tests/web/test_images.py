"""Decoding pictures in headless Chromium, on the page and in a worker, and preparing what was decoded."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from image_files import RECORDED
from playwright.sync_api import Browser, Page
from site_pages import script_page
from static_site import serve

from nearfar.compiler.runtime.images.decode import decode_image

FILES: dict[str, Any] = json.loads(RECORDED.read_text())
# (kind of source, base64) -> the size and the pixels, or the error.
DECODE = """async ([kind, text]) => {
  const { decodeImage } = await import("./images.js");
  const blob = await (await fetch(`data:application/octet-stream;base64,${text}`)).blob();
  const address = URL.createObjectURL(blob);
  const sources = {
    blob: () => blob,
    address: () => address,
    bitmap: () => createImageBitmap(blob, { premultiplyAlpha: "none", colorSpaceConversion: "none" }),
    element: () => Object.assign(new Image(), { src: address }),
  };
  try {
    const { width, height, data } = await decodeImage(await sources[kind]());
    return { width, height, pixels: Array.from(data) };
  } catch (error) {
    return { error: error.name, message: error.message };
  }
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with script_page(browser, tmp_path_factory.mktemp("images"), "images.js", DECODE) as page:
        yield page


def decoded(page: Page, name: str, kind: str = "blob") -> Any:
    return page.evaluate(DECODE, [kind, FILES[name]["data"]])


def of_kind(kind: str) -> list[str]:
    return [name for name, file in FILES.items() if file["kind"] == kind]


def test_pixels_of_files_without_losses_are_those_of_python(page: Page) -> None:
    """Also those of transparent pixels, whose colours a canvas loses."""
    for name in of_kind("lossless"):
        found = decoded(page, name)
        assert "pixels" in found, (name, found)
        assert hashlib.sha256(bytes(found["pixels"])).hexdigest() == FILES[name]["pixels"], name


def test_pixels_of_files_with_losses_are_near_and_upright(page: Page) -> None:
    for name in of_kind("lossy"):
        found = decoded(page, name)
        assert "pixels" in found, (name, found)
        expected = decode_image(base64.b64decode(FILES[name]["data"]))
        assert (found["height"], found["width"]) == expected.shape[:2], name
        differences = np.abs(np.reshape(found["pixels"], expected.shape) - expected.astype(int))
        assert differences.mean() < 3, name


def test_files_that_python_refuses_are_refused(page: Page) -> None:
    for name in of_kind("refused"):
        found = decoded(page, name)
        assert (found.get("error"), FILES[name]["reason"] in found.get("message", "")) == ("RequestError", True), (
            name,
            found,
        )


def test_damaged_files_are_decoded_or_refused(page: Page) -> None:
    random = Random(0)
    for name, file in FILES.items():
        for _ in range(2):
            data = bytearray(base64.b64decode(file["data"]))
            for _ in range(3 if data else 0):
                data[random.randrange(len(data))] = random.randrange(256)
            found = page.evaluate(DECODE, ["blob", base64.b64encode(data).decode()])
            # A damaged size may be beyond what a browser reads exactly.
            assert "pixels" in found or found["error"] in ("RequestError", "DeviceError"), (name, found)


def test_every_kind_of_source_has_the_same_pixels(page: Page) -> None:
    for name in ("png", "alpha", "turned png"):
        expected = decoded(page, name)
        assert "pixels" in expected
        for kind in ("address", "bitmap", "element"):
            assert decoded(page, name, kind) == expected, (name, kind)


def test_an_element_that_shows_an_svg_is_refused(page: Page) -> None:
    found = page.evaluate(
        """async () => {
          const { decodeImage } = await import("./images.js");
          const element = Object.assign(new Image(), { src: "data:image/svg+xml,<svg/>" });
          return decodeImage(element).catch((error) => error.message);
        }"""
    )
    assert "SVG" in found


def test_a_picture_of_another_site_is_refused_by_name(page: Page, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(base64.b64decode(FILES["png"]["data"]))
    with serve(tmp_path) as other:
        message = page.evaluate(
            """async (src) => {
              const { decodeImage } = await import("./images.js");
              return decodeImage(Object.assign(new Image(), { src })).catch(({ message }) => message);
            }""",
            f"{other}a.png",
        )
    assert "from another site" in message


def test_a_worker_decodes_as_a_page_does(page: Page) -> None:
    for name in ("png", "alpha", "turned 6"):
        found = page.evaluate(
            """(data) => new Promise((resolve) => {
              const worker = new Worker("worker.js");
              worker.onmessage = (event) => resolve(event.data);
              worker.postMessage(data);
            })""",
            ["blob", FILES[name]["data"]],
        )
        assert found == decoded(page, name), name


def test_a_picture_larger_than_a_strip_of_rows_is_complete(page: Page) -> None:
    found = page.evaluate(
        """async () => {
          const { decodeImage } = await import("./images.js");
          const canvas = new OffscreenCanvas(2100, 2000);
          const context = canvas.getContext("2d");
          for (let row = 0; row < 2000; row++) {
            context.fillStyle = `rgb(${row & 255} ${row >> 8} 7)`;
            context.fillRect(0, row, 2100, 1);
          }
          const { data } = await decodeImage(await canvas.convertToBlob());
          const wrong = (row) => [0, 2099].some((x) => {
            const at = (row * 2100 + x) * 3;
            return data[at] !== (row & 255) || data[at + 1] !== row >> 8 || data[at + 2] !== 7;
          });
          return Array.from({ length: 2000 }, (_, row) => row).filter(wrong).length;
        }"""
    )
    assert found == 0
