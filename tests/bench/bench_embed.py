"""Embeddings on this machine's CPU with MiniLM's shapes (6 layers of 384, random weights): milliseconds for one text
and for 64 texts of 16 to 256 tokens, compared with ONNX Runtime, sentence-transformers and llama.cpp.

``make bench-embed`` prints a table and writes ``build/bench/embed.json``. Only forward passes are measured, from token
ids to vectors. The engines alternate in each round, and figures are medians. Before that, the vectors of all engines
are compared. ONNX Runtime (float32 with the graph of its own optimiser, and int8) and sentence-transformers pad texts,
so they get them sorted by length, in batches of the size that is fastest for each. llama.cpp is that of xllamacpp's
wheel. Without the package sentence-transformers, the table lacks its row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bench_compile import ROOT, machine
from llama_embedder import LlamaEmbedder
from minilm import VOCAB, embed_reference, export_gguf, export_onnx, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.encoding import Text, encode
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.threads import default_threads

Vectors = list[npt.NDArray[np.float32]]
Embed = Callable[[Sequence[Sequence[int]]], Vectors]

SHORTEST, LONGEST, MANY = 16, 256, 64
# (name, lengths of the texts)
BATCHES = (
    ("1 text of 16 tokens", [16]),
    ("1 text of 64 tokens", [64]),
    ("1 text of 256 tokens", [256]),
    (f"{MANY} texts of {SHORTEST} to {LONGEST} tokens", np.linspace(SHORTEST, LONGEST, MANY).astype(int).tolist()),
)
# Our bundles: (quantization, activations).
OURS = {"nearfar f32": ("f32", "float32"), "nearfar f16": ("f16", "float32"), "nearfar q8, int8": ("q8f16", "int8")}
PADDED_BATCHES = (4, 8, 16, 64)
# Rows of a forward pass: its buffers fit into a core's cache.
TOKENS_AT_ONCE = 1024
# The least cosine of an engine's vectors with those of transformers in float32.
LEAST_COSINE = {"float": 0.9999, "int8": 0.95}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder for models")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    engines = make_engines(options.folder / "minilm", options.threads)
    results: dict[str, dict[str, float]] = {}
    for what, lengths in BATCHES:
        rng = np.random.default_rng(len(lengths))
        texts = rng.permutation(np.array([None, *(rng.integers(5, VOCAB, n).tolist() for n in lengths)], object)[1:])
        results[what] = measure(engines, list(texts), options.rounds)
    answer = {"machine": machine(), "threads": options.threads, "rounds": options.rounds, "milliseconds": results}
    (options.folder / "embed.json").write_text(json.dumps(answer, indent=2))
    table = Table(title=f"milliseconds, {options.threads} threads, medians of {options.rounds} rounds, {machine()}")
    for column in ("", *results):
        table.add_column(column, justify="right" if column else "left")
    for name in engines:
        table.add_row(name, *(f"{each[name]:.2f}" for each in results.values()))
    for name in OURS:
        ratios = [best_of_others(each) / each[name] for each in results.values()]
        table.add_row(f"{name}: speed relative to the best other", *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=160).print(table)


def best_of_others(milliseconds: dict[str, float]) -> float:
    return min(each for name, each in milliseconds.items() if name not in OURS)


def make_engines(folder: Path, threads: int) -> dict[str, Embed]:
    model = write_checkpoint(folder / "checkpoint")
    expected = partial(embed_reference, model)
    engines: dict[str, Embed] = {
        name: ours(folder, quantization, activation, threads) for name, (quantization, activation) in OURS.items()
    }
    for name, file in export_onnx(model, folder).items():
        engines[f"ONNX Runtime {name}"] = in_batches(onnx_session(file, threads), name)
    if find_spec("sentence_transformers"):
        engines["sentence-transformers"] = in_batches(
            sentence_transformer(folder / "checkpoint", threads), "sentence-transformers"
        )
    else:
        print("without sentence-transformers, which is not installed")
    for kind in ("F32", "Q8_0"):
        export_gguf(model, folder / f"{kind}.gguf", kind)
        engines[f"llama.cpp {kind}"] = LlamaEmbedder(folder / f"{kind}.gguf", threads)
    compare(engines, expected)
    return engines


def ours(folder: Path, quantization: str, activation: str, threads: int) -> Embed:
    path = folder / f"{quantization}-{activation}"
    options = CompileOptions(
        target="cpu", quantization=quantization, context=LONGEST, activations=(activation,), self_test=False, force=True
    )
    compile_model(str(folder / "checkpoint"), path, options)
    limits = Limits(tokens=TOKENS_AT_ONCE, sequences=MANY)
    runner = CpuRunner(open_bundle(path), limits=limits, activation=activation, threads=threads)
    return lambda texts: encode(runner, [Text(text) for text in texts])


def onnx_session(file: Path, threads: int) -> Embed:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def embed(texts: Sequence[Sequence[int]]) -> Vectors:
        token_ids, mask = padded(texts)
        return list(session.run(None, {"input_ids": token_ids, "attention_mask": mask})[0])

    return embed


def sentence_transformer(folder: Path, threads: int) -> Embed:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu")

    def embed(texts: Sequence[Sequence[int]]) -> Vectors:
        token_ids, mask = padded(texts)
        features: dict[str, Any] = {"input_ids": torch.from_numpy(token_ids), "attention_mask": torch.from_numpy(mask)}
        with torch.inference_mode():
            return list(model(features)["sentence_embedding"].numpy())

    return embed


def padded(texts: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Token ids and the mask of texts (B, T)."""
    shape = len(texts), max(map(len, texts))
    token_ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, text in enumerate(texts):
        token_ids[row, : len(text)], mask[row, : len(text)] = text, 1
    return token_ids, mask


def in_batches(embed: Embed, name: str) -> Embed:
    """Texts sorted by length, in batches of the size that is fastest for texts of all lengths."""

    def sized(size: int, texts: Sequence[Sequence[int]]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        found = [
            vector
            for start in range(0, len(order), size)
            for vector in embed([texts[index] for index in order[start : start + size]])
        ]
        return [found[order.index(index)] for index in range(len(order))]

    texts = [list(range(5, 5 + length)) for length in BATCHES[-1][1]]
    seconds = {size: min(timed(partial(sized, size), texts) for _ in range(4)) for size in PADDED_BATCHES}
    fastest = min(seconds, key=lambda size: seconds[size])
    print(f"{name}: batches of {fastest}", flush=True)
    return partial(sized, fastest)


def compare(engines: dict[str, Embed], expected: Embed) -> None:
    """End the benchmark if an engine runs another model."""
    texts = [list(range(5, 5 + length)) for length in (3, 40, 17, LONGEST)]
    vectors = expected(texts)
    for name, embed in engines.items():
        cosines = [
            float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
            for one, other in zip(embed(texts), vectors, strict=True)
        ]
        least = LEAST_COSINE["int8" if "8" in name else "float"]
        print(f"{name}: the least cosine is {min(cosines):.5f}", flush=True)
        if not min(cosines) > least:
            raise SystemExit(f"{name} does not run the same model: cosines of {cosines}")


def measure(engines: dict[str, Embed], texts: Sequence[Sequence[int]], rounds: int) -> dict[str, float]:
    """Milliseconds of each engine: medians of alternating rounds; for a single text, of ten calls in each."""
    calls = 10 if len(texts) == 1 else 1
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, embed in engines.items():
            embed(texts)
            seconds[name] += [timed(embed, texts) for _ in range(calls)]
    return {name: statistics.median(each) * 1e3 for name, each in seconds.items()}


def timed(embed: Embed, texts: Sequence[Sequence[int]]) -> float:
    start = time.perf_counter()
    embed(texts)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
