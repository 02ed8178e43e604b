"""Lets kernel templates be imported without TVM, on a machine that runs prepared kernels. The arrays of a kernel case
and the results of its op only need numpy, but the case's module imports the template.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn


class Absent(ModuleType):
    """A module or a name in one. Anything can be imported from it, and nothing can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise ModuleNotFoundError(f"{self.__name__} was called, and TVM is not installed", name="tvm")


class Finder:
    """Replaces every module of TVM by an `Absent` one; see `importlib.abc.MetaPathFinder` and `Loader`."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "tvm" else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def allow_missing_tvm() -> None:
    """Call this before templates are imported. It does nothing if TVM is installed."""
    if find_spec("tvm") is None:
        sys.meta_path.append(Finder())
