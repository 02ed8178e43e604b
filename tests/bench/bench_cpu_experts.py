"""A mixture of 2 GB on this machine's CPU: time of a token, memory, and bytes read from the files, with experts mapped
and copied.

``python tests/bench/bench_cpu_experts.py`` compiles random 4-bit weights at the shapes of `checkpoints.SPARSE_MIXTURE`,
or runs ``--bundle``. Each way of holding weights runs in a process of its own, after the system was asked to forget the
files, and decodes tokens of a random text; times are medians of the first and of the last tokens. It writes
``build/bench/cpu-experts.json``. Processor times, which other work of the machine hardly changes, are those of all
threads divided by their number.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import ROOT, machine
from bench_cpu import make_bundle
from checkpoints import SPARSE_MIXTURE

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.cpu.weight_memory import COPIED, MAPPED, WEIGHTS_VARIABLE
from nearfar.targets.threads import default_threads

# NEARFAR_WEIGHTS, by what it means for a mixture.
WAYS = {"experts mapped (default)": "", "all mapped": MAPPED, "all copied": COPIED}
TOKENS, OF_A_MEDIAN = 96, 16
GIVEN = {"anonymous": "RssAnon", "mapped": "RssFile"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, help="default: compiled now")
    parser.add_argument("--way", choices=list(WAYS), help="measure one of them in this process")
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measured(options.bundle)))
        return
    bundle = options.bundle or make_bundle(ROOT / "build" / "bench", SPARSE_MIXTURE).path
    results = {}
    for way, weights in WAYS.items():
        command = [sys.executable, __file__, "--bundle", str(bundle), "--way", way]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, WEIGHTS_VARIABLE: weights}
        )
        results[way] = json.loads(done.stdout)
        print(way, json.dumps(results[way]), flush=True)
    if len({tuple(each.pop("tokens")) for each in results.values()}) > 1:
        raise SystemExit("the ways of holding weights give different tokens")
    answer = {"machine": machine(), "threads": default_threads(), "results": results}
    (ROOT / "build/bench/cpu-experts.json").write_text(json.dumps(answer, indent=2) + "\n")


def measured(folder: Path) -> dict[str, Any]:
    """One way, as the environment requests it. Sizes in bytes."""
    bundle = open_bundle(folder)
    for shard in bundle.manifest.shards:
        with bundle.file(shard.file).open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    page_size, vocabulary = bundle.manifest.page_size, bundle.manifest.spec.vocab_size
    start = time.perf_counter()
    runner = CpuRunner(bundle, limits=Limits(tokens=1, sequences=1, rows=1, pages=-(-TOKENS // page_size)))
    load_seconds = time.perf_counter() - start
    text = np.random.default_rng(3).integers(0, vocabulary, TOKENS).tolist()
    wall, processor, read, chosen = [], [], [read_bytes()], []
    for position, token in enumerate(text):
        pages = list(range(position // page_size + 1))
        before, busy = time.perf_counter(), time.process_time()
        logits = runner.forward(make_batch([Chunk([token], position, pages, [0])], page_size)).logits
        wall.append(time.perf_counter() - before)
        processor.append((time.process_time() - busy) / default_threads())
        read.append(read_bytes())
        chosen.append(int(logits[-1].argmax()))
    parts = {"first": slice(None, OF_A_MEDIAN), "last": slice(-OF_A_MEDIAN, None)}
    return {
        "load_seconds": round(load_seconds, 2),
        **{
            f"{name}_{kind}_ms": round(1e3 * statistics.median(times[part]), 1)
            for name, part in parts.items()
            for kind, times in (("wall", wall), ("processor", processor))
        },
        "read_for_first_tokens": read[OF_A_MEDIAN] - read[0],
        "read_for_last_tokens": read[-1] - read[-1 - OF_A_MEDIAN],
        **memory(),
        "tokens": chosen,
    }


def read_bytes() -> int:
    """The bytes that this process has had read from disks."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def memory() -> dict[str, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {name: int(lines[key].split()[0]) << 10 for name, key in GIVEN.items()}


if __name__ == "__main__":
    main()
