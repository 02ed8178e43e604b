"""The ops with a state for each sequence on this machine's CPU: their time for one row, a prompt's rows, and a decoded
token of models whose layers have states, after 128 and 32,768 tokens.

``make bench-states`` prints both tables and writes `results/cpu-states.json`, which names the machine. Times are
medians of the processor time of one thread. Lengths alternate, so that other work on the machine affects all of them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cpu_steps
import numpy as np
from bench_compile import machine
from checkpoints import Shapes, compile_in_process, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits

RESULTS = Path(__file__).parent / "results" / "cpu-states.json"
ROWS = (1, 512, 2048)
POSITIONS = (127, 32767)
ROUNDS, SECONDS = 31, 3.0
# Four layers of Qwen3.5-0.8B with a small vocabulary.
QWEN3_5_LAYERS = {
    "model_type": "qwen3_5_text", "vocab_size": 1024, "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 3584,
    "linear_num_value_heads": 16, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "max_position_embeddings": 262144, "tie_word_embeddings": True, "attn_output_gate": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
}  # fmt: skip
MODELS = {
    "4 layers of the gated delta rule": ["linear_attention"] * 4,
    "3 of them and 1 of attention": [*["linear_attention"] * 3, "full_attention"],
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ops = list(op_times(Path(folder)))
        tokens = list(token_times(Path(folder)))
    for title, rows in (("ops, one thread", ops), ("a decoded token, one thread", tokens)):
        table = Table(title=f"{title}, {machine()}")
        for column in rows[0]:
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console(width=120).print(table)
    RESULTS.write_text(json.dumps({"machine": machine(), "ops": ops, "tokens": tokens}, indent=2) + "\n")


def op_times(folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each shape and number of new rows of one sequence."""
    for case in cases():
        (folder / case.name).mkdir()
        library = cpu_steps.StepLibrary([case], folder / case.name)
        library.library.start_threads(1)
        # The best level comes first.
        row = next(row for _, row in case.runnable())
        prepared = {}
        for rows in ROWS:
            run = cpu_steps.run_of(case, batch_of(rows))
            prepared[rows] = library.prepared(row, run)
        taken: dict[int, list[float]] = {rows: [] for rows in ROWS}
        started = time.perf_counter()
        while time.perf_counter() - started < SECONDS or len(taken[ROWS[-1]]) < 5:
            for rows, (launches, scalars, arrays) in prepared.items():
                # Otherwise they grow.
                arrays["state"][...] = 0
                before = time.process_time()
                library.library.run(launches, scalars)
                taken[rows].append(time.process_time() - before)
        for rows, times in taken.items():
            seconds = statistics.median(times)
            milliseconds, speed = f"{seconds * 1e3:.2f}", f"{rows / seconds:,.0f}"
            yield {"op": case.op, "shapes": case.name, "rows": rows, "ms": milliseconds, "rows/s": speed}


def cases() -> Iterator[cpu_steps.StepCase]:
    """The shapes of one layer of published models."""
    batch = {
        "state_slots": ("int32", "B", 2),
        "seq_starts": ("int32", ["add", "B", 1]),
        "positions": ("int32", "S"),
    }
    heads, size = 16, 128
    inputs = {
        "qkv": ("float32", "S", 3 * heads * size),
        "abz": ("float32", "S", heads * (2 + size)),
        "vectors": ("vector", 2 * heads + size),
        "state": ("float32", "Z", heads, size, size),
    }
    attrs = {"a_start": 0, "b_start": heads, "z_start": 2 * heads, "eps": 1e-6}
    yield cpu_steps.StepCase("Qwen3.5-0.8B", "gated_delta", {**inputs, **batch}, attrs, [])
    for name, heads, size in (("Granite-4-350M", 48, 32), ("Granite-4-1B", 48, 64), ("Falcon-H1-0.5B", 24, 64)):
        inputs = {
            "xbc": ("float32", "S", heads * size + 2 * 128),
            "dt": ("float32", "S", heads * (size + 1)),
            "vectors": ("vector", 3 * heads),
            "state": ("float32", "Z", heads, size, 128),
        }
        attrs = {"dt_start": heads * size, "z_start": 0}
        yield cpu_steps.StepCase(name, "ssm_scan", {**inputs, **batch}, attrs, [])


def batch_of(rows: int) -> cpu_steps.Batch:
    """New rows of a sequence that is continued."""
    arrays = {
        "seq_starts": np.array([0, rows], np.int32),
        "positions": np.arange(1, rows + 1, dtype=np.int32),
        "state_slots": np.zeros((1, 2), np.int32),
    }
    return cpu_steps.Batch({"S": rows, "B": 1, "Z": 1}, arrays)


def token_times(folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each model and number of tokens before the decoded one. Nothing is prefilled: a token takes as long."""
    runners = {}
    for index, (name, kinds) in enumerate(MODELS.items()):
        checkpoint, bundle = folder / f"checkpoint-{index}", folder / f"bundle-{index}"
        write_checkpoint(Shapes(name, {**QWEN3_5_LAYERS, "layer_types": kinds}), checkpoint)
        context = ("--context", str(max(POSITIONS) + 1))
        compile_in_process(checkpoint, bundle, "--target", "cpu", *context, "--no-self-test")
        opened = open_bundle(bundle)
        pages = opened.manifest.pages_for(max(POSITIONS) + 1)
        runners[name] = open_runner("cpu", opened, Limits(tokens=4, sequences=1, rows=1, pages=pages, states=1))
    taken: dict[tuple[str, int], list[float]] = {}
    for turn in range(ROUNDS + 1):
        for position in POSITIONS:
            for name, runner in runners.items():
                assert isinstance(runner, PlanRunner)
                manifest = runner.manifest
                chunk = Chunk([7], position, list(range(manifest.pages_for(position + 1))), [0])
                batch = make_batch([replace(chunk, state=(0, 0))], manifest.page_size)
                before = time.process_time()
                runner.forward(batch)
                if turn:
                    taken.setdefault((name, position), []).append(time.process_time() - before)
    for (name, position), times in taken.items():
        seconds, first = statistics.median(times), statistics.median(taken[name, POSITIONS[0]])
        yield {"model": name, "context": position + 1, "ms": f"{seconds * 1e3:.2f}", "x": f"{seconds / first:.2f}"}


if __name__ == "__main__":
    main()
