"""Privacy: whether a request may leave the device. Its labels and all of its texts flow in, a yes or no flows out; in doubt yes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from .situation import Situation


@dataclass(frozen=True, slots=True)
class PrivateCheck:
    @classmethod
    def of(cls, labels: tuple[str, ...], patterns: tuple[str, ...], *, ignore_case: bool) -> Self:
        raise NotImplementedError

    def is_private(self, situation: Situation) -> bool:
        """By a label of the request or of any of its messages, or by a pattern in any of its texts."""
        raise NotImplementedError

    def matches(self, text: str) -> bool:
        raise NotImplementedError
