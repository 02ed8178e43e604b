"""When what has failed is started again, and when it is given up."""

from __future__ import annotations

import asyncio

import pytest

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.server_fallback.processes import supervisor
from nearfar.server_fallback.processes.supervisor import Restarts, supervise


class Failing:
    """Runs for each of these ``times``, in seconds of a clock of its own; a start that fails is None. Then it
    runs on.
    """

    def __init__(self, *times: float | None) -> None:
        self.now = 0.0
        self._times = list(times)
        # Each failure with its number and the wait after it.
        self.failures = list[tuple[str, int, float | None]]()

    async def start(self) -> None:
        if self._times and self._times[0] is None:
            self._times.pop(0)
            raise DeviceError("does not start")

    async def ended(self) -> str:
        if not self._times:
            await asyncio.Event().wait()
        self.now += self._times.pop(0) or 0.0
        return "crashed"

    async def failed(self, reason: str, failures: int, wait_seconds: float | None) -> None:
        self.failures.append((reason, failures, wait_seconds))


def supervised(monkeypatch: pytest.MonkeyPatch, restarts: Restarts, failing: Failing) -> bool:
    """Whether it was given up, once nothing happens any more."""
    monkeypatch.setattr(supervisor, "monotonic", lambda: failing.now)

    sleep = asyncio.sleep

    async def turn(_: float) -> None:
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", turn)

    async def work() -> bool:
        task = asyncio.ensure_future(supervise(failing, restarts))
        for _ in range(200):
            await sleep(0)
        is_over = task.done()
        task.cancel()
        return is_over

    return asyncio.run(work())


def test_the_wait_doubles_until_a_long_time_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(1, 59, 61, 1)
    assert not supervised(monkeypatch, Restarts(0.5, steady_seconds=60), failing)
    assert failing.failures == [("crashed", 1, 0.5), ("crashed", 2, 1.0), ("crashed", 1, 0.5), ("crashed", 2, 1.0)]


def test_a_start_that_fails_counts_with_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(1, None, None, 100)
    assert not supervised(monkeypatch, Restarts(0.5, longest_seconds=0.75, steady_seconds=60), failing)
    again = "does not start"
    assert failing.failures == [("crashed", 1, 0.5), (again, 2, 0.75), (again, 3, 0.75), ("crashed", 1, 0.5)]


def test_it_is_given_up_after_the_most_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(1, None, 1, 1)
    assert supervised(monkeypatch, Restarts(1.0, most=2), failing)
    assert failing.failures == [("crashed", 1, 1.0), ("does not start", 2, 2.0), ("crashed", 3, None)]
