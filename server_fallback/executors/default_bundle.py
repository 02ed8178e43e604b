"""The bundle that a checkpoint gets on this machine when no options are given: `nearfar serve` and `nearfar run` share
it in the cache.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from nearfar.compiler.pipeline.options import CompileOptions

from .compile_process import Progress, compiled
from .devices import default_arch, default_target


def default_options(ignore_keys: tuple[str, ...] = ()) -> CompileOptions:
    """The options that `nearfar serve` compiles with when its user gives no others."""
    target = default_target()
    return CompileOptions(target=target, arch=default_arch(target), ignore_keys=ignore_keys)


def default_bundle(model: str, ignore_keys: tuple[str, ...], progress: Progress) -> Path:
    """The bundle of a checkpoint's folder, from the cache or compiled into it now. Raises as `compile_any`."""
    return asyncio.run(compiled(model, default_options(ignore_keys), progress))
