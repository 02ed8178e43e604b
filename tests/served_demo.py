"""A demo model in the cache of `nearfar serve`, for tests whose subject is not its compilation."""

from __future__ import annotations

from pathlib import Path

import pytest
from light_bundle import one_compilation


def compile_for_server(model: str, cache: Path, context: int | None = None) -> None:
    """Compile a demo as `nearfar serve` does, but with kernels for one level of instruction sets: a quarter of the
    time.
    """
    from nearfar.compiler.demo import DEMOS
    from nearfar.compiler.pipeline.compile import CompileOptions
    from nearfar.server_fallback.executors.compile_process import compile_once
    from nearfar.server_fallback.executors.devices import default_arch

    with pytest.MonkeyPatch.context() as patch, one_compilation():
        patch.setenv("NEARFAR_CACHE", str(cache))
        compile_once(str(DEMOS[model]), CompileOptions(target="cpu", arch=default_arch("cpu"), context=context))


def require_found(log: Path) -> None:
    """Require that the server found the bundle instead of compiling it."""
    assert "compiling" not in log.read_text()
