"""Watches the server from outside: the response time of liveness, and the memory of the server and its children."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]

from .servers import Soaked

POLL_SECONDS = 0.05
MEMORY_SECONDS = 2.0


def watch_liveness(url: str, seconds: float, results: Path) -> None:
    """Poll /health/live from a process that does nothing else. Writes each response time, and how late the process woke
    up.
    """
    answers: list[float] = []
    failures = 0
    latest = 0.0
    until = time.monotonic() + seconds
    with httpx.Client(base_url=url, timeout=60) as client:
        while time.monotonic() < until:
            started = time.perf_counter()
            try:
                failures += client.get("/health/live").status_code != 200
            except httpx.HTTPError:
                failures += 1
            ended = time.perf_counter()
            answers.append(ended - started)
            time.sleep(POLL_SECONDS)
            latest = max(latest, time.perf_counter() - ended - POLL_SECONDS)
    results.write_text(json.dumps({"seconds": answers, "failures": failures, "late_wake_seconds": latest}))


@dataclass
class MemoryWatch:
    """Samples (seconds, bytes of the server, bytes of its children) on a thread until `stop`. Memory is USS, which is
    not shared.
    """

    soaked: Soaked
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        assert self._thread is not None
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        started = time.monotonic()
        while not self._stopped.wait(MEMORY_SECONDS):
            with suppress(psutil.Error):
                sizes = []
                for process in self.soaked.processes():
                    with suppress(psutil.NoSuchProcess):
                        sizes.append(process.memory_full_info().uss)
                self.samples.append((time.monotonic() - started, sizes[0], sum(sizes[1:])))


def slope_bytes_per_minute(samples: list[tuple[float, int]]) -> float:
    """The least-squares slope of (seconds, bytes); 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    times, sizes = zip(*samples, strict=True)
    middle, mean = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((each - middle) ** 2 for each in times)
    return 60 * sum((each - middle) * (size - mean) for each, size in samples) / spread if spread else 0.0
