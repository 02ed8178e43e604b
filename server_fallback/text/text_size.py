"""Measures the text in all parts of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def is_longer(value: Any, characters: int) -> bool:
    """Whether all texts together, keys included, have more than ``characters`` characters.

    Each other value counts as one character. The count stops once the result is known.
    """
    remaining, pending = characters, [value]
    while pending:
        each = pending.pop()
        remaining -= len(each) if isinstance(each, str) else 1
        if remaining < 0:
            return True
        if isinstance(each, BaseModel):
            each = {**each.__dict__, **(each.__pydantic_extra__ or {})}
        if isinstance(each, Mapping):
            pending += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            if len(each) > remaining:
                return True
            pending += each
    return False
