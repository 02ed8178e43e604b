"""Runs kernel cases in worker processes, because a kernel may hang or leave the device unusable: if a worker ends, one
case is lost, and the next worker continues after it.

The worker prints a JSON line before and after each case. `run_cases` starts workers and reports.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from .report import NotRun, Report

# The first case of a worker includes the start of the driver, and a pipeline's compilation takes seconds at most.
CASE_SECONDS = 30.0
# If this many workers ended, the machine has a problem.
MAX_WORKERS = 12
# The exit code of a worker if this machine cannot run any case; its last line contains the reason.
CANNOT_RUN = 3


def run_cases(command: Sequence[str], report: Report, case_seconds: float = CASE_SECONDS) -> None:
    """Run all cases in workers. ``command`` and the number of a first case start a worker, which calls `work`. Raises
    NotRun if the machine cannot run any case.
    """
    passed = first = 0
    total: int | None = None
    for _ in range(MAX_WORKERS):
        process = subprocess.Popen([*command, str(first)], stdout=subprocess.PIPE, text=True)
        current = ""
        for line in lines_within(process, case_seconds):
            if "facts" in line:
                total = line["facts"]["cases"]
                report.add_figures(**line["facts"])
            elif "cannot" in line:
                raise NotRun(line["cannot"])
            elif "started" in line:
                first, current = line["index"] + 1, line["started"]
            else:
                current = ""
                passed += line["error"] is None
                if line["error"] is not None:
                    report.fail(f"{line['name']}: {line['error']}")
            report.add_figures(passed=passed)
        silent = process.poll() is None
        process.kill()
        code = process.wait()
        if current:
            how = f"it took more than {case_seconds:g} s" if silent else f"its process ended with {code}"
            report.fail(f"{current}: {how}")
        elif first == 0 or first == total:
            # A worker that ran no case would end in the same way again.
            break
    if total is None:
        report.fail("the first worker ended before it had found the device; see the log")
    elif first < total:
        report.fail(f"{total - first} cases were not run: {MAX_WORKERS} processes ended before them")


def lines_within(process: subprocess.Popen[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield each line's JSON, until the process ends or prints nothing for some time. Other lines are printed."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as stream:
            for line in stream:
                lines.put(line)
        process.wait()
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=seconds)
        except queue.Empty:
            return
        if line is None:
            return
        if line.startswith("{"):
            yield json.loads(line)
        else:
            print(line, end="", flush=True)


def work(
    cases: Sequence[Any], facts: dict[str, Any], name: Callable[[Any], str], run: Callable[[Any], None], first: int
) -> None:
    """The worker: run the cases from number ``first`` on. A case that raises AssertionError has failed; after any other
    error the worker ends, because the device may not work any more.
    """
    emit(facts={"cases": len(cases), **facts})
    for index in range(first, len(cases)):
        emit(started=name(cases[index]), index=index)
        try:
            run(cases[index])
        except AssertionError as error:
            emit(name=name(cases[index]), error=str(error)[:500] or "AssertionError")
        except Exception as error:
            traceback.print_exc()
            emit(name=name(cases[index]), error=f"{type(error).__name__}: {error}"[:500])
            sys.exit(1)
        else:
            emit(name=name(cases[index]), error=None)


def cannot_run(reason: str) -> NoReturn:
    """The worker ends because this machine cannot run any case."""
    emit(cannot=reason)
    sys.exit(CANNOT_RUN)


def emit(**content: Any) -> None:
    print(json.dumps(content), flush=True)
