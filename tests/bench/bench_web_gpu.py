"""Tokens per second on a GPU through Dawn in Node, and the share of the copy bandwidth that decoding uses.

``make bench-web-gpu`` runs this on random checkpoints with the shapes of Qwen2-0.5B and Llama-3.2-1B, prints a table
and the results as JSON, and writes ``build/bench/gpu.json``. With --chunks it measures prompts alone, with each of
these chunks, and writes ``build/bench/gpu-chunks.json``. CPU adapters are refused unless --any-adapter is given; use
--narrow with them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from bench_page import FOLDER, ROOT, compiled
from checkpoints import LLAMA_3_2_1B, QWEN2_0_5B, QWEN2_FEW_LAYERS, QWEN2_NARROW
from rich.console import Console
from rich.table import Table

COLUMNS = ("model", "after", "tokens/s", "GB/s", "of copying")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--any-adapter", action="store_true", help="run on a CPU as well")
    parser.add_argument("--narrow", action="store_true", help="a small model, few tokens, small copies")
    parser.add_argument("--chunks", help="measure prompts alone, with these chunks, such as 64,128,256,512")
    options = parser.parse_args()
    arguments = ["--any-adapter"] if options.any_adapter else []
    shapes, context = [QWEN2_0_5B, LLAMA_3_2_1B], 8448
    if options.narrow:
        shapes, context = [QWEN2_NARROW], 512
        arguments += ["--tokens", "8", "--lengths", "16", "--copy-mib", "8"]
    if options.chunks is not None:
        context = 2304
        # A CPU computes 32,000 tokens for the table.
        shapes = [QWEN2_FEW_LAYERS] if options.narrow else shapes
        arguments += ["--lengths", "2048", "--copy-mib", "8", "--chunks", options.chunks]
    results = []
    for each in shapes:
        command = ["node", "dist/tools/bench_gpu.js", str(compiled(each, context)), *arguments]
        finished = subprocess.run(command, cwd=ROOT / "web", stdout=subprocess.PIPE, text=True)
        if finished.returncode != 0:
            sys.exit(finished.returncode)
        results.append(json.loads(finished.stdout))
    if options.chunks is not None:
        named = [{"model": each.name, "chunks": rows} for each, rows in zip(shapes, results, strict=True)]
        (FOLDER / "gpu-chunks.json").write_text(json.dumps(named, indent=2) + "\n")
        Console(width=110).print(*map(chunk_table, named))
        print(json.dumps(named))
        return
    (FOLDER / "gpu.json").write_text(json.dumps(results, indent=2))
    Console(width=110).print(table(results))
    print(json.dumps(results))


def chunk_table(result: dict[str, Any]) -> Table:
    printed = Table(title=result["model"])
    for column in ("chunk", "prompt", "dispatches", "tokens/s", "of the first chunk", "MB"):
        printed.add_column(column, justify="right")
    first = result["chunks"][0]["prefill"]
    for row in result["chunks"]:
        for prefill, dispatches, base in zip(row["prefill"], row["dispatches"], first, strict=True):
            printed.add_row(
                str(row["chunk"]),
                f"{prefill['prompt_tokens']} tokens",
                f"{dispatches:,}",
                f"{prefill['tokens_per_second']:.1f}",
                f"{prefill['tokens_per_second'] / base['tokens_per_second']:.2f}",
                f"{row['total_bytes'] / 1e6:.0f}",
            )
    return printed


def table(results: list[dict[str, Any]]) -> Table:
    first = results[0]
    printed = Table(
        title=f"{first['adapter']}, {first['activation']}, copies {first['copy_bytes_per_second'] / 1e9:.0f} GB/s, "
        f"prompts in chunks of {', '.join(str(result['prefill_chunk']) for result in results)}"
    )
    for column in COLUMNS:
        printed.add_column(column, justify="right")
    for result in results:
        for row in result["decode"]:
            printed.add_row(
                f"{result['model']} {result['quantization']}",
                f"{row['prompt_tokens']} tokens",
                f"{row['tokens_per_second']:.1f}",
                f"{row['bytes_per_second'] / 1e9:.1f}",
                f"{row['of_copy_bandwidth']:.0%}",
            )
    return printed


if __name__ == "__main__":
    main()
