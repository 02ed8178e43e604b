"""The time to the first token of prompts in headless Chromium, computed there and by `nearfar serve` on this machine,
over links of several speeds; and what the policy's arithmetic predicts and chooses. Prints a table and writes
``results/far-links.json``.

    make bench-far-links

DevTools throttles the page's network. Both sides share this machine's cores and run a demo model, the device on
SwiftShader, which is slow enough to be one. Prompts differ, so no side has them in its cache. All kinds of answers
alternate in each round, because other work changes a machine's speed; the table has medians, and the last round's
decisions, which know the speeds of the rounds before.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from bench_compile import machine
from bench_page import FOLDER, TIMEOUT_MS
from bench_prefixes import text_of
from far_page import READY, throttle, write_site
from playwright.sync_api import CDPSession, Page, sync_playwright
from rich.console import Console
from rich.table import Table
from serving_process import nearfar_serve
from static_site import serve

from nearfar.compiler.browser.chromium import FLAGS, find_chromium
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.server_fallback.executors.compile_process import compile_once
from nearfar.server_fallback.executors.devices import default_arch

RESULTS = Path(__file__).parent / "results" / "far-links.json"
LINKS, LATENCY_MS = (1, 10, 50), 20
# Tokens. The demo models read 512; of a prompt, the device computes about 80 in any case, to check what it receives.
LENGTHS = (128, 176, 256, 352, 496)
# Of the chat's template and the number before a text.
OTHERS = 16
# A device this slow would have every prompt computed far, so its client measures that.
NEVER = 0.001
# Far is asked for the first time if near would take over two seconds.
EXPLORED_SECONDS = 3.0
# After this number of answers, the speed that a client was given first counts for two percent of what it expects.
WARM_ANSWERS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="demo,demo-far", help="default: %(default)s")
    parser.add_argument("--links", default=",".join(map(str, LINKS)), help="Mbit/s; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args()
    links = [float(each) for each in options.links.split(",")]
    found: dict[str, Any] = {
        "machine": machine(),
        "load": os.getloadavg()[0],
        "latency_ms": LATENCY_MS,
        "links": list[Any](),
    }
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory(prefix="far-links-") as folder:
            for link in measured(model, links, options.rounds, Path(folder)):
                found["links"].append(link)
                Console(width=130).print(table(link))
                print(sentence(link), flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def measured(model: str, links: Sequence[float], rounds: int, folder: Path) -> Iterator[dict[str, Any]]:
    compile_model(str(DEMOS[model]), folder / "bundle", CompileOptions())
    # As `nearfar serve` does, which would have little time for it here. Later runs find it.
    os.environ["NEARFAR_CACHE"] = str(FOLDER / "far-links")
    compile_once(str(DEMOS[model]), CompileOptions(target="cpu", arch=default_arch("cpu")))
    write_site(folder / "site", folder / "bundle")
    texts = texts_of(folder / "bundle")
    with (
        serve(folder / "site") as site,
        nearfar_serve([model, "--target", "cpu", "--cors-origin", site.rstrip("/")], folder / "log") as far,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(site)
        page.wait_for_selector(READY, state="attached")
        adapter = page.evaluate("load()")
        session = page.context.new_cdp_session(page)
        for megabits in links:
            connect = {"far": f"{far.url}/v1", "model": model}
            rows = over_link(page, session, connect, texts, megabits, rounds)
            yield {"model": model, "adapter": adapter, "megabits_per_second": megabits, "rows": rows}
        browser.close()


def texts_of(bundle: Path) -> Iterator[list[str]]:
    """Messages of all lengths, again and again, which all begin otherwise."""
    tokenizer = Tokenizer(open_bundle(bundle).tokenizer_files())
    texts = [text_of(tokenizer, length - OTHERS) for length in LENGTHS]
    return ([f"{number} {index} {text}" for index, text in enumerate(texts)] for number in count(100))


def over_link(
    page: Page, session: CDPSession, connect: dict[str, str], texts: Iterator[list[str]], megabits: float, rounds: int
) -> list[dict[str, Any]]:
    """A row for each length."""
    throttle(session, megabits * 1e6 / 8, LATENCY_MS)
    speed = page.evaluate("(text) => nearSpeed(text)", next(texts)[-1])
    for name, expected in (("far", NEVER), ("policy", min(speed, LENGTHS[-1] / EXPLORED_SECONDS))):
        page.evaluate("(args) => connect(...args)", [name, connect["far"], connect["model"], expected])
    ask(page, "policy", next(texts)[-1])
    for _ in range(WARM_ANSWERS):
        ask(page, "policy", next(texts)[0], pin="near")
    runs: list[list[dict[str, Any]]] = [[] for _ in LENGTHS]
    for _ in range(rounds):
        near, far, chosen = next(texts), next(texts), next(texts)
        for index, found in enumerate(runs):
            by_near = ask(page, "policy", near[index], pin="near")
            by_far = ask(page, "far", far[index])
            if by_far["last"]["side"] != "far":
                raise SystemExit(f"the server did not compute a prompt: {by_far['last']}")
            found.append({"near": by_near, "far": by_far, "policy": ask(page, "policy", chosen[index])})
    return [row_of(found) for found in runs]


def ask(page: Page, client: str, text: str, **params: Any) -> dict[str, Any]:
    answer: dict[str, Any] = page.evaluate("(args) => ask(...args)", [client, text, params])
    return answer


def row_of(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    decision = found[-1]["policy"]["last"]
    return {
        "tokens": found[-1]["far"]["tokens"],
        "bytes": found[-1]["far"]["last"]["bytes"],
        "near_ms": round(median(each["near"]["ms"] for each in found)),
        "far_ms": round(median(each["far"]["ms"] for each in found)),
        "predicted_near_ms": milliseconds(decision["near_seconds"]),
        "predicted_far_ms": milliseconds(decision["far_seconds"]),
        "chosen": decision["side"],
        "reason": decision["reason"],
        "chosen_ms": round(median(each["policy"]["ms"] for each in found)),
    }


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)


def break_even(rows: Sequence[dict[str, Any]], near: str, far: str) -> int | None:
    """The shortest prompt from which on far is sooner."""
    least = None
    for row in reversed(rows):
        if row[near] is None or row[far] is None or row[far] >= row[near]:
            break
        least = row["tokens"]
    return least


def sentence(link: dict[str, Any]) -> str:
    told = [
        f"{what} from {least} tokens on" if least is not None else f"{what} never"
        for what, least in (
            ("measured", break_even(link["rows"], "near_ms", "far_ms")),
            ("predicted", break_even(link["rows"], "predicted_near_ms", "predicted_far_ms")),
        )
    ]
    return f"{link['model']}, {link['megabits_per_second']:g} Mbit/s: far is sooner, {' and '.join(told)}"


def table(link: dict[str, Any]) -> Table:
    shown = Table(title=f"{link['model']}, {link['megabits_per_second']:g} Mbit/s: ms to the first token")
    for name in link["rows"][0]:
        shown.add_column(name.replace("_", " "), justify="right")
    for row in link["rows"]:
        shown.add_row(*map(str, row.values()))
    return shown


if __name__ == "__main__":
    main()
