"""Runs a part in a process with a time limit, and reads its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .report import FAILED, NOT_RUN, PASSED, TIMED_OUT

# The number of lines at the end of a log that explain a crash.
TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Result:
    """``reason``: why a part did not run, or how its process ended. ``failed`` counts failures; the first are in
    ``failures``.
    """

    name: str
    outcome: str
    seconds: float = 0.0
    reason: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    failures: Sequence[str] = ()
    failed: int = 0


def run_process(
    name: str,
    command: Sequence[str],
    limit_seconds: float,
    folder: Path,
    report: Path,
    log: Path,
    environment: Mapping[str, str],
) -> Result:
    """Everything that the process prints goes into ``log``. The processes that it starts end with it."""
    started = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill_group(process.pid)
            process.wait()
    seconds = time.monotonic() - started
    content = read_report(report)
    found = Result(
        name,
        outcome=str(content.get("outcome", FAILED)),
        seconds=seconds,
        reason=content.get("reason"),
        figures=content.get("figures", {}),
        failures=content.get("failures", ()),
        failed=content.get("failed", 0),
    )
    if code is None:
        return ended(found, TIMED_OUT, f"it was stopped after {limit_seconds:.0f} s", log)
    if code != 0 or not content.get("finished"):
        return ended(found, FAILED, f"its process ended with {code} before it had finished", log)
    return found


def ended(found: Result, outcome: str, how: str, log: Path) -> Result:
    """The result of a process that did not finish: its report up to then, and the end of its log."""
    tail = " | ".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
    message = f"{how}; the end of its log: {tail}"
    return Result(found.name, outcome, found.seconds, how, found.figures, [*found.failures, message], found.failed + 1)


def read_report(file: Path) -> dict[str, Any]:
    """Empty if the process ended before it wrote one."""
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return content


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        # All of its processes have ended.
        return


def exit_code(results: Sequence[Result]) -> int:
    """0 if every part passed, 1 if one failed or timed out, 2 if none ran, and 3 if some did not run and none
    failed.
    """
    outcomes = {result.outcome for result in results}
    if outcomes & {FAILED, TIMED_OUT}:
        return 1
    if outcomes <= {NOT_RUN}:
        return 2
    return 0 if outcomes == {PASSED} else 3
