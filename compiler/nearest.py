"""Finds the known name that is nearest to a mistyped one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name; None if none is similar."""
    by_lower = {each.lower(): each for each in known}
    matches = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error: "; did you mean 'x'?", or nothing if no known name is similar."""
    match = nearest(name, known)
    return "" if match is None else f"; did you mean {match!r}?"


def with_advice(problem: str, proposal: str, advice: str) -> str:
    """The message of an error: the problem, a ``proposal`` of `did_you_mean` unless it is empty, and what to do."""
    return f"{problem}{proposal or ';'} {advice}"


def did_you_mean_folder(path: Path) -> str:
    """Like `did_you_mean`, for the path of a folder that does not exist: it proposes another folder beside it."""
    try:
        beside = [entry.name for entry in os.scandir(path.parent) if entry.is_dir() and not entry.name.startswith(".")]
    except (OSError, ValueError):
        return ""
    match = nearest(path.name, beside)
    return "" if match is None else f"; did you mean {str(path.with_name(match))!r}?"
