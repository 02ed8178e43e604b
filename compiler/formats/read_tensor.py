"""Reads bytes of a tensor from a file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.errors import CheckpointError, reason_of


def read_into(array: npt.NDArray[Any], path: Path, offset_bytes: int, tensor: str) -> None:
    """Fill a C-contiguous array with the bytes of the file from an offset on. Any thread may read.

    Raises CheckpointError, which names the ``tensor``, if the file cannot be read or is too short.
    """
    if array.size == 0:
        return
    unread = array.reshape(-1).view(np.uint8).data
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset_bytes)
            # One read returns at most 2 GiB on Linux.
            while unread and (count := file.readinto(unread)):
                unread = unread[count:]
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason_of(error)}", file=str(path)) from error
    if unread:
        raise CheckpointError(
            f"{path}: ends inside tensor {tensor!r}; the file became shorter after it was opened, download it again",
            file=str(path),
            tensor=tensor,
        )
