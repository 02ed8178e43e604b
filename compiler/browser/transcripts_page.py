"""Drives the transcripts page in headless Chromium: gives it recordings, and reads what it writes down."""

from __future__ import annotations

from pathlib import Path

from .chromium import ANSWER_SECONDS, LOAD_SECONDS, Page

READ_STATE = """() => ({
    page: document.body.dataset.state,
    problem: document.getElementById("problem").textContent,
    model: document.getElementById("model").textContent,
    transcript: document.getElementById("transcript").dataset.state,
    name: document.getElementById("name").textContent,
    segments: [...document.querySelectorAll(".segment .words")].map((words) => words.textContent.trim()),
})"""


class TranscriptsPage(Page):
    def wait_until_ready(self) -> str:
        """Wait until the model is loaded, and return its name. Raises BundleError with the page's message."""
        failure = "the transcripts page did not load its model"
        state = self._wait(READ_STATE, lambda state: state["page"] == "ready", LOAD_SECONDS, failure)
        return str(state["model"])

    def transcribe(self, recording: Path) -> str:
        """What is said in a recording. Raises BundleError with the page's message."""
        self._page.set_input_files("#file", recording)
        state = self._wait(
            READ_STATE,
            lambda state: state["name"] == recording.name and state["transcript"] == "done",
            ANSWER_SECONDS,
            f"the transcripts page did not transcribe {recording.name}",
        )
        return " ".join(state["segments"])
