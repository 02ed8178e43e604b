"""The scripts of `make gpu-check SCRIPT=NAME` in `scripts.toml`, and their pass marks. Standard library only."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .process import Result
from .report import NOT_RUN

FILE = Path(__file__).with_name("scripts.toml")


@dataclass(frozen=True, slots=True)
class Mark:
    """A bound of a figure; `scripts.toml` says how ``figure``, ``where`` and ``value`` name it. One of ``at_least`` and
    ``at_most`` is set. ``means``: what a GPU that meets it shows.
    """

    name: str
    part: str
    figure: str
    value: str
    means: str
    where: Mapping[str, Any] = field(default_factory=dict)
    at_least: float | None = None
    at_most: float | None = None

    def found_in(self, figures: Mapping[str, Any], *, any_size: bool) -> float | None:
        """The best value. ``any_size``: numbers in ``where`` are ignored."""
        listed = figures.get(self.figure, ())
        rows = [listed] if isinstance(listed, Mapping) else listed
        wanted = {name: want for name, want in self.where.items() if isinstance(want, str) or not any_size}
        values = [row[self.value] for row in rows if self.value in row and matches(row, wanted)]
        return (max if self.at_most is None else min)(values, default=None)


@dataclass(frozen=True, slots=True)
class Script:
    """``device``: a part of the name of the GPU that the marks are for."""

    name: str
    minutes: float
    device: str
    parts: Sequence[str]
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class Judged:
    """A mark after a run. ``met`` is None if it says nothing about this run, for the ``reason``."""

    mark: Mark
    found: float | None
    met: bool | None
    reason: str | None


def read_scripts() -> dict[str, Script]:
    content = tomllib.loads(FILE.read_text())
    return {
        name: Script(name, **{**script, "marks": [Mark(**mark) for mark in script["marks"]]})
        for name, script in content.items()
    }


def judge(script: Script, results: Sequence[Result], device: str | None, *, rehearsal: bool) -> list[Judged]:
    """``device``: the GPU's name, None if there is none."""
    by_name = {result.name: result for result in results}

    def judged(mark: Mark) -> Judged:
        result = by_name.get(mark.part, Result(mark.part, NOT_RUN))
        found = mark.found_in(result.figures, any_size=rehearsal)
        met = reason = None
        if found is None:
            reason = f"{mark.part} was not run" if result.outcome == NOT_RUN else f"{mark.part} has no such figure"
        elif rehearsal or script.device not in (device or ""):
            reason = f"it is a mark of {script.device}, not of {device or 'this machine'}"
        else:
            enough = mark.at_least is None or found >= mark.at_least
            met = enough and (mark.at_most is None or found <= mark.at_most)
        return Judged(mark, found, met, reason)

    return [judged(mark) for mark in script.marks]


def matches(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(
        re.fullmatch(want, str(row.get(name))) if isinstance(want, str) else row.get(name) == want
        for name, want in wanted.items()
    )


def described(judged: Judged) -> str:
    mark = judged.mark
    bound = f"at least {mark.at_least:,g}" if mark.at_least is not None else f"at most {mark.at_most:,g}"
    found = "" if judged.found is None else f"{judged.found:,.4g}, "
    outcome = {True: "met", False: "missed", None: "not judged"}[judged.met]
    return f"{outcome:10} {mark.name}: {found}{bound} ({judged.reason or mark.means})"
