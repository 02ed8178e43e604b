"""Every test has a time limit, and its failure names the test that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HANGING = """
import asyncio, threading, time, pytest

@pytest.fixture
def slow():
    time.sleep(60)

def test_a_fixture_hangs(slow): ...
def test_an_event_loop_hangs(): asyncio.run(asyncio.sleep(60))
def test_a_lock_hangs(): threading.Event().wait(60)
def test_a_quick_one(): ...
@pytest.mark.exhaustive
def test_an_exhaustive_one(): time.sleep(0.4)
"""


def test_a_test_that_hangs_fails_by_name_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "conftest.py").write_text("from time_limit import *")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers = exhaustive\ntime_limit_seconds = 0.2\nexhaustive_time_limit_seconds = 20\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "2 failed, 2 passed, 1 error" in done.stdout, done.stdout
    for name in ("a_fixture", "an_event_loop", "a_lock"):
        assert f"test_hanging.py::test_{name}_hangs took more than 0.2 s, its fixtures included" in done.stdout


def test_the_limits_of_this_suite_are_set(pytestconfig: pytest.Config) -> None:
    limits = [float(pytestconfig.getini(f"{kind}time_limit_seconds")) for kind in ("", "exhaustive_")]
    assert 0 < limits[0] < limits[1] < float(pytestconfig.getini("faulthandler_timeout"))
    assert pytestconfig.getini("faulthandler_exit_on_timeout")
