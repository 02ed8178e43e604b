"""A mixture of 2 GB in headless Chromium with a part of its experts on the device: bytes of buffers, hit rates, bytes
read for a token, and the tokens, which must be those of the same page with all experts.

``make bench-web-experts`` compiles random 4-bit weights at the shapes of
`checkpoints.SPARSE_MIXTURE`, or runs ``--bundle``, prints a table and writes ``build/bench/web-experts.json``. The
browser's profile, with the stored files, is removed at the end. Counts do not depend on the machine; times on
Chromium's CPU adapter say nothing about a GPU's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_compile import machine
from bench_page import FOLDER, TIMEOUT_MS, compiled
from checkpoints import SPARSE_MIXTURE
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table
from static_site import serve

from nearfar.compiler.browser.chromium import FLAGS, find_chromium
from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_bundle

CONTEXT = 512
PROMPT = [3, 17, 5, 90]
SCRIPT = Path(__file__).with_name("web_experts_page.js")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, help="default: compiled now")
    parser.add_argument("--held", type=int, nargs="+", default=[8, 22, 64], help="experts of each layer")
    parser.add_argument("--tokens", type=int, default=16, help="that are generated; default: %(default)s")
    options = parser.parse_args()
    bundle = options.bundle or compiled(SPARSE_MIXTURE, CONTEXT)
    manifest = open_bundle(bundle).manifest
    experts, weights = manifest.spec.experts, manifest.weights
    assert experts is not None
    weight_bytes = sum(plane.size for weight in weights.values() for plane in weight.planes)
    of_one = sum(plane.size for name in manifest.expert_weights for plane in weights[name].planes) // experts.number
    results = []
    with opened(bundle) as page:
        for held in sorted({*options.held, experts.number}):
            found = page.evaluate(
                "(request) => window.measure(request)",
                {"expertMemory": held * of_one, "promptIds": PROMPT, "maxTokens": options.tokens},
            )
            results.append({"held": held, "of": experts.number, "chosen": experts.chosen, **found})
            print(json.dumps(results[-1]), flush=True)
    *parts, whole = results
    wrong = [each["held"] for each in parts if each["tokens"] != whole["tokens"]]
    answer = {"machine": machine(), "model": manifest.model, "weight_bytes": weight_bytes, "results": results}
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "web-experts.json").write_text(json.dumps(answer, indent=2) + "\n")
    Console(width=120).print(table(answer))
    if wrong:
        raise SystemExit(f"the tokens with {wrong} experts of a layer on the device differ from those with all experts")


@contextmanager
def opened(bundle: Path) -> Iterator[Page]:
    """The page, with a profile on disk: in a private window, files in the browser's store are held in memory."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="web-experts-", dir=FOLDER) as folder, sync_playwright() as playwright:
        site, profile = Path(folder) / "site", Path(folder) / "profile"
        site.mkdir()
        (site / "bundle").symlink_to(bundle.resolve())
        html = '<!doctype html><link rel="icon" href="data:,"><script type="module" src="page.js"></script>'
        (site / "index.html").write_text(html)
        shutil.copy(SCRIPT, site / "page.js")
        for name in ("nearfar.js", "experts.js"):
            shutil.copy(PAGE.parent / name, site)
        browser = playwright.chromium.launch_persistent_context(
            profile, executable_path=find_chromium(), args=list(FLAGS)
        )
        with serve(site) as url:
            page = browser.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            page.on("console", lambda message: print(message.text, flush=True))
            page.on("pageerror", lambda error: print(error, flush=True))
            page.goto(url)
            page.wait_for_selector("body[data-state=ready]", state="attached")
            yield page
            browser.close()


def table(answer: dict[str, Any]) -> Table:
    printed = Table(title=f"{answer['model']}: {answer['weight_bytes'] / 1e9:.2f} GB of weights, {answer['machine']}")
    for column in ("experts held", "buffers, MB", "hit rate", "read a token, MB", "s a token", "first token, s"):
        printed.add_column(column, justify="right")
    for each in answer["results"]:
        decode = each["decode"]
        printed.add_row(
            f"{each['held']} of {each['of']}",
            f"{each['largestBufferBytes'] / 1e6:.0f}",
            "" if decode["experts"] is None else f"{hit_rate(decode['experts']):.1%}",
            "" if decode["experts"] is None else f"{decode['experts']['bytesRead'] / decode['tokens'] / 1e6:.1f}",
            f"{decode['seconds'] / decode['tokens']:.2f}",
            f"{each['firstTokenSeconds']:.1f}",
        )
    return printed


def hit_rate(counts: dict[str, int]) -> float:
    return counts["hits"] / (counts["hits"] + counts["reads"])


if __name__ == "__main__":
    main()
