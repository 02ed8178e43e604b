"""Drives the page in headless Chromium: waits for a bundle to load, sends prompts and pictures, reads streamed
answers, takes screenshots.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..runtime.errors import BundleError, ToolError

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Every machine has SwiftShader, which runs WebGPU on the CPU. With the extension, SwiftShader zeroes a kernel's
# workgroup memory with one store per element, so kernels with large tiles take five times as long to compile. Without
# it, Dawn adds a loop to the kernel, which zeroes the memory too.
SWIFTSHADER_FLAGS = (
    "--use-webgpu-adapter=swiftshader",
    "--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension",
)
# For each window, Chromium loads the pages of its address bar's suggestions, which takes a third of the time that ours
# takes. The other features are those that Playwright disables: Chromium reads only the last flag of this name.
DISABLED_FEATURES = (
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup",
    "AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay", "MediaRouter",
    "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)  # fmt: skip
# The last flags prevent Chromium from contacting Google at every start.
FLAGS = (
    "--no-sandbox", "--enable-unsafe-webgpu", *SWIFTSHADER_FLAGS, "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    f"--disable-features={','.join(DISABLED_FEATURES)}",
)  # fmt: skip
# The state of the model on the page's device. A server may answer before it is ready, or instead of it.
READ_STATE = """() => ({
    near: document.body.dataset.state === "error" ? "failed" : document.body.dataset.near,
    error: document.getElementById("failure-message").textContent || document.getElementById("near-why").textContent,
    device: document.getElementById("device").textContent,
})"""
READ_ANSWER = """() => {
    const answer = [...document.querySelectorAll(".answer")].at(-1);
    return {
        text: answer.querySelector(".text").dataset.markdown ?? "",
        problem: answer.querySelector(".problem")?.textContent ?? "",
        state: answer.dataset.state,
        ttft: Number(answer.dataset.ttftMs),
        speed: Number(answer.dataset.tokensPerSecond),
    };
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
    """A page in headless Chromium, while in a ``with`` block. Raises ToolError if Chromium or Playwright is not
    installed.
    """

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()
        self._playwright.stop()

    def wait_until_ready(self) -> str:
        """Wait until the bundle is loaded, and return the device's description. Raises BundleError with the page's
        message.
        """
        deadline = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < deadline:
            state = self._page.evaluate(READ_STATE)
            if state["near"] == "ready":
                return str(state["device"])
            if state["near"] == "failed":
                raise BundleError(f"the page could not load the bundle: {state['error']}")
            time.sleep(POLL_SECONDS)
        raise BundleError(f"the page did not load the bundle within {LOAD_SECONDS} s")

    def ask(
        self, prompt: str, on_text: Callable[[str], None] = lambda _: None, *, pictures: Sequence[Path] = ()
    ) -> Answer:
        """Attach pictures, type a prompt, send it, pass new text to ``on_text``, and wait for the end."""
        if pictures:
            self._page.set_input_files("#attach-file", [str(each) for each in pictures])
            self._page.locator("#attachments > li").nth(len(pictures) - 1).wait_for(state="attached")
        self._page.fill("#prompt", prompt)
        count = self._page.locator(".answer").count()
        self._page.click("#send")
        self._page.locator(".answer").nth(count).wait_for(state="attached")
        shown, deadline = 0, time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            answer = self._page.evaluate(READ_ANSWER)
            on_text(answer["text"][shown:])
            shown = len(answer["text"])
            if answer["problem"]:
                raise BundleError(f"the page could not answer: {answer['problem']}")
            if answer["state"] == "done":
                return Answer(answer["text"], answer["ttft"], answer["speed"])
            time.sleep(POLL_SECONDS)
        raise BundleError(f"the page did not finish its answer within {ANSWER_SECONDS} s")

    def _wait(
        self, read_state: str, is_over: Callable[[dict[str, Any]], bool], seconds: float, failure: str
    ) -> dict[str, Any]:
        """Poll the function ``read_state`` of the page until its object is over, and return it. Raises BundleError,
        which begins with ``failure``, once the object has a ``problem``.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state: dict[str, Any] = self._page.evaluate(read_state)
            if state["problem"]:
                raise BundleError(f"{failure}: {state['problem']}")
            if is_over(state):
                return state
            time.sleep(POLL_SECONDS)
        raise BundleError(f"{failure} within {seconds} s")

    def start_new_chat(self) -> None:
        """So that the model does not read what was said before."""
        self._page.click("#new-chat")

    def screenshot(self, path: Path) -> None:
        self._page.screenshot(path=path)


def find_chromium() -> str:
    """The path of a Chromium on this machine. Raises ToolError if it is not found."""
    executable = next((path for path in map(shutil.which, NAMES) if path), None)
    if executable is None:
        raise ToolError(
            "Chromium was not found; install it (Debian: apt-get install chromium), or use 'nearfar demo --serve'"
        )
    return executable
