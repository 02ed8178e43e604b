"""Opens the bench page in headless Chromium with a freshly compiled bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoints import QWEN2_NARROW, Shapes, write_checkpoint
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from nearfar.compiler.browser.chromium import FLAGS, SWIFTSHADER_FLAGS, find_chromium
from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "bench"
TIMEOUT_MS = 600_000
# Without the flag that requests the CPU adapter.
GPU_FLAGS = (
    *(flag for flag in FLAGS if flag not in SWIFTSHADER_FLAGS),
    "--enable-features=Vulkan",
    "--ignore-gpu-blocklist",
)
FINDS_ADAPTER = "async () => navigator.gpu !== undefined && (await navigator.gpu.requestAdapter()) !== null"


def compiled(shapes: Shapes, context: int) -> Path:
    """A freshly compiled q4f16 bundle with random weights of these shapes. The checkpoint is written once."""
    checkpoint, bundle = FOLDER / shapes.name, FOLDER / f"{shapes.name}-bundle"
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(shapes, checkpoint)
    compile_model(str(checkpoint), bundle, CompileOptions(context=context, force=True))
    return bundle


def narrow_bundle() -> Path:
    """A bundle of 24 layers that are narrow enough for a CPU."""
    return compiled(QWEN2_NARROW, 512)


@contextmanager
def bench_page(bundle: Path, *, gpu: bool) -> Iterator[Page]:
    """The page, once it is ready to measure. With ``gpu`` it runs on a GPU if Chromium finds one, otherwise on
    SwiftShader.
    """
    with sync_playwright() as playwright, PageServer(bundle) as server:
        browser = launch_on_gpu(playwright, server.url) if gpu else None
        browser = browser or playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"{server.url}bench.html")
        page.wait_for_selector("body:not([data-state=loading])")
        yield page
        browser.close()


def launch_on_gpu(playwright: Playwright, url: str) -> Browser | None:
    """Returns None if Chromium finds only its own CPU adapter."""
    browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(GPU_FLAGS))
    page = browser.new_page()
    # WebGPU needs a secure origin, and localhost is one.
    page.goto(f"{url}icon.svg")
    found = bool(page.evaluate(FINDS_ADAPTER))
    page.close()
    if found:
        return browser
    browser.close()
    return None
