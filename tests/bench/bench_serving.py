"""Serving under load on this machine's CPU: random 4-bit weights with Qwen3-0.6B's shapes, compared with llama.cpp.

``make bench-serving`` runs this and prints tables. It writes ``build/bench/serving.json`` as it goes, because llama.cpp
can take more than ten minutes on a busy machine. If llama-cpp-python and gguf are installed, the benchmark measures two
ways to run llama.cpp: its Python server, which answers one request at a time, and its batched decoding without a server
(`llama_slots.py`), which corresponds to llama-server's parallel slots. Only one engine runs at a time; they alternate,
and the figures are medians of the rounds. Prompts and lengths are the same for all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
from bench_compile import ROOT, machine
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from serving_model import CONTEXT, ServingModel, make_serving_model
from serving_process import LLAMA_SERVER_MODULES, llama_server, nearfar_serve
from upstream_check import check_upstream

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.server_fallback.bench.client import Outcome, Server, make_client, run_load
from nearfar.server_fallback.bench.summary import summarize
from nearfar.server_fallback.bench.workload import Lengths, LoadRequest, make_workload
from nearfar.targets.threads import default_threads

CLIENTS = 16
PREFIX_TOKENS = 512
SEQUENCES = 32
# The tokenizer's tokens are letters. This is the mean number of letters in a word, including the blank after it.
TOKENS_PER_WORD = 5.3
BODY = {"temperature": 0}
POLL_SECONDS = 0.1
NEARFAR, SLOTS, LLAMA_SERVER = "nearfar serve", "llama.cpp, parallel slots", "llama-cpp-python's server"

Load = Callable[[Sequence[LoadRequest], int, str], tuple[list[Outcome], float]]


@dataclass(frozen=True, slots=True)
class Bench:
    model: ServingModel
    folder: Path
    threads: int
    rounds: int
    requests: int
    bars: Progress

    def over_http(self, url: str, name: str) -> Load:
        def load(requests: Sequence[LoadRequest], clients: int, what: str) -> tuple[list[Outcome], float]:
            async def run() -> tuple[list[Outcome], float]:
                async with make_client(None) as client:
                    return await run_load(
                        Server(url, client, name, BODY), requests, clients, self.bar(what, len(requests))
                    )

            outcomes, seconds = asyncio.run(run())
            errors = {outcome.error for outcome in outcomes if outcome.error is not None}
            assert not errors, errors
            return outcomes, seconds

        return load

    def bar(self, what: str, total: int) -> Callable[[], None]:
        task = self.bars.add_task(what, total=total)
        return lambda: self.bars.advance(task)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder for the model, 3 GB")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--activations", nargs="+", help="as for nearfar compile (default: those of the weight format)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=16, help="of each round")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=140)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars, ExitStack() as running:
        model = make_serving_model(
            options.folder, options.activations and tuple(options.activations), bars.console.print
        )
        bench = Bench(model, options.folder, options.threads, options.rounds, options.requests, bars)
        figures: dict[str, Any] = {"machine": machine(), "threads": options.threads, "load": os.getloadavg()[0]}
        arguments = [str(model.bundle), "--threads", str(options.threads)]
        ours = running.enter_context(nearfar_serve(arguments, options.folder / "nearfar.log"))
        load = bench.over_http(ours.url, model.bundle.name)
        load(make_requests(2, (64, 64), (8, 8), seed=-1), 2, "warming up")

        def keep(name: str, value: Any) -> None:
            """Store the figures so far, so that they are not lost if the rest takes too long."""
            figures[name] = value
            bars.console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
            (options.folder / "serving.json").write_text(json.dumps(figures, indent=1))

        keep("prefix", shared_prefix(load))
        keep("32 sequences", full_engine(load, ours.url))
        keep("16 clients", under_load(bench, load))
        ours.stop()
        if model.gguf is not None and all(find_spec(name) for name in LLAMA_SERVER_MODULES):
            served = running.enter_context(
                llama_server(model.gguf, "llama", CONTEXT, options.threads, options.folder / "llama.log")
            )
            requests = workload(options.requests, 0)
            found = rates(CLIENTS, *bench.over_http(served.url, "llama")(requests, CLIENTS, LLAMA_SERVER))
            keep("16 clients", {**figures["16 clients"], LLAMA_SERVER: [found]})
            keep("upstream", list(check_upstream(served, "llama", CONTEXT, options.folder / "upstream.log")))
    report(console, figures)


def make_requests(
    count: int, inputs: tuple[int, int], outputs: tuple[int, int], *, seed: int, prefix: int = 0
) -> list[LoadRequest]:
    return make_workload(
        count,
        Lengths(*inputs),
        Lengths(*outputs),
        prefix_tokens=prefix,
        tokens_per_word=TOKENS_PER_WORD,
        seed=(seed, count),
    )


def workload(requests: int, seed: int) -> list[LoadRequest]:
    return make_requests(requests, (64, 256), (32, 96), seed=seed)


def under_load(bench: Bench, ours: Load) -> dict[str, list[dict[str, float]]]:
    """Run one client per slot, each with one request at a time. Every round has different requests, so nothing is
    cached.
    """
    slots: Load | None = None
    if bench.model.gguf is not None and find_spec("llama_cpp"):
        slots = llama_slots(bench, bench.model.gguf)
    found: dict[str, list[dict[str, float]]] = {NEARFAR: [], **({SLOTS: []} if slots else {})}
    for number in range(bench.rounds):
        requests = workload(bench.requests, number)
        for name, load in ((NEARFAR, ours), (SLOTS, slots)):
            if load is not None:
                found[name].append(rates(CLIENTS, *load(requests, CLIENTS, f"round {number + 1}: {name}")))
    return found


def llama_slots(bench: Bench, gguf: Path) -> Load:
    from llama_slots import LlamaSlots, TokenRequest

    bundle = open_bundle(bench.model.bundle)
    tokenizer = Tokenizer(bundle.tokenizer_files())
    slots = LlamaSlots(gguf, CLIENTS, CONTEXT, bundle.manifest.spec.vocab_size, bench.threads)

    def load(requests: Sequence[LoadRequest], clients: int, what: str) -> tuple[list[Outcome], float]:
        assert clients == CLIENTS
        prompts = [
            tokenizer.encode_chat([{"role": "user", "content": f"{request.prefix} {request.prompt}".lstrip()}])
            for request in requests
        ]
        token_requests = [
            TokenRequest(prompt, request.max_tokens) for prompt, request in zip(prompts, requests, strict=True)
        ]
        return slots.run(token_requests, bench.bar(what, len(requests)))

    return load


def shared_prefix(load: Load) -> dict[str, float]:
    """Median seconds to the first token of simultaneous requests, with a different prefix for each and with a new
    prefix that all of them share.
    """
    common = make_requests(CLIENTS, (16, 48), (8, 8), seed=100, prefix=PREFIX_TOKENS)
    others = [
        make_requests(1, (16, 48), (8, 8), seed=1000 + index, prefix=PREFIX_TOKENS)[0] for index in range(CLIENTS)
    ]
    medians = {}
    for what, requests in (("own", others), ("shared", common)):
        outcomes, _ = load(requests, CLIENTS, f"{PREFIX_TOKENS} tokens of system prompt, {what}")
        medians[what] = statistics.median(outcome.time_to_first_token for outcome in outcomes)
    return medians


def full_engine(load: Load, url: str) -> dict[str, float]:
    """Read from the metrics, while all sequences run, the share of unused page positions and the engine's own time per
    step.
    """
    waste, first, last = list[float](), dict[str, float](), dict[str, float]()
    requests = make_requests(SEQUENCES, (256, 512), (48, 64), seed=7)

    async def watch() -> None:
        nonlocal first, last
        while True:
            now = await asyncio.to_thread(metrics, url)
            if now["vllm:num_requests_running"] == SEQUENCES:
                waste.append(now["nearfar:kv_cache_waste_perc"])
                first, last = first or now, now
            await asyncio.sleep(POLL_SECONDS)

    async def run() -> None:
        watcher = asyncio.create_task(watch())
        try:
            await asyncio.to_thread(load, requests, SEQUENCES, f"{SEQUENCES} sequences of 256 to 512 tokens")
        finally:
            watcher.cancel()

    asyncio.run(run())
    assert last["nearfar:engine_steps_total"] > first["nearfar:engine_steps_total"], "the load ended too soon"
    steps, overhead = (
        last[name] - first[name] for name in ("nearfar:engine_steps_total", "nearfar:engine_overhead_seconds_total")
    )
    return {
        "kv_waste": statistics.mean(waste),
        "overhead_ms": 1000 * overhead / steps,
        "steps": steps,
    }


def metrics(url: str) -> dict[str, float]:
    """The metrics that have one value for the only model."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    found = (re.fullmatch(r"([\w:]+)\{model_name=\"[^\"]*\"\} (\S+)", line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


def rates(clients: int, outcomes: Sequence[Outcome], seconds: float) -> dict[str, float]:
    summary = summarize(clients, outcomes, seconds)
    return {
        "seconds": seconds,
        "output_tokens_per_second": summary.completion_tokens_per_second,
        "input_tokens_per_second": summary.prompt_tokens_per_second,
        "first_token_seconds": summary.time_to_first_token_seconds.p50 or 0.0,
    }


def report(console: Console, figures: Mapping[str, Any]) -> None:
    title = f"{figures['machine']}, {figures['threads']} threads, load before {figures['load']:.1f}"
    table = Table(
        title=f"{title}; {CLIENTS} clients, 64 to 256 tokens in, 32 to 96 out; medians (all rounds)",
        title_justify="left",
    )
    for column in ("", "output tokens/s", "first token, s", "nearfar's throughput / its"):
        table.add_column(column, justify="right" if column else "left")
    of = {name: [each["output_tokens_per_second"] for each in rounds] for name, rounds in figures["16 clients"].items()}
    for name, each in of.items():
        ratios = [mine / theirs for mine, theirs in zip(of[NEARFAR], each, strict=False)]
        first = statistics.median(round["first_token_seconds"] for round in figures["16 clients"][name])
        listed = ", ".join(f"{value:.0f}" for value in each)
        table.add_row(
            name, f"{statistics.median(each):.0f} ({listed})", f"{first:.1f}", f"{statistics.median(ratios):.2f}x"
        )
    console.print(table)
    own, shared = figures["prefix"]["own"], figures["prefix"]["shared"]
    print(f"{PREFIX_TOKENS} tokens of system prompt, {CLIENTS} requests at once, median time to first token:")
    print(f"  {own:.2f} s with separate prompts, {shared:.2f} s with a shared prompt: {shared / own:.2f}x")
    full = figures["32 sequences"]
    print(f"{SEQUENCES} sequences of 256-512 tokens in, 48-64 out, as /metrics says:")
    print(
        f"  {full['kv_waste']:.1%} of the page positions are unused, "
        f"{full['overhead_ms']:.2f} ms per step in the engine's own code"
    )
    for what, holds, came in figures.get("upstream", ()):
        print(f"{'pass' if holds else 'FAIL'}  {what}" + ("" if holds else f": {came}"))


if __name__ == "__main__":
    main()
