"""The cases of kernels that a session runs: `make test` omits the exhaustive ones. A fixture compiles no others."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

# The names of cases by target; see `covered_cases.py`.
COVERED = Path(__file__).parent / "covered_cases.json"


class Selectable(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def exhaustive(self) -> bool: ...


C = TypeVar("C", bound=Selectable)


def selected(target: str, cases: Iterable[C]) -> dict[str, C]:
    """The cases by name. Those that others cover are exhaustive, in addition to those that declare it."""
    covered = set(json.loads(COVERED.read_text())[target])
    found: dict[str, Any] = {
        case.name: replace(case, exhaustive=True) if case.name in covered else case  # type: ignore[type-var]
        for case in cases
    }
    assert covered <= found.keys(), (
        f"{COVERED.name} names cases that are gone; run {Path(__file__).parent}/covered_cases.py"
    )
    return found


def names_of(cases: Mapping[str, Selectable]) -> list[Any]:
    """The parameters of a test that gets the name of a case."""
    return [
        pytest.param(name, marks=pytest.mark.exhaustive) if case.exhaustive else name for name, case in cases.items()
    ]


def usual_or_exhaustive(names: Iterable[str], usual: Collection[str]) -> list[Any]:
    """The names as parameters: only `make test-all` runs those that are not ``usual``."""
    return [name if name in usual else pytest.param(name, marks=pytest.mark.exhaustive) for name in names]


def chosen(request: pytest.FixtureRequest, cases: Mapping[str, C], *always: str, test: str = "") -> dict[str, C]:
    """The cases that a test of the requesting module runs in this session, and those that it names itself. ``test``:
    only those that tests whose names start so run.
    """
    names = {*names_in(request, test), *always}
    return {name: case for name, case in cases.items() if name in names}


def names_in(request: pytest.FixtureRequest, test: str = "") -> set[Any]:
    """The names that tests of the requesting module get in this session."""
    items = [item for item in request.session.items if item.path == request.path and item.name.startswith(test)]
    calls = [getattr(item, "callspec", None) for item in items]
    return {call.params.get("name") for call in calls if call is not None}


def is_exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether this session runs exhaustive tests of the requesting module."""
    return any(item.get_closest_marker("exhaustive") for item in request.session.items if item.path == request.path)
