"""A bundle in headless Chromium: load times, tokens per second, counts per token, memory and agreement.

``make bench-web`` runs this. The bench page measures; this prints a table and the result as JSON, and writes
``build/bench/web.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench_page import FOLDER, bench_page, narrow_bundle
from rich.console import Console
from rich.table import Table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, help="default: 24 narrow layers with random weights, compiled now")
    parser.add_argument("--depth", choices=("quick", "thorough"), default="quick", help="default: %(default)s")
    options = parser.parse_args()
    with bench_page(options.bundle or narrow_bundle(), gpu=True) as page:
        result = page.evaluate("(depth) => window.nearfarBench.run(depth)", options.depth)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "web.json").write_text(json.dumps(result, indent=2))
    console = Console(width=110)
    console.print(table(result))
    if result["device"]["runs_on_cpu"]:
        console.print(
            f"{result['device']['adapter']} computes on the CPU: use these figures for counts and "
            "regressions only; the times do not predict those of a GPU."
        )
    print(json.dumps(result))


def table(result: dict[str, Any]) -> Table:
    bundle, device, load, memory = result["bundle"], result["device"], result["load"], result["memory_bytes"]
    rows = [
        *((f"load, {name}", f"{times['total_ms'] / 1e3:.2f} s") for name, times in load.items()),
        *(
            (f"first token of {row['prompt_tokens']}", f"{row['time_to_first_token_ms']:.0f} ms")
            for row in result["prefill"]
        ),
        *((f"reading {row['prompt_tokens']}", f"{row['tokens_per_second']:.1f} tokens/s") for row in result["prefill"]),
        *(
            (f"writing after {row['prompt_tokens']}", f"{row['tokens_per_second']:.1f} tokens/s")
            for row in result["decode"]
        ),
        *((f"{name.replace('_', ' ')} a token", f"{count:g}") for name, count in (result["per_token"] or {}).items()),
        *((f"memory, {name.replace('_', ' ')}", f"{size / 1e6:.1f} MB") for name, size in memory.items()),
        ("agreement", agreement(result["agreement"])),
    ]
    printed = Table(
        title=f"{bundle['model']}, {bundle['quantization']}, on {device['adapter']}, {device['activation']}"
    )
    printed.add_column("")
    printed.add_column("measured", justify="right")
    for name, value in rows:
        printed.add_row(name, value)
    return printed


def agreement(found: dict[str, Any]) -> str:
    if found["reference"] == "none":
        return "no reference"
    return f"{found['agreed']} of {found['checked']} tokens"


if __name__ == "__main__":
    main()
