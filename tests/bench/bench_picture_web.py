"""A question about a picture of 512 x 512 pixels in headless Chromium: milliseconds from the picture's file to the
first token, compared with Transformers.js on the same page, on WebAssembly and on WebGPU.

``make bench-picture-web`` prints a table and writes ``build/bench/picture_web.json``. The model is a SmolVLM with a
tower of 2 layers of 192 and 4 layers of text (random weights in float32), and Transformers.js loads our ONNX export of
it. Each question is about another picture. The engines alternate in each round, and figures are medians. Before that,
the tokens of all engines are compared; the table marks those that differ.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import ROOT, machine
from bench_embed_web import TRANSFORMERS_JS, load, opened
from image_families import pattern
from PIL import Image
from playwright.sync_api import Page
from rich.console import Console
from rich.table import Table
from smolvlm import SIDE, SMALL, write_checkpoint

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any

OURS = "nearfar f32"
OTHERS = {"Transformers.js wasm fp32": "wasm", "Transformers.js webgpu fp32": "webgpu"}
QUESTION, COMPARED_TOKENS = "what is it?", 3
# An engine gets no further round after this time, because SwiftShader may need many seconds for a picture.
BUDGET_MS = 40_000
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder for models")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of WebAssembly; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="at most; default: %(default)s")
    options = parser.parse_args()
    site = make_site(options.folder / "smolvlm-small")
    with opened(site) as page:
        facts = page.evaluate("() => window.facts()")
        load(page, OURS, {"kind": "nearfar", "bundle": "f32"})
        for name, device in OTHERS.items():
            rest = {"model": "ours", "device": device, "threads": options.threads}
            load(page, name, {"kind": "transformers", **rest})
        differing = compare(page)
        results = measure(page, options.rounds)
    answer = {
        "machine": machine(),
        "threads": options.threads,
        "rounds": options.rounds,
        **facts,
        "other tokens": differing,
        "milliseconds": results,
    }
    (options.folder / "picture_web.json").write_text(json.dumps(answer, indent=2))
    table = Table(
        title=f"milliseconds to the first token about a picture, {facts['adapter']}, {options.threads} threads "
        f"of wasm, {machine()}"
    )
    for column in ("", "first token", "relative to nearfar"):
        table.add_column(column, justify="right" if column else "left")
    for name, each in results.items():
        label = f"{name} (other tokens)" if name in differing else name
        table.add_row(label, f"{each:.0f}", f"{each / results[OURS]:.2f}")
    Console(width=140).print(table)


def make_site(folder: Path) -> Path:
    """A folder with the page, our bundle, and the model of Transformers.js."""
    site, checkpoint = folder / "site", folder / "checkpoint"
    write_checkpoint(checkpoint, SMALL)
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    shutil.rmtree(site, ignore_errors=True)
    (site / "models").mkdir(parents=True)
    (site / "index.html").write_text('<!doctype html><body><script type="module" src="picture_web_page.js"></script>')
    files = [Path(__file__).parent / "picture_web_page.js", TRANSFORMERS_JS / "dist/transformers.min.js"]
    for file in (*files, *PAGE.parent.glob("*.js")):
        (site / file.name).symlink_to(file)
    (site / "ort").symlink_to(TRANSFORMERS_JS / "node_modules/onnxruntime-web/dist")
    for target, output in (("webgpu", site / "f32"), ("onnx", site / "models/ours")):
        rest: dict[str, Any] = {} if target == "onnx" else {"activations": ("float32",)}
        options = CompileOptions(target=target, quantization="f32", context=512, self_test=False, force=True, **rest)
        compile_any(str(checkpoint), output, options)
    return site


def picture(number: int) -> str:
    """A picture as a data: URL."""
    pixels = np.roll(pattern(SIDE, SIDE), 7 * number, axis=1)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def compare(page: Page) -> list[str]:
    """The engines whose tokens differ. Ends the benchmark if they are those of WebAssembly, which is exact."""
    question = [picture(0), QUESTION, COMPARED_TOKENS]
    expected = page.evaluate("(values) => window.ask(...values)", [OURS, *question])
    print(f"a prompt of {len(expected['prompt'])} tokens, answered with {expected['tokens']}", flush=True)
    differing = []
    for name, device in OTHERS.items():
        found = page.evaluate("(values) => window.ask(...values)", [name, *question])
        if found["prompt"] != expected["prompt"] or (device == "wasm" and found != expected):
            raise SystemExit(f"{name} does not run the same model: {found} instead of {expected}")
        if found != expected:
            print(f"{name} answers with {found['tokens']}", flush=True)
            differing.append(name)
    return differing


def measure(page: Page, rounds: int) -> dict[str, float]:
    """Milliseconds of each engine: medians of alternating rounds, as many as fit into its time."""
    times: dict[str, list[float]] = {name: [] for name in (OURS, *OTHERS)}
    for number in range(1, rounds + 1):
        for name, each in times.items():
            if sum(each) < BUDGET_MS:
                each.append(page.evaluate("(values) => window.time(...values)", [name, picture(number), QUESTION, 1]))
                print(f"{name}: {each[-1]:.0f} ms", flush=True)
    return {name: statistics.median(each) for name, each in times.items()}


if __name__ == "__main__":
    main()
