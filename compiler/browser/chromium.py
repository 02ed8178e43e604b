"""Headless Chromium on the page: wait until a bundle is loaded, ask, read the answer as it streams, take a screenshot."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ..errors import BundleError, ToolError

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Every machine has SwiftShader, which runs WebGPU on the CPU. If a kernel leaves the zeroing of its workgroup memory to SwiftShader, that
# emits one store for each element, and kernels with large tiles take five times as long to compile; without the extension, Dawn writes a
# loop into the kernel, and the memory starts as zeros all the same.
SWIFTSHADER_FLAGS = (
    "--use-webgpu-adapter=swiftshader",
    "--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension",
)
# The later ones keep Chromium from contacting Google at every start.
FLAGS = (
    "--no-sandbox", "--enable-unsafe-webgpu", *SWIFTSHADER_FLAGS, "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
# Of the model on the page's device; a server may answer before, or instead of it.
READ_STATE = """() => ({
    near: document.body.dataset.state === "error" ? "failed" : document.body.dataset.near,
    error: document.getElementById("failure-message").textContent || document.getElementById("near-why").textContent,
    device: document.getElementById("device").textContent,
})"""
READ_ANSWER = """() => {
    const answer = [...document.querySelectorAll(".answer")].at(-1);
    return {text: answer.querySelector(".text").dataset.markdown ?? "", problem: answer.querySelector(".problem")?.textContent ?? "",
            state: answer.dataset.state, ttft: Number(answer.dataset.ttftMs), speed: Number(answer.dataset.tokensPerSecond)};
}"""
LOAD_SECONDS = 300
ANSWER_SECONDS = 300
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    time_to_first_token_ms: float
    tokens_per_second: float


class Page:
    """A page in headless Chromium, while in a ``with`` block. Raises ToolError where Chromium or Playwright is not installed."""

    def __init__(self, url: str) -> None:
        try:
            from playwright.sync_api import sync_playwright
        except ImportError as error:
            raise ToolError(
                "Playwright is not installed; run \"pip install 'nearfar[demo]'\", or use 'nearfar demo --serve'"
            ) from error
        executable = find_chromium()
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        self._page = self._browser.new_page(viewport={"width": 1100, "height": 860})
        self._page.goto(url)

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()
        self._playwright.stop()

    def wait_until_ready(self) -> str:
        """The device's description. Raises BundleError with the page's own message where loading fails."""
        deadline = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < deadline:
            found = self._page.evaluate(READ_STATE)
            if found["near"] == "ready":
                return str(found["device"])
            if found["near"] == "failed":
                raise BundleError(f"the page could not load the bundle: {found['error']}")
            time.sleep(POLL_SECONDS)
        raise BundleError(f"the page did not load the bundle within {LOAD_SECONDS} s")

    def ask(self, prompt: str, on_text: Callable[[str], None] = lambda _: None) -> Answer:
        """Type a prompt, send it, hand on the text as it grows, and wait for the end."""
        self._page.fill("#prompt", prompt)
        count = self._page.locator(".answer").count()
        self._page.click("#send")
        self._page.locator(".answer").nth(count).wait_for(state="attached")
        shown, deadline = 0, time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            found = self._page.evaluate(READ_ANSWER)
            on_text(found["text"][shown:])
            shown = len(found["text"])
            if found["problem"]:
                raise BundleError(f"the page could not answer: {found['problem']}")
            if found["state"] == "done":
                return Answer(found["text"], found["ttft"], found["speed"])
            time.sleep(POLL_SECONDS)
        raise BundleError(f"the page did not finish its answer within {ANSWER_SECONDS} s")

    def screenshot(self, path: Path) -> None:
        self._page.screenshot(path=path)


def find_chromium() -> str:
    """The path of a Chromium on this machine. Raises ToolError where there is none."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        raise ToolError(
            "Chromium was not found; install it (Debian: apt-get install chromium), or use 'nearfar demo --serve'"
        )
    return found
