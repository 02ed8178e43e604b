"""Returning freed memory to the system: xgrammar reads and writes its own texts through trees ten times their size."""

from __future__ import annotations

import ctypes
import sys


def free_memory() -> None:
    """Does nothing if the C library is not glibc."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
