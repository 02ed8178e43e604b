"""`nearfar serve` as a process, and a demo model in its cache, for tests whose subject is not its compilation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def serving(*arguments: str, folder: Path, command: str = "serve") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`nearfar serve` on a free port: its process and its address. ``folder`` holds its cache and its log."""
    started = [sys.executable, "-m", "nearfar.compiler.cli", command, *arguments, "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            started, stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, "NEARFAR_CACHE": str(folder), "COLUMNS": "120"},
        )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as printed:
        try:
            # The last line that it prints.
            line = next((line for line in printed if line.startswith("curl ")), None)
            assert line is not None, (folder / "log").read_text()
            (url,) = re.findall(r"http://127\.0\.0\.1:\d+", line)
            yield process, url
        finally:
            process.kill()
            process.wait()


def require_found(log: Path) -> None:
    """Require that the server found the bundle instead of compiling it."""
    assert "compiling" not in log.read_text()
