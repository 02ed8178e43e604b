"""Prefill and decode apart on one machine: as many prefill and decode workers against as many whole workers.

Requests arrive at random (Poisson), with short and long prompts, at a gateway before all workers: `nearfar serve
--executor upstream`. Each worker has one thread. The same requests at the same times go to every configuration. The
time to the first token of a request counts from its arrival (TTFT), and the time of each further token is the mean
(TPOT). Goodput is the rate of the requests whose TTFT and TPOT are at most `--ttft` and `--tpot` times those of a
request that is alone.

The JSON has every request with its arrival, and what a step of the model costs here, so that other schedules can be
computed from it:

    step_costs       seconds of a step that computes ``new_tokens`` of each of ``sequences`` after ``context`` tokens
    transfer         bytes of a token's pages, and seconds by the number of tokens whose pages are sent
    configurations   workers, requests (arrival_seconds, prompt_tokens, output_tokens, sent_seconds, ttft_seconds,
                     tpot_seconds, end_seconds, error), and their summary

    python tests/bench/bench_prefill_apart.py --requests 48 --rate 0.8 -o build/bench/prefill_apart.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from bench_compile import ROOT, machine
from checkpoints import Shapes, write_checkpoint
from rich.console import Console
from rich.table import Table
from serving_model import token_texts, write_chat_tokenizer
from serving_process import Process, nearfar_serve

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.page_groups import pages_bytes
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.executors.sse import events
from nearfar.targets.cpu.runner import CpuRunner

CONTEXT, PAGE = 2048, 16
# Large enough that a prompt takes a while on one thread, small enough for an hour of a busy machine.
SHAPES = Shapes(
    "apart-45m",
    {
        "model_type": "llama", "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1536,
        "tie_word_embeddings": True, "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "max_position_embeddings": CONTEXT,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    },
)  # fmt: skip
# Shares of the requests, and the range of their prompts' lengths.
PROMPTS = ((0.6, (32, 128)), (0.4, (768, 1536)))
OUTPUTS = (24, 64)
# The new tokens that a step of nearfar on CPUs computes (`local_opener.STEP_TOKENS`).
STEP_TOKENS = 256
CONFIGURATIONS = {"2 whole": (0, 0, 2), "1+1 apart": (1, 1, 0), "4 whole": (0, 0, 4), "2+2 apart": (2, 2, 0)}


@dataclass(frozen=True, slots=True)
class Request:
    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Result:
    """``sent_seconds`` after the start the client sent the request, which may be later than its arrival."""

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    sent_seconds: float | None = None
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    end_seconds: float | None = None
    error: str | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/bench", help="folder for the model")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--rate", type=float, default=0.8, help="arrivals per second")
    parser.add_argument("--ttft", type=float, default=4.0, help="times the TTFT of a request alone")
    parser.add_argument("--tpot", type=float, default=2.0, help="times the TPOT of a request alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build/bench/prefill_apart.json")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    console, bundle = Console(width=140), make_bundle(options.folder)
    requests = workload(options.requests, options.rate, options.seed)
    figures: dict[str, Any] = {
        "machine": machine(), "load": os.getloadavg()[0], "threads_of_a_worker": 1, "step_tokens": STEP_TOKENS,
        "model": SHAPES.config, "rate": options.rate, "step_costs": step_costs(bundle), "transfer": {},
        "configurations": {},
    }  # fmt: skip

    def keep() -> None:
        """Store the figures so far: the rest may take too long."""
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(figures, indent=1))

    with ExitStack() as running:
        alone = Fleet(running, bundle, options.folder, (0, 0, 1))
        unloaded = measure_alone(alone, sorted({r.prompt_tokens for r in requests}))
        figures["alone"] = [
            {"prompt_tokens": n, "ttft_seconds": a, "tpot_seconds": b} for n, (a, b) in unloaded.items()
        ]
    keep()
    for name in options.only:
        with ExitStack() as running:
            fleet = Fleet(running, bundle, options.folder, CONFIGURATIONS[name])
            asyncio.run(fleet.run([Request(0.0, 64 + index, 4) for index in range(2 * fleet.size)]))
            results = asyncio.run(fleet.run(requests))
            summary = summarize(results, unloaded, options.ttft, options.tpot)
            prefill, decode, whole = CONFIGURATIONS[name]
            figures["configurations"][name] = {
                "prefill_workers": prefill, "decode_workers": decode, "whole_workers": whole,
                "load": os.getloadavg()[0], "summary": summary, "transfers": fleet.transfers(),
                "requests": [asdict(result) for result in results],
            }  # fmt: skip
            if decode:
                figures["transfer"] = transfer_cost(bundle, fleet.transfers())
        keep()
        console.print(name, summary, highlight=False)
    report(console, figures)


def make_bundle(folder: Path) -> Path:
    checkpoint, bundle = folder / f"{SHAPES.name}-chat", folder / f"{SHAPES.name}-cpu"
    if not (checkpoint / "tokenizer_config.json").exists():
        write_checkpoint(SHAPES, checkpoint)
        write_chat_tokenizer(checkpoint, token_texts(SHAPES.config["vocab_size"]))
    options = CompileOptions(target="cpu", quantization="q4f16", context=CONTEXT, self_test=False, force=True)
    compile_model(str(checkpoint), bundle, options)
    return bundle


def workload(count: int, rate: float, seed: int) -> list[Request]:
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, count))
    kinds = random.choice(len(PROMPTS), count, p=[share for share, _ in PROMPTS])
    return [
        Request(float(arrival), int(random.integers(*PROMPTS[kind][1])), int(random.integers(*OUTPUTS)))
        for arrival, kind in zip(arrivals, kinds, strict=True)
    ]


# --- the steps of the model ---


def step_costs(path: Path) -> list[dict[str, float]]:
    """Chunks of a prompt at several depths, and decoding of several sequences at several lengths, on one thread."""
    os.environ["NEARFAR_THREADS"] = "1"
    bundle = open_bundle(path)
    limits = Limits(tokens=STEP_TOKENS, sequences=16, rows=16, pages=16 * CONTEXT // PAGE)
    runner = CpuRunner(bundle, limits=limits)
    cases = [(1, tokens, context) for tokens in (16, 64, 128, 256) for context in (0, 512, 1024)]
    cases += [(sequences, 1, context) for sequences in (1, 2, 4, 8, 16) for context in (64, 512, 1536)]
    found = []
    for sequences, tokens, context in cases:
        chunks = [
            Chunk(
                [(7 * i + index) % 200 for i in range(tokens)],
                context,
                range(index * CONTEXT // PAGE, (index + 1) * CONTEXT // PAGE),
                sample=(tokens - 1,),
                slot=index,
            )
            for index in range(sequences)
        ]
        batch = make_batch(chunks, PAGE)
        times = []
        for _ in range(4):
            began = time.perf_counter()
            runner.forward(batch)
            times.append(time.perf_counter() - began)
        found.append({"sequences": sequences, "new_tokens": tokens, "context": context, "seconds": min(times[1:])})
    runner.close()
    return found


def transfer_cost(path: Path, transfers: dict[str, float]) -> dict[str, float]:
    manifest = open_bundle(path).manifest
    states = manifest.states
    activation = manifest.activations[0].dtype
    size = pages_bytes(states, [range(1)], activation)
    return {"bytes_of_a_token": size / PAGE, **transfers}


# --- the workers ---


class Fleet:
    """A gateway before (prefill, decode, whole) workers. ``started``: when the last load began, by `perf_counter`."""

    def __init__(self, running: ExitStack, bundle: Path, folder: Path, workers: tuple[int, int, int]) -> None:
        prefill, decode, whole = workers
        self.size, self._model, self.started = prefill + decode + whole, bundle.name, 0.0
        common = [str(bundle), "--threads", "1", "--max-sequences", "16"]

        def serve(name: str, *arguments: str) -> Process:
            return running.enter_context(nearfar_serve(arguments, folder / f"apart-{name}.log"))

        sources = [serve(f"prefill{index}", *common, "--role", "prefill").url for index in range(prefill)]
        named = [argument for url in sources for argument in ("--prefill-from", url)]
        self._decode = [serve(f"decode{index}", *common, "--role", "decode", *named).url for index in range(decode)]
        wholes = [serve(f"whole{index}", *common).url for index in range(whole)]
        upstreams = [argument for url in (*self._decode, *wholes) for argument in ("--upstream", url)]
        gateway = ["--executor", "upstream", "--dialect", "nearfar", *upstreams, *named]
        self.url = serve("gateway", *gateway).url

    def transfers(self) -> dict[str, float]:
        """Of all decode workers together."""
        totals: dict[str, float] = {}
        for url in self._decode:
            for line in httpx.get(f"{url}/metrics").text.splitlines():
                if line.startswith("nearfar:prefill_") and "_total" in line:
                    name = line.partition("{")[0].removeprefix("nearfar:prefill_").removesuffix("_total")
                    totals[name] = totals.get(name, 0.0) + float(line.rpartition(" ")[2])
        return totals

    async def run(self, requests: Sequence[Request], first: int = 0) -> list[Result]:
        """``first``: the number of the first prompt, see `prompt_of`."""
        async with httpx.AsyncClient(timeout=3600, limits=httpx.Limits(max_connections=None)) as client:
            self.started = time.perf_counter()
            return list(
                await asyncio.gather(*(self._send(client, each, index) for index, each in enumerate(requests, first)))
            )

    async def _send(self, client: httpx.AsyncClient, request: Request, number: int) -> Result:
        started = self.started
        await asyncio.sleep(max(0.0, started + request.arrival_seconds - time.perf_counter()))
        result = Result(request.arrival_seconds, request.prompt_tokens, request.output_tokens)
        prompt = prompt_of(number, request.prompt_tokens)
        body = {
            "model": self._model, "prompt": prompt, "max_tokens": request.output_tokens, "temperature": 0,
            "ignore_eos": True, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        times: list[float] = []
        result.sent_seconds = time.perf_counter() - started
        try:
            async with client.stream("POST", f"{self.url}/v1/completions", json=body) as response:
                if not response.is_success:
                    result.error = f"{response.status_code} {(await response.aread()).decode()[:200]}"
                    return result
                async for data in events(response.aiter_bytes()):
                    if data == "[DONE]":
                        break
                    now, chunk = time.perf_counter(), json.loads(data)
                    if "error" in chunk:
                        result.error = str(chunk["error"])[:200]
                        return result
                    for choice in chunk["choices"]:
                        times += [now] * len(choice.get("token_ids") or ())
        except httpx.HTTPError as error:
            result.error = repr(error)
            return result
        result.ttft_seconds = times[0] - started - request.arrival_seconds
        result.end_seconds = times[-1] - started
        result.tpot_seconds = (times[-1] - times[0]) / max(1, len(times) - 1)
        return result


def prompt_of(number: int, tokens: int) -> list[int]:
    """No two prompts begin alike, so nothing is cached."""
    ids: list[int] = np.random.default_rng((number, tokens)).integers(0, 200, tokens).tolist()
    return ids


def measure_alone(fleet: Fleet, lengths: Sequence[int]) -> dict[int, tuple[float, float]]:
    """TTFT and TPOT by the length of the prompt, interpolated between a few that are measured."""
    measured = sorted({*lengths[:: max(1, len(lengths) // 6)], lengths[-1]})
    asyncio.run(fleet.run([Request(0.0, 100, 4)]))
    found = []
    for length in measured:
        each = [asyncio.run(fleet.run([Request(0.0, length, 24)]))[0] for _ in range(2)]
        found.append((min(r.ttft_seconds or 0 for r in each), min(r.tpot_seconds or 0 for r in each)))
    ttft = np.interp(lengths, measured, [pair[0] for pair in found])
    tpot = np.interp(lengths, measured, [pair[1] for pair in found])
    return {n: (float(a), float(b)) for n, a, b in zip(lengths, ttft, tpot, strict=True)}


def summarize(
    results: Sequence[Result], alone: dict[int, tuple[float, float]], ttft_times: float, tpot_times: float
) -> dict[str, float]:
    well = [r for r in results if r.error is None and r.ttft_seconds is not None and r.tpot_seconds is not None]
    seconds = max((r.end_seconds or 0 for r in well), default=0.0)
    good = [
        r
        for r in well
        if (r.ttft_seconds or 0) <= ttft_times * alone[r.prompt_tokens][0]
        and (r.tpot_seconds or 0) <= tpot_times * alone[r.prompt_tokens][1]
    ]
    ttfts, tpots = [r.ttft_seconds or 0 for r in well], [r.tpot_seconds or 0 for r in well]
    return {
        "failed": len(results) - len(well),
        "ttft_p50": statistics.median(ttfts),
        "ttft_p90": float(np.quantile(ttfts, 0.9)),
        "tpot_p50": statistics.median(tpots),
        "tpot_p90": float(np.quantile(tpots, 0.9)),
        "seconds": seconds,
        "requests_per_second": len(well) / seconds,
        "goodput": len(good) / seconds,
    }


def report(console: Console, figures: dict[str, Any]) -> None:
    table = Table(title=f"{figures['machine']}, load {figures['load']:.1f}", title_justify="left")
    columns = ("ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90", "requests_per_second", "goodput", "failed")
    for column in ("workers", *columns):
        table.add_column(column, justify="left" if column == "workers" else "right")
    for name, each in figures["configurations"].items():
        table.add_row(name, *(f"{each['summary'][column]:.3g}" for column in columns))
    console.print(table)


if __name__ == "__main__":
    main()
