"""The time to the first token of a chat with a system message of about 1,000 tokens in headless Chromium, on the first
page, on a later page that finds what an earlier one kept, and with a bundle that ships it; and that the tokens are the
same. Also how far the first token's probabilities differ between pages that the compiler and the device computed.

``make bench-prefixes`` runs the demo model, and random weights of few layers with attention and with the gated delta
rule, which keeps a state. It prints a table and writes ``results/prefixes.json``, which names the machine. Chromium has
only SwiftShader here, so the times say nothing about a GPU; that the system message is not computed holds anywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bench_compile import machine
from bench_page import FOLDER, TIMEOUT_MS
from checkpoints import QWEN2_FEW_LAYERS, QWEN3_5_0_8B, Shapes, write_checkpoint
from light_bundle import few_kernels
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table
from static_site import serve

from nearfar.compiler.browser.chromium import FLAGS, find_chromium
from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.entries import PrefixEntry
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.ir.ops.sampling import log_sum_exp
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.targets.webgpu.runner import WebGPURunner

RESULTS = Path(__file__).parent / "results" / "prefixes.json"
SCRIPT = Path(__file__).with_name("prefixes_page.js")
TOKENS, CONTEXT, ANSWER = 1000, 1280, 8
# The demo model reads 512 tokens at most.
DEMO_TOKENS, DEMO_CONTEXT = 420, 512
DEMO = "nearfar-demo"
SENTENCE = "The harbour master counts the boats, writes their names in a blue book, and asks for two coins a night. "
QUESTIONS = ["Who counts?", "What is blue?", "How many coins?", "Where are the boats?"]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>{% endfor %}<answer>"
)
HYBRID = Shapes(
    "hybrid-narrow-4-layers",
    {
        **QWEN3_5_0_8B.config, "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64, "linear_num_value_heads": 4,
        "linear_num_key_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        "layer_types": [*["linear_attention"] * 3, "full_attention"], "max_position_embeddings": 4096,
    },
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="new pages of each kind; default: %(default)s")
    parser.add_argument("--model", help="part of the name of one model; default: all")
    parser.add_argument("--arithmetic", action="store_true", help="compare shipped pages on wgpu's device instead")
    options = parser.parse_args()
    if options.arithmetic:
        arithmetic()
        return
    results = []
    with tempfile.TemporaryDirectory(prefix="prefixes-") as folder:
        for name, checkpoint in models(Path(folder)):
            if (options.model or name) not in name:
                continue
            sizes = (DEMO_TOKENS, DEMO_CONTEXT) if name == DEMO else (TOKENS, CONTEXT)
            results.append(
                {"model": name, **measure(checkpoint, Path(folder) / f"{name}-site", *sizes, options.rounds)}
            )
            print(json.dumps(results[-1]), flush=True)
        RESULTS.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
    Console(width=130).print(table(results))


def models(folder: Path) -> Iterator[tuple[str, str]]:
    for shapes in (HYBRID, QWEN2_FEW_LAYERS):
        write_checkpoint(shapes, folder / shapes.name)
        (folder / shapes.name / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
        yield shapes.name, str(folder / shapes.name)
    yield DEMO, str(DEMOS["demo"])


def measure(checkpoint: str, site: Path, tokens: int, context: int, count: int) -> dict[str, Any]:
    """Compile a model with and without the system message, and measure both in new pages."""
    plain, shipping = site / "plain", site / "shipping"
    site.mkdir()
    # SwiftShader compiles kernels as slowly as it runs them.
    with few_kernels(tokens="any"):
        compile_model(checkpoint, plain, CompileOptions(context=context))
    tokenizer = Tokenizer(open_bundle(plain).tokenizer_files())
    system = text_of(tokenizer, tokens)
    (site / "system.txt").write_text(system)
    with few_kernels(tokens="any"):
        compile_model(checkpoint, shipping, CompileOptions(context=context, prefix=(site / "system.txt",)))
    shipped = open_bundle(shipping).manifest
    found: dict[str, Any] = {
        "shipped_tokens": shipped.prefixes[0].tokens,
        "shipped_bytes": {
            entry.activation: next(file.size for file in shipped.files if file.file == entry.file)
            for entry in shipped.prefixes
        },
    }
    with opened(site) as page:
        device, computed, answers = rounds(page, "./plain/", {"prefixes": False}, system, count)
        probabilities = likeliest(page, system)
        keep = {"prefixes": {"minUses": 1}}
        rounds(page, "./plain/", keep, system, 1)
        page.wait_for_function("async () => (await kept()).length === 1")
        (kept,) = page.evaluate("kept()")
        _, stored, again = rounds(page, "./plain/", keep, system, count)
        _, delivered, shipping_tokens = rounds(page, "./shipping/", {"prefixes": True}, system, count)
        others = likeliest(page, system)
    if again != answers:
        raise SystemExit("the tokens with kept pages differ from those without")
    largest, divergence = differences(probabilities, others)
    return {
        **found, **device, "prompt_tokens": computed["prompt"], "cached": [stored["cached"], delivered["cached"]],
        "kept_tokens": kept["tokens"], "kept_bytes": kept["bytes"],
        "first_token_ms": {"computed": computed["ms"], "kept": stored["ms"], "shipped": delivered["ms"]},
        "shipped_same_tokens": shipping_tokens == answers, "shipped_largest_logprob_difference": largest,
        "shipped_kl_of_likeliest": divergence,
    }  # fmt: skip


def text_of(tokenizer: Tokenizer, tokens: int) -> str:
    """Sentences of about this many tokens."""
    words = (SENTENCE * (1 + tokens // 8)).split(" ")
    low, high = 1, len(words)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if len(tokenizer.encode(" ".join(words[:middle]))) < tokens else (low, middle)
    return " ".join(words[:low])


def rounds(
    page: Page, bundle: str, options: dict[str, Any], system: str, count: int
) -> tuple[dict[str, Any], dict[str, Any], list[list[int]]]:
    """The first question of each of several new pages: the median time, and a greedy and a sampled answer."""
    times, tokens, first = [], [], {}
    for _ in range(count):
        page.reload()
        page.wait_for_selector("body[data-state=ready]", state="attached")
        device = page.evaluate("([bundle, options]) => open_(bundle, options)", [bundle, options])
        first, sampled = (
            page.evaluate("(args) => ask(...args)", [system, question, ANSWER, is_sampled])
            for question, is_sampled in ((QUESTIONS[0], False), (QUESTIONS[1], True))
        )
        times.append(first["ms"])
        print(f"  {bundle} {options}: {first['ms']:.0f} ms, {first['cached']} of {first['prompt']} cached", flush=True)
        tokens = [first["ids"], sampled["ids"]]
    return device, {**first, "ms": round(statistics.median(times), 1)}, tokens


def likeliest(page: Page, system: str) -> list[dict[str, float]]:
    return [dict(page.evaluate("([a, b]) => likeliest(a, b)", [system, question])) for question in QUESTIONS]


def differences(found: list[dict[str, float]], others: list[dict[str, float]]) -> tuple[float, float]:
    """Of the tokens that both list: the largest difference of log-probabilities, and the largest KL divergence."""
    largest, divergence = 0.0, 0.0
    for one, other in zip(found, others, strict=True):
        both = one.keys() & other.keys()
        largest = max(largest, *(abs(one[token] - other[token]) for token in both))
        divergence = max(divergence, sum(math.exp(one[token]) * (one[token] - other[token]) for token in both))
    return largest, divergence


@contextmanager
def opened(site: Path) -> Iterator[Page]:
    """The page, with a profile on disk: in a private window, files in the browser's store are held in memory."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    html = '<!doctype html><link rel="icon" href="data:,"><script type="module" src="page.js"></script>'
    (site / "index.html").write_text(html)
    shutil.copy(SCRIPT, site / "page.js")
    for name in ("nearfar.js", "prefixes.js"):
        shutil.copy(PAGE.parent / name, site)
    with tempfile.TemporaryDirectory(prefix="profile-", dir=FOLDER) as profile, sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            profile, executable_path=find_chromium(), args=list(FLAGS)
        )
        with serve(site) as url:
            page = browser.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            page.on("pageerror", lambda error: print(error, flush=True))
            page.goto(url)
            page.wait_for_selector("body[data-state=ready]", state="attached")
            yield page
            browser.close()


def arithmetic() -> None:
    """Print how far the demo model's logits with shipped pages are from those with pages of wgpu's device."""
    with tempfile.TemporaryDirectory(prefix="prefixes-") as folder:
        (Path(folder) / "system.txt").write_text(SENTENCE * 4)
        prefix = (Path(folder) / "system.txt",)
        compile_model(str(DEMOS["demo"]), Path(folder) / "bundle", CompileOptions(context=DEMO_CONTEXT, prefix=prefix))
        bundle = open_bundle(Path(folder) / "bundle")
        for entry in bundle.manifest.prefixes:
            largest, divergence, device = 0.0, 0.0, ""
            for question in QUESTIONS:
                one, device = logits_after(bundle, entry, question, shipped=False)
                other, _ = logits_after(bundle, entry, question, shipped=True)
                largest = max(largest, float(np.abs(one - other).max() / np.abs(one).max()))
                log_p, log_q = (each - log_sum_exp(each) for each in (one, other))
                divergence = max(divergence, float((np.exp(log_p) * (log_p - log_q)).sum()))
            print(f"{device}: {entry.tokens} tokens, {largest:.1e} of the largest logit, divergence {divergence:.1e}")


def logits_after(bundle: Bundle, entry: PrefixEntry, question: str, *, shipped: bool) -> tuple[np.ndarray, str]:
    """The logits of the first token of an answer, and the device."""
    manifest = bundle.manifest
    chat = [{"role": "system", "content": SENTENCE * 4}, {"role": "user", "content": question}]
    ids = Tokenizer(bundle.tokenizer_files()).encode_chat(chat)
    runner = WebGPURunner(bundle, limits=Limits(tokens=64), activation=entry.activation)
    try:
        pages = range(manifest.pages_for(len(ids)))
        data, names, offset = bundle.file(entry.file).read_bytes(), manifest.page_states(0), 0
        for page in range(entry.tokens // manifest.page_size if shipped else 0):
            for name in names:
                region = runner._regions[name]
                size = region.size // runner.groups[0].pages
                runner._device.queue.write_buffer(region.buffer, page * size, data[offset : offset + size])
                offset += size
        start = entry.tokens if shipped else 0
        for end in [*range(start + 64, entry.tokens, 64), entry.tokens, len(ids)]:
            if end > start:
                chunk = Chunk(ids[start:end], start, pages, [end - start - 1])
                output, start = runner.forward(make_batch([chunk], manifest.page_size)), end
        return output.logits[-1].astype(np.float64), runner.device
    finally:
        runner.close()


def table(results: list[dict[str, Any]]) -> Table:
    printed = Table(title=f"time to the first token, {machine()}")
    for column in (
        "model",
        "prompt",
        "computed, ms",
        "kept, ms",
        "shipped, ms",
        "kept, MB",
        "shipped: same tokens, log p, KL",
    ):
        printed.add_column(column, justify="right")
    for each in results:
        times = each["first_token_ms"]
        printed.add_row(
            each["model"],
            f"{each['prompt_tokens']}",
            f"{times['computed']:.0f}",
            f"{times['kept']:.0f}",
            f"{times['shipped']:.0f}",
            f"{each['kept_bytes'] / 1e6:.2f}",
            f"{each['shipped_same_tokens']}, {each['shipped_largest_logprob_difference']:.1e}, "
            f"{each['shipped_kl_of_likeliest']:.1e}",
        )
    return printed


if __name__ == "__main__":
    main()
