"""How much text a request has, wherever it stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def is_longer(value: Any, characters: int) -> bool:
    """Whether all texts, keys included, are longer together; anything else counts as one character. Stops counting once that is known."""
    left, pending = characters, [value]
    while pending:
        each = pending.pop()
        left -= len(each) if isinstance(each, str) else 1
        if left < 0:
            return True
        if isinstance(each, BaseModel):
            each = {**each.__dict__, **(each.__pydantic_extra__ or {})}
        if isinstance(each, Mapping):
            pending += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            if len(each) > left:
                return True
            pending += each
    return False
