"""`nearfar serve` as a process, and a demo model in its cache, for tests whose subject is not its compilation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest
from light_bundle import few_kernels, one_compilation

# It may compile a model, on a busy machine.
START_SECONDS = 300.0
WITH_FEW_KERNELS = {"PYTHONPATH": str(Path(__file__).with_name("few_kernels"))}


def compile_for_server(model: str, cache: Path, context: int | None = None) -> None:
    """Compile a demo as `nearfar serve` does, but with few kernels for one level of instruction sets: a tenth of the
    time.
    """
    from nearfar.compiler.demo import DEMOS
    from nearfar.compiler.pipeline.compile import CompileOptions
    from nearfar.server_fallback.executors.compile_process import compile_once
    from nearfar.server_fallback.executors.devices import default_arch

    with pytest.MonkeyPatch.context() as patch, one_compilation(), few_kernels():
        patch.setenv("NEARFAR_CACHE", str(cache))
        compile_once(str(DEMOS[model]), CompileOptions(target="cpu", arch=default_arch("cpu"), context=context))


@dataclass(frozen=True)
class Served:
    """A server that serves. ``printed``: its output, which ends with an example request. ``log`` is the file of its
    log.
    """

    process: subprocess.Popen[str]
    url: str
    printed: str
    log: Path

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def start(
    *arguments: str,
    folder: Path,
    command: str = "serve",
    log: str = "log",
    python: str | Path = sys.executable,
    env: Mapping[str, str] = WITH_FEW_KERNELS,
) -> Callable[[], Served]:
    """Start `nearfar serve` on a free port. ``folder`` holds its cache and its log. If it compiles a model for cpu, the
    bundle has few kernels. Calling the result waits until it serves, so several servers can start at the same time.
    """
    started = [python, "-m", "nearfar.compiler.cli", command, *arguments, "--port", "0"]
    with (folder / log).open("w") as written:
        process = subprocess.Popen(
            started, stdout=subprocess.PIPE, stderr=written, text=True,
            env={**os.environ, "NEARFAR_CACHE": str(folder), "COLUMNS": "120", **env},
        )  # fmt: skip

    def wait() -> Served:
        assert process.stdout is not None
        # A server that never prints it would hang the test.
        with process.stdout as printing, ended_after(process, START_SECONDS):
            printed = ""
            for line in printing:
                printed += line
                # The last line that it prints, for clients or for decode workers.
                if line.startswith(("curl ", "for decode workers")):
                    (url,) = re.findall(r"http://127\.0\.0\.1:\d+", line)
                    return Served(process, url, printed, folder / log)
        process.wait()
        raise AssertionError((folder / log).read_text())

    return wait


@contextmanager
def ended_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Kill the process if the block takes longer."""
    timer = Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def serving(*arguments: str, folder: Path, command: str = "serve") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """As `start`: the process and the address of a server that ends with the context."""
    served = start(*arguments, folder=folder, command=command)()
    try:
        yield served.process, served.url
    finally:
        served.end()


def require_found(log: Path) -> None:
    """Require that the server found the bundle instead of compiling it."""
    assert "compiling" not in log.read_text()
