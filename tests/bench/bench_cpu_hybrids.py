"""Tokens per second of models with states or experts on this machine's CPU, compared with llama.cpp.

``python tests/bench/bench_cpu_hybrids.py`` runs random 4-bit weights at the shapes of `checkpoints.HYBRIDS`.
llama.cpp (the package xllamacpp, whose wheel is built for AVX2) runs the bundle as `nearfar export --format gguf`
writes it, and reports the times of a prompt and of a token itself; the latter include choosing the token. Ours run with
all instructions of the machine and with AVX2 alone. The engines alternate, each figure is the median of the rounds, and
processor times are of all threads. A busy machine needs real-time priority: prefix ``chrt -r 5``.

``--llama-bench FILE`` adds a llama.cpp that is built for this machine. It reports its times without choosing tokens.
The sources are in the package llama-cpp-python, which ``pip download --no-binary :all: --no-deps`` fetches::

    cmake -S vendor/llama.cpp -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF
    ninja -C build llama-bench

If its AMX code crashes, build it with GGML_NATIVE=OFF and the instruction sets that it may use, such as GGML_AVX512=ON.

``--prepare`` only writes the bundles and files, which later runs reuse.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench_compile import ROOT, machine
from bench_cpu import ACTIVATIONS, Ours, make_bundle, token_ids
from checkpoints import HYBRIDS

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.targets.cpu.levels import features
from nearfar.targets.threads import default_threads

# The tokens before the decoded ones, the decoded ones, and the tokens of a prompt.
CONTEXT, DECODED, PROMPT = 128, 24, 512
# The engines with which ours are compared.
WHEEL, NATIVE = "llama.cpp", "llama.cpp for this machine"


class LlamaServer:
    """llama.cpp with one sequence."""

    def __init__(self, file: Path, threads: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx, params.n_parallel, params.verbosity = 1024, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.n_batch = params.n_ubatch = PROMPT
        params.warmup = params.ui = False
        self._server = xllamacpp.Server(params)

    def decode(self) -> float:
        return float(self._timings(CONTEXT, DECODED)["predicted_per_token_ms"])

    def prefill(self) -> float:
        return float(self._timings(PROMPT, 1)["prompt_ms"])

    def _timings(self, prompt: int, tokens: int) -> dict[str, Any]:
        request = {
            "prompt": [token % 20_000 for token in token_ids(0, 0, prompt)],
            "max_tokens": tokens,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": True,
            "cache_prompt": False,
        }
        answer: dict[str, Any] = self._server.handle_completions(request)
        assert "timings" in answer, answer
        found: dict[str, Any] = answer["timings"]
        return found


class LlamaBench:
    """llama.cpp's own benchmark, a process for each figure."""

    def __init__(self, program: Path, file: Path, threads: int) -> None:
        self._command = [program, "-m", file, "-t", threads, "-ub", PROMPT, "-ngl", 0, "-r", 1, "-o", "json"]

    def decode(self) -> float:
        return self._milliseconds("-p", 0, "-n", DECODED, "-d", CONTEXT) / DECODED

    def prefill(self) -> float:
        return self._milliseconds("-p", PROMPT, "-n", 0)

    def _milliseconds(self, *arguments: str | int) -> float:
        command = [str(each) for each in (*self._command, *arguments)]
        (found,) = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return float(found["avg_ns"]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(HYBRIDS), choices=list(HYBRIDS))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-bench", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--output", type=Path, help="a JSON file, such as tests/bench/results/cpu-hybrids.json")
    options = parser.parse_args()
    results = {"machine": machine(), "threads": options.threads, "rounds": options.rounds, "models": {}}
    for name in options.models:
        bundle, file = prepared(name, options.folder)
        if options.prepare:
            continue
        results["models"][name] = measured(bundle, file, options)
        (options.output or options.folder / "cpu-hybrids.json").write_text(json.dumps(results, indent=2) + "\n")


def prepared(name: str, folder: Path) -> tuple[Bundle, Path]:
    """A model's bundle and its weights for llama.cpp."""
    path, file = folder / f"{HYBRIDS[name].name}-cpu", folder / f"{name}.gguf"
    if not file.exists():
        export_gguf(make_bundle(folder, HYBRIDS[name]), file, GgufOptions())
    return open_bundle(path), file


def measured(bundle: Bundle, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a decoded token and of a prompt, and their ratios to llama.cpp's."""
    old = {each for each in features() if not each.startswith(("avx512", "amx", "avx_vnni"))}
    calls: dict[str, dict[str, Callable[[], float]]] = {"decode": {}, "prefill": {}}
    for activation in ACTIVATIONS.values():
        for level, allowed in (("", None), (" AVX2", old)):
            engine = Ours(bundle, options.threads, activation, allowed)
            calls["decode"][f"{activation}{level}"] = partial(decode, engine)
            calls["prefill"][f"{activation}{level}"] = partial(prefill, engine)
    llama = LlamaServer(file, options.threads)
    calls["decode"][WHEEL], calls["prefill"][WHEEL] = llama.decode, llama.prefill
    if options.llama_bench is not None:
        native = LlamaBench(options.llama_bench, file, options.threads)
        calls["decode"][NATIVE], calls["prefill"][NATIVE] = native.decode, native.prefill
    return {what: medians(engines, options.rounds) for what, engines in calls.items()}


def decode(engine: Ours) -> float:
    engine.prepare(1, CONTEXT)
    return statistics.median(milliseconds(partial(engine.step, 1, CONTEXT + index, 1)) for index in range(DECODED))


def prefill(engine: Ours) -> float:
    return milliseconds(partial(engine.step, 1, 0, PROMPT))


def milliseconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def medians(engines: dict[str, Callable[[], float]], rounds: int) -> dict[str, dict[str, float]]:
    """The median of each engine's times and processor times in alternating rounds, without those of processes of their
    own.
    """
    wall: dict[str, list[float]] = {name: [] for name in engines}
    processor: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, run in engines.items():
            start = time.process_time()
            wall[name].append(run())
            processor[name].append(1e3 * (time.process_time() - start))
    found = {name: statistics.median(times) for name, times in wall.items()}
    others = {name: key for name, key in ((WHEEL, "times_llama_cpp"), (NATIVE, "times_native")) if name in found}
    figures = {
        name: {
            "milliseconds": round(found[name], 1),
            **(
                {}
                if name == NATIVE
                else {"processor_milliseconds_of_a_run": round(statistics.median(processor[name]), 1)}
            ),
            **{key: round(found[other] / found[name], 2) for other, key in others.items()},
        }
        for name in engines
    }
    print({name: tuple(each.values()) for name, each in figures.items()}, flush=True)
    return figures


if __name__ == "__main__":
    main()
