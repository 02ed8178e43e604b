"""Random weights with Qwen3-0.6B's shapes on ONNX Runtime on this machine's CPU, compared with the model in other
runtimes.

``make bench-onnx`` runs this, prints a table and writes ``build/bench/onnx.json``. Our runner uses groups of 32, 64 and
128 weights. onnxruntime-genai runs the folder with groups of 64. If llama-cpp-python is installed, llama.cpp
runs Q4_0, which has groups of 32. transformers runs the checkpoint in bfloat16. The engines alternate in each phase,
and only forward passes are measured: ours and genai's include choosing the next token, the others end with the logits.
Peak memory and build time are measured in separate processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from bench_compile import ROOT, machine
from bench_cpu import CONTEXT, PHASES, PROMPT, SEQUENCES, Engine, make_bundle, measure, token_ids
from checkpoints import QWEN3_0_6B, compile_in_process, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import ExportBundle, open_any
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.onnx.runner import OnnxRunner
from nearfar.targets.threads import default_threads

GROUPS = (32, 64, 128)
# Prompt tokens per step, as in `nearfar serve`.
CHUNK = 256
SERVED = Limits(tokens=CHUNK, sequences=1, rows=1, pages=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "bench",
        help="folder for the checkpoint, the bundles and the GGUF file",
    )
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure this process's CPU seconds, which other work on the machine does not increase",
    )
    parser.add_argument("--engines", nargs="+", help="engines to measure, by their names in the table (default: all)")
    parser.add_argument(
        "--peak", type=Path, metavar="BUNDLE", help="print only the peak memory of an answer with this bundle"
    )
    options = parser.parse_args()
    if options.peak:
        print(peak_bytes(options.peak, options.threads))
        return
    checkpoint = options.folder / QWEN3_0_6B.name
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(QWEN3_0_6B, checkpoint)
    builds = {group: build(checkpoint, group, options.threads) for group in GROUPS}
    engines = open_engines(options.folder, options.threads, options.engines)
    clock = time.process_time if options.cpu_time else time.perf_counter
    results = {phase[0]: measure(engines, *phase, options.rounds, clock) for phase in PHASES}
    answer = {"machine": machine(), "threads": options.threads, "builds": builds, "tokens_per_second": results}
    (options.folder / "onnx.json").write_text(json.dumps(answer, indent=2))
    table = Table(title=f"{QWEN3_0_6B.name}, 4 bits, {options.threads} threads, {machine()}; tokens/s")
    for column in ("", *engines):
        table.add_column(column, justify="right" if column else "left")
    for what, rates in results.items():
        table.add_row(what, *(f"{rate:.1f}" for rate in rates.values()))
    Console(width=150).print(table)
    for group, facts in builds.items():
        print(f"groups of {group}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))


def exported(folder: Path, group: int) -> Path:
    return folder / f"{QWEN3_0_6B.name}-onnx-{group}"


def build(checkpoint: Path, group: int, threads: int) -> dict[str, float]:
    """Compile in one process, then load and answer in another."""
    path = exported(checkpoint.parent, group)
    usage = compile_in_process(
        checkpoint, path, "--target", "onnx", "--group-size", str(group), "--context", str(CONTEXT)
    )
    measuring = [sys.executable, __file__, "--peak", str(path), "--threads", str(threads)]
    peak = int(subprocess.run(measuring, check=True, capture_output=True, text=True).stdout)
    model = open_export(path).manifest.model_bytes()
    return {"build_seconds": round(usage.seconds, 1), "model_MB": round(model / 1e6), "peak_MB": round(peak / 1e6)}


def peak_bytes(path: Path, threads: int) -> int:
    """The peak of this process's resident pages after a prompt of PROMPT tokens and 16 decoded tokens, as counted by
    the kernel.
    """
    runner = OnnxRunner(open_export(path), limits=SERVED, threads=threads)
    for start in range(0, PROMPT, CHUNK):
        runner.forward(make_batch([Chunk(token_ids(0, start, CHUNK), start, [0], [CHUNK - 1])], CONTEXT))
    for start in range(PROMPT, PROMPT + 16):
        runner.forward(make_batch([Chunk([5], start, [0], [0])], CONTEXT))
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def open_export(path: Path) -> ExportBundle:
    bundle = open_any(path)
    assert isinstance(bundle, ExportBundle)
    return bundle


def open_engines(folder: Path, threads: int, wanted: Sequence[str] | None) -> dict[str, Engine]:
    def llama() -> Engine:
        from llama_engine import LlamaEngine

        file = folder / f"{QWEN3_0_6B.name}.gguf"
        if not file.exists():
            export_gguf(make_bundle(folder), file, GgufOptions(tokenizer=False))
        return LlamaEngine(file, SEQUENCES, CONTEXT, PROMPT, threads)

    def ours(group: int) -> Engine:
        return Ours(open_export(exported(folder, group)), threads)

    makers: dict[str, Callable[[], Engine]] = {f"nearfar {group}": partial(ours, group) for group in GROUPS}
    if find_spec("llama_cpp"):
        makers["llama.cpp"] = llama
    makers["genai 64"] = lambda: GenAi(exported(folder, 64), threads)
    makers["transformers"] = lambda: Transformers(folder / QWEN3_0_6B.name, threads)
    return {name: make() for name, make in makers.items() if wanted is None or name in wanted}


class Ours:
    def __init__(self, bundle: ExportBundle, threads: int) -> None:
        limits = Limits(tokens=PROMPT, sequences=SEQUENCES, rows=SEQUENCES, pages=SEQUENCES)
        self._runner = OnnxRunner(bundle, limits=limits, threads=threads)

    def prepare(self, sequences: int, context: int) -> None:
        for sequence in range(sequences if context else 0):
            self._forward([sequence], 0, context)

    def step(self, sequences: int, context: int, tokens: int) -> None:
        self._forward(range(sequences), context, tokens)

    def _forward(self, sequences: Sequence[int], start: int, tokens: int) -> None:
        chunks = [Chunk(token_ids(i, start, tokens), start, [i], [tokens - 1]) for i in sequences]
        self._runner.forward(make_batch(chunks, CONTEXT))


class GenAi:
    """All its sequences have the same length. Each decoded token follows the previous one, so the context grows by one
    token per step.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime_genai

        self._genai = onnxruntime_genai
        config = onnxruntime_genai.Config(str(folder))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self._model = onnxruntime_genai.Model(config)

    def prepare(self, sequences: int, context: int) -> None:
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(max_length=CONTEXT, min_length=CONTEXT, batch_size=sequences, do_sample=False)
        self._generator = self._genai.Generator(self._model, params)
        if context:
            self._append(sequences, context)

    def step(self, sequences: int, context: int, tokens: int) -> None:  # noqa: ARG002
        if tokens > 1:
            self._append(sequences, tokens)
        self._generator.generate_next_token()

    def _append(self, sequences: int, tokens: int) -> None:
        self._generator.append_tokens(np.array([token_ids(i, 0, tokens) for i in range(sequences)], np.int32))


class Transformers:
    """The checkpoint as bfloat16. As in `GenAi`, the context grows."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch, self._cache = torch, transformers.DynamicCache
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def prepare(self, sequences: int, context: int) -> None:
        self._past = self._cache()
        if context:
            self.step(sequences, 0, context)

    def step(self, sequences: int, context: int, tokens: int) -> None:
        ids = self._torch.tensor([token_ids(i, context, tokens) for i in range(sequences)])
        with self._torch.no_grad():
            self._model(ids, past_key_values=self._past, logits_to_keep=1)


if __name__ == "__main__":
    main()
