"""The time limit of a worker process: what counts, and what ends it."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from pathlib import Path

import pytest
from waiting import WAIT_SECONDS, until

from nearfar.server_fallback.processes import worker
from nearfar.server_fallback.processes.worker import WorkerEnded, WorkerLimits, WorkerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports another process's processor time")

MODULE = """
import time
from nearfar.server_fallback.processes.worker_loop import serve

def answer(message):
    while message == "computes":
        pass
    time.sleep(message)
    return "slept"

def main():
    serve(lambda send: answer)
"""


def ask(message: object, seconds: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """The reply, or whether the process ended at its time limit."""
    (folder / "sleeper.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(folder))

    async def work() -> object:
        process = WorkerProcess("sleeper", WorkerLimits(2**30, 2**30, int(WAIT_SECONDS)))
        held = weakref.ref(process)
        gc.disable()
        try:
            return await process.call(message, seconds)
        except WorkerEnded as ended:
            return ended.timed_out
        finally:
            process.close()
            # It is freed with its model, and not by a collection.
            del process
            await until(lambda: held() is None)
            gc.enable()

    return asyncio.run(work())


def test_a_process_that_waits_for_a_processor_is_not_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LONGEST_WAIT", 10_000)
    assert ask(0.1, 0.05, tmp_path, monkeypatch) == "slept"


def test_a_process_that_computes_for_longer_than_the_limit_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LONGEST_WAIT", 10_000)
    assert ask("computes", 0.05, tmp_path, monkeypatch) is True


def test_a_process_that_sleeps_is_ended_at_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LONGEST_WAIT", 2)
    assert ask(3600, 0.05, tmp_path, monkeypatch) is True
