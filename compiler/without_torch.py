"""Imports libraries on tvm_ffi without torch, which tvm_ffi imports if it can, for functions that we do not call.

torch takes two seconds and 230 MB, more than the libraries themselves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_torch() -> Iterator[None]:
    """Inside, this thread cannot import torch unless something has imported it before."""
    hook: Any = _NoTorch()
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        sys.meta_path.remove(hook)


class _NoTorch:
    """An import hook that hides torch from one thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("hidden while tvm_ffi is imported", name=name)
