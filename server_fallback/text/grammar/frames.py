"""What goes between the server and the grammar compiler's process: pickles, each behind its length."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import IO, Any

from .completion import Completion

READY = "ready"


@dataclass(frozen=True, slots=True)
class Setup:
    """``tokens``: what each id writes, nothing for special ones."""

    tokens: list[bytes]
    eos_token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Compiled:
    """xgrammar's own text of a compiled grammar, for the same vocabulary. ``endings``, ``reserve``: see `rules.Rules`. ``first`` completes
    an answer that has not begun; None where no completion was found. ``closes``: whether completions are found in time."""

    text: str
    endings: tuple[str, ...]
    reserve: int
    first: Completion | None
    closes: bool


@dataclass(frozen=True, slots=True)
class Refused:
    message: str


def write_frame(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Raises EOFError where the other side has ended."""
    header = stream.read(8)
    data = stream.read(int.from_bytes(header, "little")) if len(header) == 8 else b""
    if not data:
        raise EOFError("the other process has ended")
    return pickle.loads(data)
