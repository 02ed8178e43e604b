"""The ledger: today's requests to the far side and their cost, in a small file that processes share. A day is a UTC
day.

A request counts when it is sent, its dollars when the answer has ended. If a file cannot be read as a ledger, counting
starts at zero: the ledger bounds what is spent, and must not prevent answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Protocol

from nearfar.compiler.runtime.errors import OutputError
from nearfar.compiler.shared.script import SharedScript


@dataclass(frozen=True, slots=True)
class Spent:
    usd: float = 0.0
    requests: int = 0


class Ledger(Protocol):
    def today(self) -> Spent: ...

    def add(self, *, usd: float = 0.0, requests: int = 0) -> Spent:
        """Add to today's spending and return the total."""
        ...


class FileLedger:
    """A Ledger in the file ``path``; its folder is created.

    ``clock`` returns seconds since 1970. Raises OutputError if the file cannot be written.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time) -> None:
        self._path = path
        self._clock = clock

    def today(self) -> Spent:
        return spent_on(self._day(), self._read())

    def add(self, *, usd: float = 0.0, requests: int = 0) -> Spent:
        from filelock import FileLock

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self._path.with_name(f"{self._path.name}.lock")):
                # Read once: a spending that is read before midnight must not be written as the next day's.
                day = self._day()
                spent = spent_on(day, self._read())
                spent = Spent(spent.usd + usd, spent.requests + requests)
                self._write(day, spent)
        except OSError as error:
            raise OutputError(f"{self._path}: the ledger of the far side's costs cannot be written: {error}") from error
        return spent

    def _day(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()

    def _read(self) -> str | None:
        try:
            return self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def _write(self, day: str, spent: Spent) -> None:
        # A process that reads meanwhile gets either the old file or the complete new one.
        written = self._path.with_name(f"{self._path.name}.new")
        entry = json.dumps({"day": day, "usd": spent.usd, "requests": spent.requests})
        with written.open("w", encoding="utf-8") as file:
            file.write(entry)
            file.flush()
            # Otherwise a machine that loses power may keep the new name and no content.
            os.fsync(file.fileno())
        os.replace(written, self._path)


def spent_on(day: str, text: str | None) -> Spent:
    """The spending of ``day`` in a ledger's text; nothing if the text is of another day."""
    return Spent(**SharedScript.of_thread().ask("spentOn", text, day))
