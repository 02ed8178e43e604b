"""The memory of the servers' processes while they run, and what they hold at the end."""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import psutil  # type: ignore[import-untyped]
from waiting import wait_until

from .questions import MODEL
from .servers import Server

SAMPLE_SECONDS = 2.0
# The memory after this time is what later memory is compared with.
WARM_SECONDS, WINDOW_SECONDS = 60.0, 60.0
EXIT_SECONDS = 100.0


@dataclass
class Memory:
    """Samples of (seconds since the start, bytes) of each server on a thread until `stop` (see `_bytes_of`)."""

    servers: Mapping[str, Server]
    samples: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self.samples = {name: [] for name in self.servers}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        assert self._thread is not None
        self._stopped.set()
        self._thread.join()

    def growth(self) -> dict[str, float | None]:
        """By server, the median of the last minute over that of the second one, minus 1; None for a shorter run."""
        found: dict[str, float | None] = {}
        for name, samples in self.samples.items():
            end = samples[-1][0] if samples else 0.0
            first = [size for at, size in samples if WARM_SECONDS <= at <= WARM_SECONDS + WINDOW_SECONDS]
            last = [size for at, size in samples if at >= end - WINDOW_SECONDS]
            is_long = end >= WARM_SECONDS + 2 * WINDOW_SECONDS
            found[name] = statistics.median(last) / statistics.median(first) - 1 if is_long else None
        return found

    def _run(self) -> None:
        started = time.monotonic()
        while not self._stopped.wait(SAMPLE_SECONDS):
            for name, server in self.servers.items():
                self.samples[name].append((time.monotonic() - started, _bytes_of(server)))


def _bytes_of(server: Server) -> int:
    """The proportional set sizes of all processes, in which a page that several of them share counts once. The engines
    of the store come and go with its models, so there it is the main process alone: what it holds itself, because its
    part of what it shares changes with them.
    """
    size = 0
    for process in server.processes():
        with suppress(psutil.Error):
            if server.name != "store":
                size += process.memory_full_info().pss
            elif process.pid == server.process.pid:
                memory = process.memory_info()
                size = memory.rss - memory.shared
    return size


def left_over(server: Server) -> list[str]:
    """What a server holds although no client asks: sequences, and pages that are not the prefix cache's."""

    def held() -> list[str]:
        with server.client() as client:
            metrics = client.get("/metrics").text
        found = re.findall(r"^((?:vllm:num_requests_\w+|vllm:kv_cache_usage_perc)\{.*) ([0-9.e+-]+)$", metrics, re.M)
        return [f"{server.name}: {name} = {value}" for name, value in found if float(value) != 0]

    with suppress(AssertionError):
        wait_until(lambda: not [each for each in held() if "num_requests" in each])
    with server.client() as client:
        # Of the store's models, some may not be loaded.
        for name in (
            (MODEL,) if server.name != "store" else [each["id"] for each in client.get("/v1/models").json()["data"]]
        ):
            client.post(f"/reset_prefix_cache?model={name}")
    with suppress(AssertionError):
        wait_until(lambda: not held())
    return held()


def transfers(decode: Server) -> dict[str, float]:
    """What a decode worker counted: "transfers", "transfer_tokens" and "fallbacks"."""
    with decode.client() as client:
        metrics = client.get("/metrics").text
    found: dict[str, float] = {}
    for name, value in re.findall(
        r"^nearfar:prefill_(transfers|transfer_tokens|fallbacks)_total\{.*\} (.+)$", metrics, re.M
    ):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def end(server: Server) -> list[str]:
    """Stop a server as a service manager does. Returns what is wrong with its end."""
    processes = server.processes()
    server.process.send_signal(signal.SIGTERM)
    try:
        status = server.process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return [f"{server.name}: still runs {EXIT_SECONDS:g} s after SIGTERM"]
    wrong = [] if status == 0 else [f"{server.name}: ended with status {status}"]
    _, alive = psutil.wait_procs(processes, 10)
    return wrong + [f"{server.name}: left the process {each}" for each in alive]
