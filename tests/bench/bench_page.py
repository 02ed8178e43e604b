"""The bench page in headless Chromium, with a bundle compiled now, for the benchmarks that run it."""

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
# Without the one that asks for the CPU's adapter.
GPU_FLAGS = (
    *(flag for flag in FLAGS if flag not in SWIFTSHADER_FLAGS),
    "--enable-features=Vulkan",
    "--ignore-gpu-blocklist",
)
FINDS_ADAPTER = "async () => navigator.gpu !== undefined && (await navigator.gpu.requestAdapter()) !== null"


def compiled(shapes: Shapes, context: int) -> Path:
    """A q4f16 bundle with random weights of these shapes, compiled now; the checkpoint is written once."""
    checkpoint, bundle = FOLDER / shapes.name, FOLDER / f"{shapes.name}-bundle"
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(shapes, checkpoint)
    compile_model(str(checkpoint), bundle, CompileOptions(context=context, force=True))
    return bundle


def narrow_bundle() -> Path:
    """24 layers, narrow enough for a CPU."""
    return compiled(QWEN2_NARROW, 512)


@contextmanager
def bench_page(bundle: Path, *, gpu: bool) -> Iterator[Page]:
    """The page once it is ready to measure. ``gpu``: on a GPU where Chromium finds one; else, and else always, on SwiftShader."""
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
    """None where Chromium finds no adapter but its own on the CPU."""
    browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(GPU_FLAGS))
    page = browser.new_page()
    # WebGPU is for addresses that count as secure, as this machine's do.
    page.goto(f"{url}icon.svg")
    found = bool(page.evaluate(FINDS_ADAPTER))
    page.close()
    if found:
        return browser
    browser.close()
    return None
