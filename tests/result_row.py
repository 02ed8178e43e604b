"""Print the row of `tests/README.md` for a run of pytest, and write it there: python tests/result_row.py JUNIT.xml"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

README = Path(__file__).with_name("README.md")
ROW = re.compile(r"^\| \d{4}-\d\d-\d\d \|.*$", re.MULTILINE)


def main(path: Path) -> None:
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    counts = {
        name: sum(int(suite.attrib[name]) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    results = f"{passed:,} passed, {counts['skipped']:,} skipped, {failed:,} failed"
    minutes = sum(float(suite.attrib["time"]) for suite in suites) / 60
    row = f"| {date.today()} | {commit()} | {results} | {minutes:.0f} min on {os.cpu_count()} cores |"
    README.write_text(with_row(README.read_text(), row))
    print(row)


def with_row(readme: str, row: str) -> str:
    """The text with the row instead of the one that starts with a date."""
    text, count = ROW.subn(lambda _: row, readme)
    assert count == 1, f"tests/README.md has {count} rows with results"
    return text


def commit() -> str:
    """The short hash of HEAD, with a plus sign if tracked files differ from it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
