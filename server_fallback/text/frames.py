"""Frames between the server and its worker processes: each is a length and a pickle.

Pickle is safe here, because both sides run our own code with the same rights.
"""

from __future__ import annotations

import pickle
from typing import IO, Any


def write_frame(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Raises EOFError if the other side has ended."""
    header = stream.read(8)
    data = stream.read(int.from_bytes(header, "little")) if len(header) == 8 else b""
    if not data:
        raise EOFError("the other process has ended")
    return pickle.loads(data)
