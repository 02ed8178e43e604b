"""The ledger of the far side's cost: days, processes and invalid files."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearfar.compiler.runtime.errors import OutputError
from nearfar.server_fallback.router.decision.budget import FileLedger, Spent

# 2026-11-22, 23:59:59 UTC.
LATE = 1795391999.0


def test_the_ledger_adds_up_and_is_stored(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path / "deep/ledger.json", clock=lambda: LATE)
    assert ledger.today() == Spent()
    assert ledger.add(requests=1) == Spent(0.0, 1)
    assert ledger.add(usd=0.25) == Spent(0.25, 1)
    assert FileLedger(tmp_path / "deep/ledger.json", clock=lambda: LATE).today() == Spent(0.25, 1)


def test_each_utc_day_starts_at_zero(tmp_path: Path) -> None:
    now = [LATE]
    ledger = FileLedger(tmp_path / "ledger.json", clock=lambda: now[0])
    ledger.add(usd=1.0, requests=3)
    now[0] += 1
    assert ledger.today() == Spent()
    assert ledger.add(requests=1) == Spent(0.0, 1)


def test_midnight_during_an_addition_does_not_carry_a_day_over(tmp_path: Path) -> None:
    FileLedger(tmp_path / "ledger.json", clock=lambda: LATE).add(usd=9.0, requests=9)
    times = itertools.count(LATE)
    FileLedger(tmp_path / "ledger.json", clock=lambda: next(times)).add(requests=1)
    assert FileLedger(tmp_path / "ledger.json", clock=lambda: LATE + 1).today() == Spent()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this platform cannot change its time zone")
def test_the_day_is_a_utc_day_in_every_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = FileLedger(tmp_path / "ledger.json", clock=lambda: LATE)
    try:
        for zone in ("Pacific/Kiritimati", "Pacific/Honolulu"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            ledger.add(requests=1)
            assert '"day": "2026-11-22"' in (tmp_path / "ledger.json").read_text()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert ledger.today() == Spent(0.0, 2)


def test_a_write_that_fails_leaves_the_old_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = FileLedger(tmp_path / "ledger.json", clock=lambda: LATE)
    ledger.add(requests=1)
    for step in ("fsync", "replace"):

        def fail(*_: object) -> None:
            raise OSError("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(os, step, fail)
            with pytest.raises(OutputError, match="the disk is full"):
                ledger.add(requests=1)
        assert ledger.today() == Spent(0.0, 1)
    assert ledger.add(requests=1) == Spent(0.0, 2)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"day": "2026-11-22", "usd": "1", "requests": 1}', "\udcff"])
def test_an_invalid_ledger_file_starts_at_zero(tmp_path: Path, content: str) -> None:
    file = tmp_path / "ledger.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    ledger = FileLedger(file, clock=lambda: LATE)
    assert ledger.today() == Spent()
    assert ledger.add(requests=2) == ledger.today() == Spent(0.0, 2)


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        FileLedger(tmp_path / "file/ledger.json").add(requests=1)


def test_processes_share_a_ledger(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from nearfar.server_fallback.router.decision.budget import FileLedger;"
        f"ledger = FileLedger(Path(sys.argv[1]), clock=lambda: {LATE});"
        "[ledger.add(usd=0.5, requests=1) for _ in range(40)]"
    )
    file = tmp_path / "ledger.json"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(file)]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert FileLedger(file, clock=lambda: LATE).today() == Spent(40.0, 80)
