"""Print the row of `tests/README.md` for a run of pytest: python tests/result_row.py JUNIT.xml"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from xml.etree import ElementTree


def main(path: Path) -> None:
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    counts = {
        name: sum(int(suite.attrib[name]) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    results = f"{passed:,} passed, {counts['skipped']:,} skipped, {failed:,} failed"
    minutes = sum(float(suite.attrib["time"]) for suite in suites) / 60
    print(f"| {date.today()} | {commit()} | {results} | {minutes:.0f} min on {os.cpu_count()} cores |")


def commit() -> str:
    """The short hash of HEAD, with a plus sign if tracked files differ from it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
