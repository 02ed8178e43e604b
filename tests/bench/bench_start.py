"""The time from the start of `nearfar serve demo` to its first answer, with a compiled model, and its memory.

    .venv/bin/python tests/bench/bench_start.py

The first run compiles the model into a separate cache, and is not measured. Processor time and memory are those of the
server and its processes; resident memory counts shared pages in each process, proportional memory once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
from bench_compile import machine
from serving_process import nearfar_serve

QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "what is 27 + 58?"}], "temperature": 0}
ANSWER = "27 + 58 = 85"


def measure(folder: Path) -> dict[str, float]:
    """Raises AssertionError for a wrong answer."""
    started = time.monotonic()
    with nearfar_serve(["demo"], folder / "log", environment={"NEARFAR_CACHE": str(folder)}) as server:
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=QUESTION, timeout=60).json()
        seconds = time.monotonic() - started
        assert answer["choices"][0]["message"]["content"] == ANSWER, answer
        parent = psutil.Process(server.process.pid)
        processes = [parent, *parent.children(recursive=True)]
        times = [process.cpu_times() for process in processes]
        memory = [process.memory_full_info() for process in processes]
    return {
        "seconds": seconds,
        "processor seconds": sum(each.user + each.system for each in times),
        "resident MB": sum(each.rss for each in memory) / 1e6,
        "proportional MB": sum(each.pss for each in memory) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))
        found = [measure(Path(folder)) for _ in range(options.starts)]
    for name in found[0]:
        values = [each[name] for each in found]
        print(f"{name:18} {statistics.median(values):7.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
