"""A short run of `make faults`: no fault loses, repeats or changes an answer, and none leaves anything behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from faults.__main__ import run
from faults.servers import servers
from served_demo import WITH_FEW_KERNELS

SECONDS, CLIENTS = 25.0, 12


@pytest.mark.exhaustive
# anyio leaves the sockets of TLS streams that a client hangs up to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(sys.platform != "linux", reason="kills processes that it finds in /proc, and needs SO_REUSEPORT")
def test_no_fault_loses_repeats_or_changes_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `servers` sets them, and this restores them.
    for name in (*WITH_FEW_KERNELS, "NEARFAR_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with servers(tmp_path, WITH_FEW_KERNELS) as running:
        verdict = run(running, SECONDS, CLIENTS, seed=1)
    failed = [each for each in verdict.criteria() if not each.holds]
    assert not failed, (failed, verdict.to_json()["findings"])
    assert {each.server for each in verdict.faults} == {"models", "store", "gateway"}
