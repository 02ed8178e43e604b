"""Tokens per second of random 4-bit weights with the shapes of a published model on this machine's CPU, compared with
llama.cpp.

``make bench-cpu`` runs this for Qwen3-0.6B, or for MODEL, a name from `compiler/arch/published/`. It prints a table and
writes ``build/bench/cpu.json``, or ``cpu-MODEL.json``. If llama-cpp-python is installed, llama.cpp runs the
same codes and scales if the bundle can be exported as GGUF, and the two engines alternate in each phase. Before that,
the logits of both are compared. With ``--file-type Q4_K_M``, or another type of llama.cpp's, llama.cpp quantizes that
file again, and both run the result. Only forward passes are measured: ours include choosing the next token, llama.cpp's
end with the logits. Ours run with the default activations and with 8-bit activations. At the end, the benchmark
measures how fast the same threads read memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from bench_compile import ROOT, machine
from checkpoints import QWEN3_0_6B, Shapes, published, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats.gguf.architectures import architecture_for
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.threads import default_threads

SEQUENCES = 8
PROMPT = 512
CONTEXT = 640
# (name, sequences, tokens of context, new tokens of each sequence)
PHASES = (
    ("decode, 16 tokens of context", 1, 16, 1),
    ("decode, 511 tokens of context", 1, 511, 1),
    (f"decode, {SEQUENCES} sequences, 16 tokens of context", SEQUENCES, 16, 1),
    (f"prefill of {PROMPT} tokens", 1, 0, PROMPT),
)

Clock = Callable[[], float]


# Our configurations, by their names in the table.
ACTIVATIONS = {"nearfar": "float16", "nearfar int8": "int8"}
# Two engines that run the same model correlate by more than this; with 4-bit weights, llama.cpp rounds the inputs of
# projections to 8 bits.
LEAST_CORRELATION = 0.99


class Engine(Protocol):
    def prepare(self, sequences: int, context: int) -> None:
        """Fill the caches of some sequences."""

    def step(self, sequences: int, context: int, tokens: int) -> None:
        """Run a forward pass for new tokens of each sequence after its context."""


class Answering(Engine, Protocol):
    def logits(self) -> npt.NDArray[np.float32]:
        """The logits (V,) of the last sequence after the last step."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "bench",
        help="folder for the checkpoint, the bundle and the GGUF file",
    )
    parser.add_argument(
        "--model", help="a model of compiler/arch/published, such as gemma-3-1b-it (default: Qwen3-0.6B)"
    )
    parser.add_argument("--file-type", help="run a GGUF file that llama.cpp quantizes, such as Q4_K_M")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    shapes = published(options.model) if options.model else QWEN3_0_6B
    bundle = make_bundle(options.folder, shapes)
    if options.file_type:
        from llama_engine import quantize

        source = options.folder / f"{shapes.name}-tokenizer.gguf"
        file = options.folder / f"{shapes.name}-{options.file_type}.gguf"
        if not file.exists():
            export_gguf(bundle, source, GgufOptions())
            quantize(source, file, options.file_type)
            source.unlink()
        bundle = compile_cpu(file, options.folder / f"{file.stem}-cpu")
    engines: dict[str, Answering] = {
        name: Ours(bundle, options.threads, activation) for name, activation in ACTIVATIONS.items()
    }
    if find_spec("llama_cpp"):
        from llama_engine import LlamaEngine

        if architecture_for(bundle.manifest.spec.model_type):
            if not options.file_type:
                file = options.folder / f"{shapes.name}.gguf"
                if not file.exists():
                    export_gguf(bundle, file, GgufOptions(tokenizer=False))
            engines["llama.cpp"] = LlamaEngine(file, SEQUENCES, CONTEXT, PROMPT, options.threads)
            compare_logits(engines["nearfar"], engines["llama.cpp"])
        else:
            print(f"without llama.cpp: a {bundle.manifest.spec.model_type} model cannot be exported as GGUF")
    results = [measure(engines, *phase, options.rounds) for phase in PHASES]
    weight_bytes = sum(plane.size for weight in bundle.manifest.weights.values() for plane in weight.planes)
    rate = read_rate(bundle, options.threads)
    answer = {"machine": machine(), "threads": options.threads, "bytes_read_per_second": rate, "results": results}
    file_name = "-".join(filter(None, ("cpu", options.model, options.file_type))) + ".json"
    (options.folder / file_name).write_text(json.dumps(answer, indent=2))
    table = Table(
        title=f"{shapes.name}, {options.file_type or 'q4f16'}, {options.threads} threads, {machine()}; "
        f"a loop reads {rate / 1e9:.0f} GB/s"
    )
    for column in ("", *(f"{name}, tokens/s" for name in engines), *(f"{name}'s ratio" for name in ACTIVATIONS)):
        table.add_column(column, justify="right" if column else "left")
    for (what, *_), rates in zip(PHASES, results, strict=True):
        ratios = [f"{rates[name] / rates['llama.cpp']:.2f}" if "llama.cpp" in rates else "" for name in ACTIVATIONS]
        table.add_row(what, *(f"{each:.1f}" for each in rates.values()), *ratios)
    Console(width=150).print(table)
    print(f"decode of one sequence reads weights at {results[0]['nearfar'] * weight_bytes / 1e9:.0f} GB/s")


def make_bundle(folder: Path, shapes: Shapes = QWEN3_0_6B) -> Bundle:
    checkpoint = folder / shapes.name
    if not (checkpoint / "model.safetensors").exists():
        write_checkpoint(shapes, checkpoint)
    return compile_cpu(checkpoint, folder / f"{shapes.name}-cpu")


def compile_cpu(model: Path, path: Path) -> Bundle:
    activations = tuple(ACTIVATIONS.values())
    options = CompileOptions(target="cpu", context=CONTEXT, activations=activations, self_test=False, force=True)
    compile_model(str(model), path, options)
    return open_bundle(path)


def compare_logits(ours: Answering, theirs: Answering) -> None:
    """Print how far the logits of two engines are apart after a prompt. Ends the benchmark if they run different
    models.
    """
    for engine in (ours, theirs):
        engine.prepare(1, 0)
        engine.step(1, 0, PROMPT)
    found, expected = theirs.logits(), ours.logits()
    correlation = float(np.corrcoef(found, expected)[0, 1])
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    print(f"llama.cpp's logits differ by {difference:.1%} of the largest (correlation {correlation:.5f})", flush=True)
    if not correlation > LEAST_CORRELATION:
        raise SystemExit("the engines do not run the same model: correct compiler/export")


def measure(
    engines: Mapping[str, Engine],
    what: str,
    sequences: int,
    context: int,
    tokens: int,
    rounds: int,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """Tokens per second of each engine: medians of steps, in alternating rounds."""
    print(what, flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            engine.prepare(sequences, context)
            for _ in range(1 if tokens > 1 else 10):
                seconds[name].append(timed(lambda step=engine.step: step(sequences, context, tokens), clock))  # type: ignore[misc]
    return {name: sequences * tokens / statistics.median(each) for name, each in seconds.items()}


def timed(work: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


class Ours:
    """``allowed``: the features of the machine that kernels may use; None for all."""

    def __init__(self, bundle: Bundle, threads: int, activation: str, allowed: Collection[str] | None = None) -> None:
        pages = CONTEXT // bundle.manifest.page_size
        limits = Limits(tokens=PROMPT, sequences=SEQUENCES, rows=SEQUENCES, pages=SEQUENCES * pages)
        self._runner = CpuRunner(bundle, limits=limits, threads=threads, activation=activation, allowed=allowed)
        self._output: Output | None = None
        self._has_states = bool(bundle.manifest.sequence_states)
        self._pages = [list(range(i * pages, (i + 1) * pages)) for i in range(SEQUENCES)]

    def prepare(self, sequences: int, context: int) -> None:
        for sequence in range(sequences if context else 0):
            self._forward([sequence], 0, context)

    def step(self, sequences: int, context: int, tokens: int) -> None:
        self._forward(range(sequences), context, tokens)

    def logits(self) -> npt.NDArray[np.float32]:
        assert self._output is not None
        last: npt.NDArray[np.float32] = self._output.logits[-1]
        return last

    def _forward(self, sequences: range | list[int], start: int, tokens: int) -> None:
        page_size = self._runner.manifest.page_size
        used = -(-(start + tokens) // page_size)
        chunks = [
            Chunk(
                token_ids(i, start, tokens),
                start,
                self._pages[i][:used],
                [tokens - 1],
                state=(i, i) if self._has_states else None,
            )
            for i in sequences
        ]
        self._output = self._runner.forward(make_batch(chunks, page_size))


def token_ids(sequence: int, start: int, tokens: int) -> list[int]:
    return [(7 * i + 131 * sequence) % 100_000 for i in range(start, start + tokens)]


def read_rate(bundle: Bundle, threads: int) -> float:
    """Bytes per second at which numpy's threads read the largest shard: the fastest of several passes. Of numpy's
    reductions, the maximum of int32 was the fastest.
    """
    entry = max(bundle.manifest.shards, key=lambda shard: shard.size)
    data = np.fromfile(bundle.path / entry.file, np.int32, entry.size // 4)
    with ThreadPoolExecutor(threads) as pool:
        parts = np.array_split(data, threads)
        return data.nbytes / min(timed(lambda: list(pool.map(np.max, parts))) for _ in range(9))


if __name__ == "__main__":
    main()
