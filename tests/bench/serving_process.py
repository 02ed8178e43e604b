"""Starts servers as processes, waits until they are ready, and stops them. Their logs are written to a file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 120.0
# This also works if nearfar is on the path but not installed.
NEARFAR = (sys.executable, "-m", "nearfar.compiler.cli")
# llama-cpp-python's server also needs these packages.
LLAMA_SERVER_MODULES = ("llama_cpp", "sse_starlette", "starlette_context", "pydantic_settings")


@dataclass(frozen=True, slots=True)
class Process:
    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def nearfar_serve(
    arguments: Sequence[str],
    log: Path,
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """``headers`` hold the API key if the server has keys."""
    with started([*NEARFAR, "serve", *arguments], log, headers, environment) as process:
        yield process


@contextmanager
def gateway(arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    with started([*NEARFAR, "gateway", *arguments], log, environment=environment) as process:
        yield process


@contextmanager
def llama_server(gguf: Path, name: str, context: int, threads: int, log: Path) -> Iterator[Process]:
    """This server answers one request at a time; the others wait."""
    command = [
        sys.executable, "-m", "llama_cpp.server", "--model", str(gguf), "--model_alias", name, "--n_ctx", str(context),
        "--n_threads", str(threads), "--n_threads_batch", str(threads), "--logits_all", "false",
        "--interrupt_requests", "false",
        "--verbose", "false",
    ]  # fmt: skip
    with started(command, log) as process:
        yield process


@contextmanager
def started(
    command: Sequence[str],
    log: Path,
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Process]:
    """Yield a server once it lists its models. ``environment`` is added to this process's. Raises RuntimeError if the
    server ends or takes too long.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("wb") as file:
        child = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    process = Process(f"http://127.0.0.1:{port}", child)
    try:
        wait_until_ready(process, log, headers)
        yield process
    finally:
        process.stop()


def wait_until_ready(process: Process, log: Path, headers: Mapping[str, str] | None = None) -> None:
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up and process.process.poll() is None:
        try:
            response = httpx.get(f"{process.url}/v1/models", headers=headers)
            if response.is_success and response.json()["data"]:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start; its log:\n{log.read_text(errors='replace')[-2000:]}")
