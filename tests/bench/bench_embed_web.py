"""Embeddings in headless Chromium with MiniLM's shapes (6 layers of 384, random weights): milliseconds for one text and
for 64 texts, compared with Transformers.js on the same page, on WebAssembly and on WebGPU.

``make bench-embed-web`` prints a table and writes ``build/bench/embed_web.json``. Texts go in and vectors come out, so
tokenizers are included. The engines alternate in each round, and figures are medians. Before that, the vectors of all
engines are compared with those of transformers. Transformers.js pads the texts of a batch, so it gets them sorted by
length, on WebAssembly in batches of the size that is fastest, with as many threads as there are cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import ROOT, machine
from bench_page import TIMEOUT_MS, launch_on_gpu
from minilm import VOCAB, embed_reference, export_onnx, write_checkpoint
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table
from static_site import ISOLATED, serve

from nearfar.compiler.browser.chromium import FLAGS, find_chromium
from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any

MANY, CONTEXT = 64, 256
# Lengths of the texts in tokens, with the two special tokens.
BATCHES = (
    ("1 text of 16 tokens", [16]),
    ("1 text of 256 tokens", [256]),
    (f"{MANY} texts of 16 tokens", [16] * MANY),
)
OURS = {"nearfar f32": "f32", "nearfar f16": "f16", "nearfar q8": "q8f16"}
# (folder of the model, device, dtype). The first folder has the graph as ONNX Runtime's own optimiser fuses it, the
# second one as it was traced, the third one is our onnx target's.
OTHERS = {
    "Transformers.js wasm fp32": ("fused", "wasm", "fp32"),
    "Transformers.js wasm q8": ("fused", "wasm", "q8"),
    "Transformers.js webgpu fp32": ("fused", "webgpu", "fp32"),
    "Transformers.js wasm fp32, traced": ("traced", "wasm", "fp32"),
    "Transformers.js webgpu fp32, traced": ("traced", "webgpu", "fp32"),
    "Transformers.js wasm fp32, our export": ("ours", "wasm", "fp32"),
}
PADDED_BATCHES = (8, 64)
# An engine gets no further round after this time, because SwiftShader may need a minute for a batch.
BUDGET_MS = 10_000
# Lengths of the texts whose vectors are compared.
COMPARED = (3, 40, 17)
LEAST_COSINE = {"float": 0.9999, "int8": 0.95}
TRANSFORMERS_JS = ROOT / "web/node_modules/@huggingface/transformers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder for models")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of WebAssembly; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="at most; default: %(default)s")
    options = parser.parse_args()
    folder = options.folder / "minilm"
    model = write_checkpoint(folder / "checkpoint")
    site = make_site(model, folder)
    with opened(site) as page:
        facts = page.evaluate("() => window.facts()")
        names = load_engines(page, model, options.threads)
        results = {what: measure(page, names, texts_of(lengths), options.rounds) for what, lengths in BATCHES}
    answer = {
        "machine": machine(),
        "threads": options.threads,
        "rounds": options.rounds,
        **facts,
        "milliseconds": results,
    }
    (options.folder / "embed_web.json").write_text(json.dumps(answer, indent=2))
    print_table(results, f"milliseconds, medians, {facts['adapter']}, {options.threads} threads of wasm, {machine()}")


def make_site(model: Any, folder: Path) -> Path:
    """A folder with the page, our bundles, and the models of Transformers.js."""
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    (site / "models").mkdir(parents=True)
    (site / "index.html").write_text('<!doctype html><body><script type="module" src="embed_web_page.js"></script>')
    for file in (
        Path(__file__).parent / "embed_web_page.js", PAGE.parent / "nearfar.js", PAGE.parent / "encoders.js",
        TRANSFORMERS_JS / "dist/transformers.min.js",
    ):  # fmt: skip
        (site / file.name).symlink_to(file)
    (site / "ort").symlink_to(TRANSFORMERS_JS / "node_modules/onnxruntime-web/dist")
    checkpoint = folder / "checkpoint"
    for quantization in OURS.values():
        compiled(checkpoint, site / quantization, quantization=quantization)
    compiled(checkpoint, site / "models/ours", target="onnx", quantization="f32")
    rows = folder / "rows"
    rows.mkdir(exist_ok=True)
    export_onnx(model, rows, pooled=False)
    for name, parts in (("fused", {"model": "fp32", "model_quantized": "int8"}), ("traced", {"model": "traced"})):
        (site / "models" / name / "onnx").mkdir(parents=True)
        for config in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(checkpoint / config, site / "models" / name)
        for part, source in parts.items():
            (site / "models" / name / "onnx" / f"{part}.onnx").symlink_to((rows / f"{source}.onnx").resolve())
    return site


def compiled(checkpoint: Path, folder: Path, **rest: Any) -> None:
    options = CompileOptions(context=CONTEXT, activations=("float32",), self_test=False, force=True, **rest)
    compile_any(str(checkpoint), folder, options)


@contextmanager
def opened(site: Path) -> Iterator[Page]:
    """The page, on a GPU if Chromium finds one, otherwise on SwiftShader."""
    with sync_playwright() as playwright, serve(site, ISOLATED) as url:
        browser = launch_on_gpu(playwright, f"{url}index.html")
        browser = browser or playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(url)
        page.wait_for_selector("body[data-state=ready]", state="attached")
        yield page
        browser.close()


def load_engines(page: Page, model: Any, threads: int) -> list[str]:
    """Load every engine, compare its vectors with those of transformers, and find its best size of batches."""
    texts = [text_of(range(5, 3 + length)) for length in COMPARED]
    expected = embed_reference(model, [[2, *range(5, 3 + length), 3] for length in COMPARED])
    for name, bundle in OURS.items():
        load(page, name, {"kind": "nearfar", "bundle": bundle})
        compare(page, name, texts, expected)
    for name, (folder, device, dtype) in OTHERS.items():
        found = {"kind": "transformers", "model": folder, "device": device, "dtype": dtype, "threads": threads}
        sizes = PADDED_BATCHES if device == "wasm" else PADDED_BATCHES[-1:]
        times = {}
        for size in sizes if len(sizes) > 1 else ():
            load(page, name, {**found, "batch": size})
            page.evaluate("([name, texts]) => window.time(name, texts)", [name, texts[:1]])
            times[size] = page.evaluate("([name, texts]) => window.time(name, texts)", [name, texts_of(BATCHES[-1][1])])
        fastest = min(sizes, key=lambda size: times.get(size, 0))
        print(f"{name}: batches of {fastest}", flush=True)
        load(page, name, {**found, "batch": fastest})
        compare(page, name, texts, expected)
    return [*OURS, *OTHERS]


def load(page: Page, name: str, options: Mapping[str, Any]) -> None:
    page.evaluate("([name, options]) => window.load(name, options)", [name, options])


def compare(page: Page, name: str, texts: Sequence[str], expected: Sequence[Any]) -> None:
    """End the benchmark if an engine runs another model."""
    vectors = page.evaluate("([name, texts]) => window.embed(name, texts)", [name, texts])
    cosines = [
        float(one @ np.array(other, np.float32) / np.linalg.norm(one) / np.linalg.norm(other))
        for one, other in zip(expected, vectors, strict=True)
    ]
    print(f"{name}: the least cosine is {min(cosines):.5f}", flush=True)
    if not min(cosines) > LEAST_COSINE["int8" if "q8" in name else "float"]:
        raise SystemExit(f"{name} does not run the same model: cosines of {cosines}")


def measure(page: Page, names: Sequence[str], texts: Sequence[str], rounds: int) -> dict[str, float]:
    """Milliseconds of each engine: medians of alternating rounds, as many as fit into its time."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            if sum(times[name]) < BUDGET_MS:
                times[name].append(page.evaluate("([name, texts]) => window.time(name, texts)", [name, texts]))
    medians = {name: statistics.median(each) for name, each in times.items()}
    for name, each in times.items():
        print(f"{len(texts)} texts, {name}: {medians[name]:.1f} ms in {len(each)} rounds", flush=True)
    return medians


def texts_of(lengths: Sequence[int]) -> list[str]:
    """Random texts with these numbers of tokens, special tokens included, in a random order."""
    rng = np.random.default_rng(len(lengths))
    return [text_of(rng.integers(5, VOCAB, length - 2)) for length in rng.permutation(lengths)]


def text_of(token_ids: Sequence[int]) -> str:
    return " ".join(f"w{token_id}" for token_id in token_ids)


def print_table(results: Mapping[str, Mapping[str, float]], title: str) -> None:
    table = Table(title=title)
    for column in ("", *results):
        table.add_column(column, justify="right" if column else "left")
    for name in (*OURS, *OTHERS):
        table.add_row(name, *(f"{each[name]:.1f}" for each in results.values()))
    for name in OURS:
        ratios = (min(each[other] for other in OTHERS) / each[name] for each in results.values())
        table.add_row(f"{name}: speed relative to the best other", *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
