"""What a watermark adds to the choice of a token on this machine's CPU: the steps behind the logits, without a model.

    PYTHONPATH=tests:tests/targets:tests/targets/cpu:tests/targets/webgpu .venv/bin/python \
        tests/bench/bench_watermark_step.py

Without a mark, `sample` reads the logits. With one, `adjust_logits` copies them, `mark_logits` raises those of the
green list, and `sample` reads these. The cpu target's kernels run on one thread, and `HostSampler`, which chooses for
the targets onnx and mlx, in numpy. Ways alternate; a figure is the median of many calls, in processor time for a row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cpu_steps
import numpy as np
from bench_compile import machine
from bench_cpu_kernels import best
from rich.console import Console
from rich.table import Table

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.sampling import MARK, Settings
from nearfar.compiler.ir.watermark import COLUMNS, WATERMARK, Watermark
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.host_sampler import HostSampler

RESULTS = Path(__file__).parent / "results" / "watermark-step.json"
# SmolLM2, Llama 3, Qwen 3 and Gemma 3.
VOCABULARIES = (49_152, 128_256, 151_936, 262_144)
ROWS = (1, 16)
SAMPLINGS = {"greedy": Settings(), "temperature 0.7, top_p 0.95": Settings(temperature=0.7, top_p=0.95, draw=0.4)}
STEPS = ("adjust_logits", "mark_logits", "sample")
# A round of calls takes at least this long, many times the resolution of the clock.
ROUND_SECONDS = 0.02
ROW = Watermark.of(b"a key of this benchmark").row()


@dataclass(frozen=True, slots=True)
class Arrays:
    """The inputs of all steps for ``rows`` rows of ``vocabulary`` logits, marked or not."""

    vocabulary: int
    rows: int
    settings: Settings
    marked: bool

    @property
    def dims(self) -> Mapping[str, int]:
        return {"R": self.rows, "S": self.rows, "N": self.rows, "A": self.rows if self.marked else 0}

    @property
    def flags(self) -> int:
        return MARK if self.marked else 0

    def by_role(self, op: str) -> dict[str, Array]:
        rows, vocabulary = self.rows, self.vocabulary
        logits = np.random.default_rng(0).normal(0, 3, (rows, vocabulary)).astype(np.float32)
        given: dict[str, Array] = {
            "logits": logits,
            "adjusted": logits if self.marked else logits[:0],
            "settings": np.tile(np.array(self.settings, np.float32), (rows, 1)),
            "slots": np.stack([np.arange(rows), np.full(rows, self.flags)], 1).astype(np.int32),
            "counts": np.zeros((rows, vocabulary), np.int32),
            "bias": np.zeros((rows, vocabulary), np.float32),
            "mask": np.zeros((rows, -(-vocabulary // 32)), np.int32),
            "token_ids": np.arange(rows, dtype=np.int32) + 7,
            "rows": np.arange(rows, dtype=np.int32),
            "sampled": np.zeros(rows, np.int32),
            "watermark": ROW[None],
            "y": np.zeros(rows, np.int32) if op == "sample" else np.empty((rows, vocabulary), np.float32),
            "logprobs": np.zeros(rows, np.float32),
        }
        return {role: given[role] for role in (*case_of(op, vocabulary).inputs, *case_of(op, vocabulary).results)}


def case_of(op: str, vocabulary: int) -> cpu_steps.StepCase:
    every: dict[str, tuple[Any, ...]] = {
        "logits": ("float32", "R", vocabulary),
        "adjusted": ("float32", "A", vocabulary),
        "settings": ("float32", "R", len(Settings._fields)),
        "slots": ("int32", "R", 2),
        "counts": ("int32", "N", vocabulary),
        "bias": ("float32", "N", vocabulary),
        "mask": ("int32", "N", -(-vocabulary // 32)),
        "token_ids": ("int32", "S"),
        "rows": ("int32", "R"),
        "sampled": ("int32", "N"),
        "watermark": ("int32", 1, COLUMNS),
    }
    reads = {
        "adjust_logits": ("logits", "settings", "slots", "counts", "bias", "mask"),
        "mark_logits": ("adjusted", "token_ids", "rows", "slots", "sampled", "watermark"),
        "sample": ("logits", "adjusted", "settings", "slots", "counts", "sampled"),
    }[op]
    return cpu_steps.StepCase(f"{op}_{vocabulary}", op, {role: every[role] for role in reads}, {}, ())


def kernel_calls(library: cpu_steps.StepLibrary, arrays: Arrays) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each step's kernels, without those that are skipped because no row is marked."""
    for op in STEPS if arrays.marked else STEPS[-1:]:
        case = case_of(op, arrays.vocabulary)
        batch = cpu_steps.Batch(arrays.dims)
        run = cpu_steps.Run(arrays.dims, arrays.by_role(op), {})
        launches, scalars, kept = library.prepared(best(case, batch), run)
        # `kept`: the library has only pointers.
        yield op, partial(lambda _kept, *given: library.library.run(*given), kept, launches, scalars)


def host_call(arrays: Arrays) -> Callable[[], object]:
    chunks = [
        Chunk([7], 0, [row], sample=[0], settings=arrays.settings, slot=row, flags=arrays.flags)
        for row in range(arrays.rows)
    ]
    batch = make_batch(chunks, 1)
    sampler = HostSampler(arrays.vocabulary, arrays.rows)
    sampler.write(WATERMARK, 0, ROW)
    return partial(sampler.choose, batch, arrays.by_role("sample")["logits"])


def microseconds(calls: Mapping[Any, Callable[[], object]], rounds: int) -> dict[Any, float]:
    """The median processor time of each call."""
    repeats, taken = {}, dict[Any, list[float]]()
    for name, call in calls.items():
        call()
        started = time.process_time()
        call()
        repeats[name] = max(1, int(ROUND_SECONDS / max(time.process_time() - started, 1e-6)))
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            for _ in range(repeats[name]):
                call()
            taken.setdefault(name, []).append((time.process_time() - started) / repeats[name])
    return {name: 1e6 * statistics.median(each) for name, each in taken.items()}


def measured(library: cpu_steps.StepLibrary, vocabulary: int, rounds: int) -> Iterator[dict[str, Any]]:
    for rows in ROWS:
        for name, settings in SAMPLINGS.items():
            calls: dict[tuple[bool, str], Callable[[], object]] = {}
            for marked in (False, True):
                arrays = Arrays(vocabulary, rows, settings, marked)
                calls |= {(marked, op): call for op, call in kernel_calls(library, arrays)}
                calls[marked, "host"] = host_call(arrays)
            taken = {key: each / rows for key, each in microseconds(calls, rounds).items()}
            with_mark = sum(each for (marked, op), each in taken.items() if marked and op != "host")
            yield {
                "vocabulary": vocabulary,
                "rows": rows,
                "sampling": name,
                "without": round(taken[False, "sample"], 1),
                "with": round(with_mark, 1),
                "adjust_logits": round(taken[True, "adjust_logits"], 1),
                "mark_logits": round(taken[True, "mark_logits"], 1),
                "numpy without": round(taken[False, "host"], 1),
                "numpy with": round(taken[True, "host"], 1),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", nargs="+", type=int, default=VOCABULARIES)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary in given.vocabularies:
            own = Path(folder) / str(vocabulary)
            own.mkdir()
            library = cpu_steps.StepLibrary([case_of(op, vocabulary) for op in STEPS], own)
            # Threads that wait for the others spin, which would be counted.
            library.library.stop_threads()
            rows += measured(library, vocabulary, given.rounds)
    table = Table(title=f"{machine()}, one thread, microseconds of processor time for a row")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "sampling" else "right")
    for row in rows:
        table.add_row(*(f"{each:,}" if isinstance(each, int) else str(each) for each in row.values()))
    Console(width=160).print(table)
    level = cpu_steps.LEVELS[0].name
    RESULTS.write_text(json.dumps({"machine": machine(), "level": level, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
