"""A time limit for every test, with the fixtures that it sets up and tears down.

The limits are those of pyproject.toml, ``time_limit_seconds`` and, for exhaustive tests,
``exhaustive_time_limit_seconds``. They are many times what the slowest tests take on one core, so that only a test that
hangs reaches them. pytest's own ``faulthandler_timeout`` is behind them: it ends a process that hangs in native code,
which no signal handler can interrupt.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from types import FrameType

import pytest

# A test whose teardown hangs as well is interrupted again after this time.
AGAIN_SECONDS = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("time_limit_seconds", "the most seconds that a test may take, its fixtures included")
    parser.addini("exhaustive_time_limit_seconds", "the same for a test with the marker exhaustive")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    is_exhaustive = item.get_closest_marker("exhaustive") is not None
    seconds = float(item.config.getini(f"{'exhaustive_' if is_exhaustive else ''}time_limit_seconds"))

    def stop(_number: int, _frame: FrameType | None) -> None:
        pytest.fail(f"{item.nodeid} took more than {seconds:g} s, its fixtures included; it was stopped here")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
