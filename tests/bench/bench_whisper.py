"""Whisper base's shapes (random weights) on this machine's CPU: 30 s of sound to frames, to the encoder's rows, and to
tokens, compared with whisper.cpp and ONNX Runtime.

``make bench-whisper`` prints a table and writes ``build/bench/whisper.json``. Tokens are greedy, and as many for every
engine. Engines of a class alternate in each round, and figures are medians. Classes: "float" has weights in float32 or
float16, and activations as precise as float16; in "int8", matrices and the inputs of their products have 8 bits. ONNX
Runtime runs our export, and for the encoder also transformers' traced model, as its own optimiser fuses it, which is
what optimum writes; both also quantized by its `quantize_dynamic`. It has no frames of its own, and gets ours. Before
that, the logits of all engines are compared with those of transformers. Without the package pywhispercpp, the table
lacks whisper.cpp.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from bench_compile import ROOT, machine
from rich.console import Console
from rich.table import Table
from whisper_base import CONTEXT, HEADS, HIDDEN, MELS, PROMPT, VOCABULARY, write_checkpoint, write_ggml
from whisper_cpp import WhisperCpp, is_installed

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.kv_format import KvName
from nearfar.compiler.ir.speech import SAMPLE_RATE
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.runtime.audio.log_mel import log_mel
from nearfar.compiler.runtime.audio.windows import source_of, window_batch
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.threads import default_threads

Floats = npt.NDArray[np.float32]

SECONDS = 30
# 150 words a minute, and 1.3 tokens a word.
TOKENS = 96
PARTS = ("frames", "encoder", "tokens")
# (quantization, activations, pages) of our bundles, and the class in which each competes.
OURS: dict[str, tuple[str, str, KvName, str]] = {
    "nearfar f32": ("f32", "float32", "activation", "float"),
    "nearfar f16": ("f16", "float16", "activation", "float"),
    "nearfar q8": ("q8f16", "int8", "activation", "int8"),
    "nearfar q8, kv q8": ("q8f16", "int8", "q8", "int8"),
}
# Two engines that run the same model correlate by more than this.
LEAST_CORRELATION = {"float": 0.995, "int8": 0.97}


class Engine(Protocol):
    def frames(self, samples: Floats) -> None:
        """Compute the frames of a window."""

    def listen(self) -> None:
        """Compute what the decoder reads of these frames."""

    def decode(self, tokens: Sequence[int], start: int) -> Floats:
        """The logits (V,) of the last of some tokens that follow the first ``start`` ones."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder for models")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="behind the prompt; default: %(default)s")
    parser.add_argument("--engine", action="append", help="a part of the names of engines to measure (default: all)")
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor seconds, which other work hardly changes; use --threads 1"
    )
    options = parser.parse_args()
    folder = options.folder / "whisper-base"
    samples = np.random.default_rng(0).normal(0, 0.1, SECONDS * SAMPLE_RATE).astype(np.float32)
    model = write_checkpoint(folder / "checkpoint")
    expected = reference(model, samples)
    engines: dict[str, dict[str, Engine]] = {"float": {}, "int8": {}}
    for name, kind, engine in make_engines(model, folder, options.threads, options.engine):
        logits = answer(engine, samples, 0)[0]
        correlation = float(np.corrcoef(logits, expected)[0, 1])
        print(f"{name}: the logits' correlation with transformers' is {correlation:.5f}", flush=True)
        if not correlation > LEAST_CORRELATION[kind]:
            raise SystemExit(f"{name} does not run the same model")
        engines[kind][name] = engine
    clock = time.process_time if options.cpu_time else time.perf_counter
    results = {kind: measure(each, samples, options.tokens, options.rounds, clock) for kind, each in engines.items()}
    about = {
        "machine": machine(), "threads": options.threads, "rounds": options.rounds, "tokens": options.tokens,
        "clock": clock.__name__,
    }  # fmt: skip
    (options.folder / "whisper.json").write_text(json.dumps({**about, "milliseconds": results}, indent=2))
    for kind, found in results.items():
        print_table(f"{kind}, {options.tokens} tokens, {options.threads} threads, {clock.__name__}, {machine()}", found)


def print_table(title: str, found: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"milliseconds, {title}")
    for column in ("", *PARTS, "all"):
        table.add_column(column, justify="right" if column else "left")
    for name, each in found.items():
        table.add_row(name, *(f"{each[part]:.1f}" if each[part] else "" for part in (*PARTS, "all")))
    others = [each for name, each in found.items() if name not in OURS]
    for name in OURS.keys() & found.keys() if others else ():
        ratios = [min(each[part] for each in others if each[part]) / found[name][part] for part in ("encoder",)]
        complete = [each["all"] for each in others if each["tokens"]]
        table.add_row(
            f"{name}: speed relative to the best other", "", f"{ratios[0]:.2f}", "",
            f"{min(complete) / found[name]['all']:.2f}" if complete else "",
        )  # fmt: skip
    Console(width=120).print(table)


def reference(model: Any, samples: Floats) -> Floats:
    """The logits of the prompt's last token, by transformers."""
    import torch

    with torch.inference_mode():
        frames = torch.from_numpy(log_mel(samples, MELS))[None]
        found: Floats = model(input_features=frames, decoder_input_ids=torch.tensor([PROMPT])).logits[0, -1].numpy()
    return found


def make_engines(
    model: Any, folder: Path, threads: int, wanted: Sequence[str] | None
) -> Iterator[tuple[str, str, Engine]]:
    """(name, class, engine)"""

    def is_wanted(name: str) -> bool:
        return wanted is None or any(each in name for each in wanted)

    for name, (quantization, activation, kv, kind) in OURS.items():
        if is_wanted(name):
            yield name, kind, Ours(folder, quantization, activation, kv, threads)
    logging.getLogger().setLevel(logging.ERROR)
    for name, kind, file in onnx_files(model, folder) if is_wanted("ONNX Runtime") else ():
        if is_wanted(name):
            yield name, kind, Onnx(file, folder, threads, int8=kind == "int8")
    if not is_installed():
        print("without whisper.cpp: the package pywhispercpp is not installed")
        return
    for kind, own in (("float", "f16"), ("int8", "q8_0")):
        name, file = f"whisper.cpp {own}", folder / f"{own}.bin"
        if is_wanted(name):
            write_ggml(model, file, own)
            engine = WhisperCpp(file, threads, VOCABULARY)
            print(f"whisper.cpp's kernels: {engine.system}")
            yield name, kind, engine


class Ours:
    def __init__(self, folder: Path, quantization: str, activation: str, kv: KvName, threads: int) -> None:
        path = folder / f"{quantization}-{activation}-{kv}"
        options = CompileOptions(
            target="cpu", quantization=quantization, activations=(activation,), kv=kv, self_test=False, force=True
        )
        compile_model(str(folder / "checkpoint"), path, options)
        limits = Limits(rows=1, sequences=1)
        self._runner = CpuRunner(open_bundle(path), limits=limits, threads=threads, activation=activation)
        self._source = source_of(self._runner.manifest)
        self._frames = np.zeros(0, np.float32)

    def frames(self, samples: Floats) -> None:
        self._frames = log_mel(samples, MELS)

    def listen(self) -> None:
        self._runner.listen(window_batch(self._runner.manifest, [self._frames]))

    def decode(self, tokens: Sequence[int], start: int) -> Floats:
        manifest = self._runner.manifest
        pages = range(manifest.pages_for(start + len(tokens)))
        chunk = Chunk(tokens, start, pages, [len(tokens) - 1], source=self._source)
        logits: Floats = self._runner.forward(make_batch([chunk], manifest.page_size)).logits[0]
        return logits


def onnx_files(model: Any, folder: Path) -> Iterator[tuple[str, str, Path]]:
    """(name, class, encoder)"""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    bundle = folder / "onnx-f32"
    options = CompileOptions(target="onnx", quantization="f32", self_test=False, force=True)
    export_model(str(folder / "checkpoint"), bundle, options)
    files = {"our export": bundle / "onnx/encoder_model.onnx", "optimum's": export_traced(model, folder)}
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    for name, file in files.items():
        yield f"ONNX Runtime f32, {name}", "float", file
    quantized = {"decoder": bundle / "onnx/decoder_model_merged.onnx", **files}
    for name, file in quantized.items():
        small = folder / f"{name.split()[0].strip(chr(39) + 's')}-int8.onnx"
        kinds = ["MatMul", "Gemm", "Attention", "Gather"]
        quantize_dynamic(
            file, small, kinds, per_channel=True, weight_type=QuantType.QInt8,
            extra_options={**types, "EnableSubgraph": True},
        )  # fmt: skip
        if name in files:
            yield f"ONNX Runtime int8, {name}", "int8", small


def export_traced(model: Any, folder: Path) -> Path:
    """The encoder as transformers' traced model, fused by ONNX Runtime's optimiser for transformers."""
    import torch
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    class Exported(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = model.model.encoder

        def forward(self, input_features: Any) -> Any:
            return self.encoder(input_features).last_hidden_state

    traced, fused = folder / "traced.onnx", folder / "fused.onnx"
    model.set_attn_implementation("eager")
    torch.onnx.export(
        Exported().eval(), (torch.zeros(1, MELS, 3000),), str(traced), input_names=["input_features"],
        output_names=["last_hidden_state"], opset_version=17, dynamo=False,
    )  # fmt: skip
    model.set_attn_implementation("sdpa")
    options = FusionOptions("bart")
    options.use_multi_head_attention = True
    optimized = optimize_model(str(traced), "bart", num_heads=HEADS, hidden_size=HIDDEN, optimization_options=options)
    found = optimized.get_fused_operator_statistics()
    print("ONNX Runtime's optimiser fused", {name: count for name, count in found.items() if count})
    optimized.save_model_to_file(str(fused))
    return fused


class Onnx:
    """``encoder``, and the decoder of our export."""

    def __init__(self, encoder: Path, folder: Path, threads: int, *, int8: bool) -> None:
        decoder = folder / ("decoder-int8.onnx" if int8 else "onnx-f32/onnx/decoder_model_merged.onnx")
        self._encoder, self._decoder = open_session(encoder, threads), open_session(decoder, threads)
        self._names = [each.name for each in self._decoder.get_outputs()]
        sizes = {"batch_size": 1}
        self._empty = {
            each.name: np.zeros([sizes.get(n, 0) if isinstance(n, str) else n for n in each.shape], np.float32)
            for each in self._decoder.get_inputs()
            if each.name.startswith("past_key_values.")
        }
        self._cache = self._empty

    def frames(self, samples: Floats) -> None:
        self._frames = log_mel(samples, MELS)[None]

    def listen(self) -> None:
        (self._rows,) = self._encoder.run(None, {"input_features": self._frames})

    def decode(self, tokens: Sequence[int], start: int) -> Floats:
        feeds = {
            "input_ids": np.array([tokens]),
            "encoder_hidden_states": self._rows,
            "use_cache_branch": np.array([start > 0]),
            **(self._cache if start else self._empty),
        }
        found = dict(zip(self._names, self._decoder.run(None, feeds), strict=True))
        self._cache = {name: found[name.replace("past_key_values", "present")] for name in self._empty}
        logits: Floats = found["logits"][0, -1]
        return logits


def open_session(file: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def answer(
    engine: Engine, samples: Floats, tokens: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[Floats, list[float]]:
    """The logits of the prompt's last token, and the times of `PARTS` for an answer of some tokens."""
    times = [clock()]
    engine.frames(samples)
    times.append(clock())
    engine.listen()
    times.append(clock())
    logits = first = engine.decode(PROMPT, 0).copy()
    for start in range(len(PROMPT), min(len(PROMPT) + tokens, CONTEXT)):
        logits = engine.decode([int(logits.argmax())], start)
    times.append(clock())
    return first, np.diff(times).tolist()


def measure(
    engines: dict[str, Engine], samples: Floats, tokens: int, rounds: int, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    """Milliseconds of each engine's parts, and of all: medians of alternating rounds."""
    found: dict[str, list[list[float]]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            found[name].append(answer(engine, samples, tokens, clock)[1])
    return {
        name: {
            **{part: 1e3 * statistics.median(each) for part, each in zip(PARTS, zip(*times, strict=True), strict=True)},
            "all": 1e3 * statistics.median(map(sum, times)),
        }
        for name, times in found.items()
    }


if __name__ == "__main__":
    main()
