"""The known name that a mistyped one is nearest to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


def nearest(name: str, known: Iterable[str]) -> str | None:
    """None if no known name is similar."""
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error: "; did you mean 'x'?", or nothing if no known name is similar."""
    found = nearest(name, known)
    return "" if found is None else f"; did you mean {found!r}?"


def did_you_mean_folder(path: Path) -> str:
    """As `did_you_mean`, for the path of a folder that does not exist: another folder beside it."""
    try:
        beside = [entry.name for entry in os.scandir(path.parent) if entry.is_dir() and not entry.name.startswith(".")]
    except (OSError, ValueError):
        return ""
    found = nearest(path.name, beside)
    return "" if found is None else f"; did you mean {str(path.with_name(found))!r}?"
