"""Drives the documents page in headless Chromium: adds files, asks, and reads the passages that it found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..runtime.errors import BundleError
from .chromium import ANSWER_SECONDS, LOAD_SECONDS, POLL_SECONDS, Page

READ_STATE = """() => ({
    state: document.body.dataset.state,
    words: document.getElementById("library-state").textContent,
    problem: [...document.querySelectorAll("#library-problems li")].map((item) => item.textContent).join("; "),
    documents: document.querySelectorAll("#documents li").length,
})"""
READ_RESULT = """() => ({
    question: document.getElementById("asked").textContent,
    state: document.getElementById("result").dataset.state,
    problem: document.getElementById("answer-problem").textContent,
    found: [...document.querySelectorAll("#sources li")].map((item) => ({
        place: item.querySelector(".place .quiet").textContent,
        text: item.querySelector(".passage").textContent,
    })),
})"""


@dataclass(frozen=True, slots=True)
class Found:
    """A passage and its place: the title of its document, then the headings above it."""

    place: str
    text: str


class DocumentsPage(Page):
    def wait_until_ready(self) -> str:
        """Wait until both models are loaded, and return what the page says of its documents. Raises BundleError with
        the page's message.
        """
        state = self._wait(
            READ_STATE,
            lambda state: state["state"] == "ready",
            LOAD_SECONDS,
            "the documents page did not load its models",
        )
        return str(state["words"])

    def add(self, files: Sequence[Path]) -> str:
        """Add files, wait until they are embedded, and return the page's count of passages."""
        self._page.set_input_files("#files", list(files))
        state = self._wait(
            READ_STATE,
            lambda state: state["documents"] == len(files),
            ANSWER_SECONDS,
            "the documents page did not read the documents",
        )
        return str(state["words"])

    def search(self, question: str) -> list[Found]:
        """Ask, wait for the end of the answer, and return the passages, the best first."""
        self._page.fill("#question", question)
        self._page.press("#question", "Enter")
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            result = self._page.evaluate(READ_RESULT)
            if result["question"] == question and result["state"] == "failed":
                raise BundleError(f"the documents page could not answer: {result['problem']}")
            if result["question"] == question and result["state"] == "done":
                return [Found(**one) for one in result["found"]]
            time.sleep(POLL_SECONDS)
        raise BundleError(f"the documents page did not finish its answer within {ANSWER_SECONDS} s")
