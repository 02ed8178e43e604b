"""Runs tests in a tree, with pytest or vitest."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .tree import Tree

# The slowest test of the list takes a tenth of this on one core.
LIMIT_SECONDS = 300.0
PYTEST = (str(Path(sys.executable).with_name("pytest")), "-x", "-q", "-p", "no:cacheprovider")
VITEST = ("node_modules/.bin/vitest", "run", "--bail=1", "--reporter=json")


Status = Literal["passed", "failed", "broken"]


@dataclass(frozen=True, slots=True)
class Run:
    """``broken``: the tests could not run, or did not end; ``output`` then says why."""

    status: Status
    output: str
    seconds: float


def run_tests(tree: Tree, tests: Sequence[str], limit_seconds: float = LIMIT_SECONDS) -> Run:
    """Run tests, all Python's or all TypeScript's, until the first one fails. All or none are cases."""
    started = time.monotonic()
    if tests[0].startswith("tests/"):
        # Which cases of a kernel are exhaustive changes with their number; a mutation names one of them.
        markers = "" if is_case(tests[0]) else "not exhaustive"
        command = [*PYTEST, "-m", markers, "--basetemp", str(tree.path.parent / "temp"), *tests]
        folder = tree.path
    else:
        command, folder = [*VITEST, *vitest_filters(tests)], tree.path / "web"
    # Importing the plugins takes longer than most of the tests, none of which need them.
    environment = {**tree.environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    code, output = run_command(command, folder, environment, limit_seconds)
    status = pytest_status(code) if tests[0].startswith("tests/") else vitest_status(code, output)
    return Run(status, output, time.monotonic() - started)


def is_case(test: str) -> bool:
    """Whether a mutation names one case of a test with parameters."""
    return test.startswith("tests/") and test.endswith("]")


def pytest_status(code: int) -> Status:
    """pytest exits with more than 1 if it finds no test, or if a file of tests cannot be imported."""
    return "passed" if code == 0 else "failed" if code == 1 else "broken"


def vitest_filters(tests: Sequence[str]) -> list[str]:
    """The test files, and a pattern for the names of tests if the mutations name any."""
    files = {test.partition("::")[0].removeprefix("web/") for test in tests}
    names = [re.escape(name) for name in (test.partition("::")[2] for test in tests) if name]
    return [*sorted(files), *(["-t", "|".join(names)] if len(names) == len(tests) else [])]


def vitest_status(code: int, output: str) -> Status:
    report = re.search(r"^\{.*", output, re.MULTILINE)
    counts = json.loads(report[0].splitlines()[0]) if report else {}
    if counts.get("numFailedTests", 0) > 0:
        return "failed"
    return "passed" if code == 0 and counts.get("numPassedTests", 0) > 0 else "broken"


def run_command(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None, limit_seconds: float
) -> tuple[int, str]:
    """The exit code, or -1 if the time limit ended the command and its child processes; and the output."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return -1, f"{output}\nthe tests took more than {limit_seconds:.0f} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output
