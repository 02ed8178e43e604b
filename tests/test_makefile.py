"""`make test` runs every part, pytest beside them, whatever fails, and fails if one of them does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

PARTS_FAIL = (
    'echo "make[1]: *** [Makefile:9: test-web] Error 2"; echo "make[2]: *** [Makefile:7: a/b.built] Error 1"; exit 2'
)

# The set-up ends before pytest starts, and the other parts end after that.
IN_ORDER = """case "$*" in
  *--jobs=1*) for turn in $(seq 600); do test -e {0}/pytest-runs && break; sleep 0.1; done
    test -e {0}/pytest-runs || exit 9;;
  *) ! test -e {0}/pytest-runs || exit 9; touch {0}/set-up;;
esac
"""


@pytest.mark.parametrize(
    ("parts", "tests", "failed"),
    [
        ("exit 0", "exit 0", None),
        (PARTS_FAIL, "exit 0", "FAILED: a/b.built test-web"),
        ("echo make[1]: *** No rule to make target; exit 2", "exit 0", "FAILED: packages check unit-tests"),
        ("exit 0", "exit 1", "FAILED: pytest"),
        (PARTS_FAIL, "exit 1", "FAILED: a/b.built test-web pytest"),
    ],
)
def test_every_part_runs_and_the_last_line_names_those_that_failed(
    tmp_path: Path, parts: str, tests: str, failed: str | None
) -> None:
    begun = f"test -e {tmp_path}/set-up || exit 9; touch {tmp_path}/pytest-runs\n"
    scripts = {"make": IN_ORDER.format(tmp_path) + parts, "pytest": f"{begun} echo 7 passed in 1.00s; {tests}"}
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    variables = (f"PAIR={tmp_path}/make", f"BIN={tmp_path}", f"LOGS={tmp_path}/logs")
    done = subprocess.run(["make", "test", *variables], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert "7 passed in 1.00s" in lines, done.stderr
    assert (done.returncode, lines[-1].strip()) == ((0, "7 passed in 1.00s") if failed is None else (2, failed))
