"""When a server gets requests, no requests, or a trial request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.server_fallback.executors.circuit import (
    FAILURES_TO_OPEN,
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    Circuit,
)

CASES = json.loads((Path(__file__).parents[2] / "conformance/circuit.json").read_text())["cases"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> Circuit:
    return Circuit(clock)


def test_a_few_failures_in_a_row_open_it(circuit: Circuit) -> None:
    for _ in range(FAILURES_TO_OPEN - 1):
        circuit.failed()
    assert circuit.admits
    circuit.failed()
    assert not circuit.admits
    assert circuit.seconds_until_trial == FIRST_WAIT_SECONDS


def test_a_policy_sets_the_failures_that_open_the_circuit_and_the_time(clock: Clock) -> None:
    circuit = Circuit(clock, failures=1, first_wait_seconds=60.0, longest_wait_seconds=1.0)
    circuit.failed()
    assert circuit.seconds_until_trial == 60.0
    clock.now += 60.0
    circuit.begin()
    circuit.failed()
    assert circuit.seconds_until_trial == 60.0


def test_a_trial_that_fails_doubles_the_wait_up_to_a_limit(circuit: Circuit, clock: Clock) -> None:
    circuit.failed(certain=True)
    waits = []
    for _ in range(8):
        waits.append(circuit.seconds_until_trial)
        clock.now += circuit.seconds_until_trial
        circuit.begin()
        circuit.failed()
    assert waits == sorted(waits)
    assert waits[:3] == [FIRST_WAIT_SECONDS, 2 * FIRST_WAIT_SECONDS, 4 * FIRST_WAIT_SECONDS]
    assert waits[-1] == LONGEST_WAIT_SECONDS
    clock.now += LONGEST_WAIT_SECONDS
    circuit.succeeded()
    circuit.failed(certain=True)
    assert circuit.seconds_until_trial == FIRST_WAIT_SECONDS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_it_takes_the_steps_that_pages_take(case: dict[str, Any], clock: Clock) -> None:
    circuit = Circuit(clock, failures=3, first_wait_seconds=1.0, longest_wait_seconds=1.0)
    for event, state, admits in case["steps"]:
        if event == "certain":
            circuit.failed(certain=True)
        elif isinstance(event, str):
            getattr(circuit, event)()
        else:
            clock.now += event / 1000
        assert (circuit.state, circuit.admits) == (state, admits), event
