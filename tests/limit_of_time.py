"""Limits of time for worker processes that do not depend on how busy the machine is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from waiting import WAIT_SECONDS

from nearfar.server_fallback.processes.worker import WorkerProcess


def limit_only(hangs: Callable[[object], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that hang have their limits, and all others WAIT_SECONDS.

    With a limit of tenths of a second, the others would end at random on a busy machine.
    """
    call = WorkerProcess.call

    async def limited(process: WorkerProcess, message: object, seconds: float) -> Any:
        return await call(process, message, seconds if hangs(message) else WAIT_SECONDS)

    monkeypatch.setattr(WorkerProcess, "call", limited)
