"""The ledger: what the far side was asked for today and what it cost, kept in a small file that processes share. A day is a UTC day."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Spent:
    usd: float = 0.0
    requests: int = 0


class Ledger(Protocol):
    def today(self) -> Spent: ...

    def add(self, *, usd: float = 0.0, requests: int = 0) -> Spent:
        """What is spent today with this."""
        ...


class FileLedger:
    """A Ledger in ``path``. ``clock`` in seconds since 1970."""

    def __init__(self, path: Path, clock: Callable[[], float] = time) -> None:
        self._path = path
        self._clock = clock

    def today(self) -> Spent:
        raise NotImplementedError

    def add(self, *, usd: float = 0.0, requests: int = 0) -> Spent:
        raise NotImplementedError
