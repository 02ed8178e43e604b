"""Fault: a defect that the checks of a manifest find."""

from __future__ import annotations


class Fault(Exception):
    """A defect of a manifest, and its location."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


def require(condition: bool, where: str, what: str) -> None:
    """Raises Fault."""
    if not condition:
        raise Fault(where, what)
