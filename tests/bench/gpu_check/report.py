"""The results of a part of the check, in a JSON file that is written after every change, so that the results of a
stopped part are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PASSED, FAILED, TIMED_OUT, NOT_RUN = "passed", "failed", "timed out", "not run"
# A part with many failures reports the first ones and their total number.
MAX_FAILURES = 100
MAX_MESSAGE_LETTERS = 600


class NotRun(Exception):
    """This machine lacks a requirement of the part, which the message names."""


class Report:
    """``figures`` by name; each is a number, a text, or a list or dict of them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._figures: dict[str, Any] = {}
        self._failures: list[str] = []
        self._failed = 0
        self._reason: str | None = None
        self._finished = False
        self._write()

    def add_figures(self, **figures: Any) -> None:
        self._figures.update(figures)
        self._write()

    def fail(self, message: str) -> None:
        """Also prints the message."""
        message = message.strip()[:MAX_MESSAGE_LETTERS]
        print(f"FAIL {message}", flush=True)
        self._failed += 1
        if self._failed <= MAX_FAILURES:
            self._failures.append(message)
        self._write()

    def finish(self, not_run: str | None = None) -> None:
        """The part is over. ``not_run``: why it did not run."""
        self._reason, self._finished = not_run, True
        if not_run is not None:
            print(f"not run: {not_run}", flush=True)
        self._write()

    @property
    def outcome(self) -> str:
        if self._failed:
            return FAILED
        return PASSED if self._reason is None else NOT_RUN

    def _write(self) -> None:
        content = {
            "finished": self._finished,
            "outcome": self.outcome,
            "reason": self._reason,
            "figures": self._figures,
            "failures": self._failures,
            "failed": self._failed,
        }
        text = json.dumps(content, allow_nan=True)
        # A reader never sees an incomplete file.
        unfinished = self._file.with_suffix(".unfinished")
        unfinished.write_text(text)
        unfinished.rename(self._file)
