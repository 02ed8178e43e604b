"""`nearfar simulate` against real servers: the same requests, at the same times, go to `nearfar serve` on this machine
and to a simulation of it.

The servers are real: processes of workers, a gateway, HTTP, the engine and transfers of pages. Their devices are paced
(`paced_device`): a step takes the time that the costs say, so other work on the machine, or too few cores for all
workers, do not change what is compared.

What a request costs outside the devices is measured in a load of other requests at the same rate, with the timelines
of `simulator_timeline.py`. Requests that are alone are no measure of it: back to back they are faster than any of the
load, and after a pause slower, on machines whose memory becomes slow when nothing reads it (`untouched_memory`). The
simulation has the requests at the times at which the client sent them, not at which it planned to.

    python tests/bench/bench_simulator.py --requests 60 -o tests/bench/results/simulator.json
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import serving_process
from bench_compile import ROOT, machine
from bench_prefill_apart import Fleet, Request, Result
from checkpoints import Shapes, write_checkpoint
from rich.console import Console
from rich.table import Table
from serving_model import token_texts, write_chat_tokenizer
from simulator_timeline import Stages, Timelines, simulated_stages

from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.simulate.costs import StepCosts
from nearfar.server_fallback.simulate.device import Device
from nearfar.server_fallback.simulate.layout import Layout
from nearfar.server_fallback.simulate.network import LinkSpeed
from nearfar.server_fallback.simulate.request import Segment, SimulatedRequest
from nearfar.server_fallback.simulate.run import run
from nearfar.server_fallback.simulate.workload import Workload

# Its numbers do not matter, only that it is small: the devices are paced.
SHAPES = Shapes(
    "paced",
    {
        "model_type": "llama", "vocab_size": 4096, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
        "tie_word_embeddings": True, "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "max_position_embeddings": 2048,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    },
)  # fmt: skip
CONTEXT, SEQUENCES = 2048, 16
# Long steps: the few milliseconds by which a machine delays a process are a small part of them.
PACE = StepCosts(((1.0, 0.060), (16.0, 0.070), (256.0, 0.350)), row=0.0005, read=1e-6, pair=1e-7)
# Workers (prefill, decode, whole), and arrivals a second.
CONFIGURATIONS: dict[str, tuple[tuple[int, int, int], float]] = {
    "1 whole": ((0, 0, 1), 0.4),
    "2 whole": ((0, 0, 2), 0.8),
    "1 + 1 apart": ((1, 1, 0), 0.7),
    "2 + 2 apart": ((2, 2, 0), 1.4),
}
PROMPTS = {"short": (32, 128), "long": (768, 1536)}
OUTPUTS = (24, 64)
# Between workers on one machine, by HTTP.
LINK_SPEED = 1e9
# The load in which the costs of requests are measured, after the first ones; its prompts are none of the other's.
OTHERS, OTHERS_SEED, OTHERS_FIRST, WARMING = 30, 1000, 10_000, 10
# Prompts that are sent alone. No length is that of another first prompt, because equal ones would be cached.
ALONE_LONG = range(768, 776)
UNTOUCHED_BYTES, UNTOUCHED_SECONDS = 64 << 20, (0.0, 0.3, 1.25, 2.5)
# What the table shows, and its factor.
FIGURES = {
    "first token, mean, ms": ("ttft_mean", 1000), "short prompts, p50": ("ttft_short_p50", 1000),
    "long prompts, p50": ("ttft_long_p50", 1000), "all, p50": ("ttft_p50", 1000), "all, p90": ("ttft_p90", 1000),
    "further tokens, ms": ("tpot_p50", 1000), "output tokens a second": ("tokens_per_second", 1),
}  # fmt: skip


class Measured(NamedTuple):
    """Of a request, in seconds; ``end`` is since the first arrival."""

    prompt_tokens: int
    output_tokens: int
    ttft: float
    tpot: float | None
    end: float


@dataclass(frozen=True, slots=True)
class Figures:
    """In seconds, and output tokens a second from the first arrival to the last token. The median of all times to the
    first token lies between those of short and of long prompts, where few requests are, so one of them may move it by
    half; the mean and the medians of both kinds say more.
    """

    ttft_mean: float
    ttft_short_p50: float
    ttft_long_p50: float
    ttft_p50: float
    ttft_p90: float
    tpot_p50: float
    tokens_per_second: float

    @staticmethod
    def of(all_measured: Sequence[Measured]) -> Figures:
        first = [each.ttft for each in all_measured]
        return Figures(
            statistics.mean(first),
            statistics.median(each.ttft for each in all_measured if is_short(each)),
            statistics.median(each.ttft for each in all_measured if not is_short(each)),
            statistics.median(first),
            statistics.quantiles(first, n=10)[-1],
            statistics.median(each.tpot for each in all_measured if each.tpot is not None),
            sum(each.output_tokens for each in all_measured) / max(each.end for each in all_measured),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/bench", help="folder for the model")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--slower", type=float, default=1.0, metavar="FACTOR", help="longer steps and gaps, for a machine that is busy"
    )
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build/bench/simulator.json")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    bundle = make_bundle(options.folder)
    # Importing a server takes minutes on a machine that has much else to do.
    serving_process.START_SECONDS = 600.0
    pace = slower(PACE, options.slower)
    os.environ["NEARFAR_PACED_COSTS"] = json.dumps(asdict(pace))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent / "paced_device")
    device = paced_device(bundle, pace)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    # What an earlier run has of other workers is kept.
    found: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {"results": {}}
    for name in options.only:
        workers, rate = CONFIGURATIONS[name][0], CONFIGURATIONS[name][1] / options.slower
        requests = make_requests(options.requests, rate, options.seed)
        with ExitStack() as running:
            timeline = Path(running.enter_context(TemporaryDirectory())) / "engine"
            os.environ["NEARFAR_PACED_TIMELINE"] = str(timeline)
            fleet = Fleet(running, bundle, options.folder, workers)
            asyncio.run(fleet.run([Request(0.0, 10 + index, 2) for index in range(2 * fleet.size)]))
            overhead = measure_request(fleet, timeline, make_requests(OTHERS, rate, OTHERS_SEED))
            measured = replace(device, request_seconds=overhead)
            transfer = measure_transfer(fleet, measured, workers, 1 / rate) if workers[0] else 0.0
            results = asyncio.run(fleet.run(requests))
            timelines = Timelines(timeline, fleet.started)
        real, sent = real_times(results), as_sent(results)
        played = simulate(measured, workers, sent, transfer)
        simulated = simulated_times(played)
        stages = [timelines.stages(number, each) for number, each in enumerate(results) if is_short(each)]
        found["results"][name] = {
            "machine": machine(), "requests": options.requests, "slower": options.slower, "rate": rate,
            "load": os.getloadavg()[0], "request_seconds": overhead,
            "transfer_seconds": transfer, "real": asdict(Figures.of(real)), "simulated": asdict(Figures.of(simulated)),
            # Of short prompts; see simulator_timeline.py.
            "stages": {
                "real": Stages.medians(stages),
                "simulated": Stages.medians([simulated_stages(each, overhead) for each in played if is_short(each)]),
            },
            "behind_the_engine": None if workers[0] else behind_the_engine(device, workers, results, timelines),
            # When the request was sent, its prompt tokens, and the real and the simulated time to the first token.
            "ttft": [
                [round(at.arrival_seconds, 4), a.prompt_tokens, round(a.ttft, 4), round(b.ttft, 4)]
                for at, a, b in zip(sent, real, simulated, strict=True)
            ],
        }  # fmt: skip
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    found["untouched_memory"] = {str(pause): seconds_of_memory(pause) for pause in UNTOUCHED_SECONDS}
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    report(found)


def seconds_of_memory(pause_seconds: float) -> float:
    """The median time to read a byte of each page of 64 MiB that nothing has read for a while."""
    memory, times = bytearray(os.urandom(UNTOUCHED_BYTES)), []
    for _ in range(6):
        started = time.perf_counter()
        sum(memory[::4096])
        times.append(time.perf_counter() - started)
        time.sleep(pause_seconds)
    return statistics.median(times[1:])


def make_bundle(folder: Path) -> Path:
    checkpoint, bundle = folder / f"{SHAPES.name}-chat", folder / f"{SHAPES.name}-cpu"
    if not (bundle / "manifest.json").exists():
        write_checkpoint(SHAPES, checkpoint)
        write_chat_tokenizer(checkpoint, token_texts(SHAPES.config["vocab_size"]))
        options = CompileOptions(target="cpu", quantization="q4f16", context=CONTEXT, self_test=False, force=True)
        compile_model(str(checkpoint), bundle, options)
    return bundle


def slower(costs: StepCosts, factor: float) -> StepCosts:
    knots = tuple((count, seconds * factor) for count, seconds in costs.knots)
    return StepCosts(knots, costs.row * factor, costs.read * factor, costs.pair * factor)


def paced_device(bundle: Path, pace: StepCosts) -> Device:
    """The device of a worker of `Fleet`, with the limits that the server gives it."""
    planned = asyncio.run(LocalOpener(LocalOptions(max_sequences=SEQUENCES)).plan(str(bundle)))
    limits, manifest = planned.memory.limits, planned.bundle.manifest
    assert limits.pages is not None
    assert isinstance(manifest, Manifest)
    return Device(
        "paced", "bench_simulator.py", pace, limits.pages * manifest.page_size, token_bytes=64, context=CONTEXT,
        step_tokens=limits.tokens, sequences=SEQUENCES, page_size=manifest.page_size,
    )  # fmt: skip


def make_requests(count: int, rate: float, seed: int) -> list[Request]:
    """Short and long prompts, 6 of 10 short."""
    kinds = {
        name: Workload.model_validate(
            {
                "arrivals": {"kind": "poisson", "rate": rate},
                "requests": count,
                "prompt": {"kind": "uniform", "least": least, "most": most},
                "output": {"kind": "uniform", "least": OUTPUTS[0], "most": OUTPUTS[1]},
            }
        ).make(seed, Path())
        for name, (least, most) in PROMPTS.items()
    }
    return [
        Request(short.arrival, (short if number % 10 < 6 else long).prompt_tokens, short.output_tokens)
        for number, (short, long) in enumerate(zip(kinds["short"], kinds["long"], strict=True))
    ]


def measure_request(fleet: Fleet, timeline: Path, requests: Sequence[Request]) -> float:
    """The mean time that short prompts of a load are on their way to an engine, and their first tokens back, without
    the first of them, which need code and memory that nothing has needed before.
    """
    results = asyncio.run(fleet.run(requests, OTHERS_FIRST))
    timelines = Timelines(timeline, fleet.started)
    warm = [*enumerate(results, OTHERS_FIRST)][WARMING:]
    stages = [timelines.stages(number, each) for number, each in warm if is_short(each)]
    return statistics.mean(each.reaching + each.returning for each in stages)


def measure_transfer(fleet: Fleet, device: Device, workers: tuple[int, int, int], pause_seconds: float) -> float:
    """The mean time to the first token of a long prompt that is alone, after a pause, beside what a simulation has for
    it: the request to a prefill worker, and the transfer of its pages.
    """
    beside = []
    for length in ALONE_LONG:
        real = time_alone(fleet, length, pause_seconds)
        (simulated,) = simulate(device, workers, [Request(0.0, real.prompt_tokens, real.output_tokens)], 0.0)
        beside.append(real.ttft - simulated.first_token_seconds)
    return max(0.0, statistics.mean(beside))


def time_alone(fleet: Fleet, prompt_tokens: int, pause_seconds: float) -> Measured:
    return real_times(asyncio.run(fleet.run([Request(pause_seconds, prompt_tokens, 2)])))[0]


def real_times(results: Sequence[Result]) -> list[Measured]:
    """The times to the first token are since the request was sent."""
    errors = [each.error for each in results if each.error is not None]
    assert not errors, errors[:3]
    return [
        Measured(
            each.prompt_tokens,
            each.output_tokens,
            each.arrival_seconds + (each.ttft_seconds or 0.0) - (each.sent_seconds or 0.0),
            each.tpot_seconds,
            each.end_seconds or 0.0,
        )
        for each in results
    ]


def as_sent(results: Sequence[Result]) -> list[Request]:
    """The requests, arriving when they were sent."""
    return [Request(each.sent_seconds or 0.0, each.prompt_tokens, each.output_tokens) for each in results]


def simulate(
    device: Device, workers: tuple[int, int, int], requests: Sequence[Request], transfer_seconds: float
) -> Sequence[SimulatedRequest]:
    prefill, decode, whole = workers
    link = LinkSpeed(LINK_SPEED, transfer_seconds)
    layout = Layout(device, whole=whole, prefill=prefill, decode=decode, link=link)
    arrivals = [
        SimulatedRequest(number, each.arrival_seconds, [Segment(-1 - number, each.prompt_tokens)], each.output_tokens)
        for number, each in enumerate(requests)
    ]
    return run(layout, arrivals).requests


def simulated_times(requests: Sequence[SimulatedRequest]) -> list[Measured]:
    return [
        Measured(each.prompt_tokens, each.output_tokens, each.first_token_seconds, each.token_seconds, each.finish)
        for each in requests
    ]


def behind_the_engine(
    device: Device, workers: tuple[int, int, int], results: Sequence[Result], timelines: Timelines
) -> dict[str, float]:
    """A simulation in which requests arrive when they reached the real engines, so that only the schedulers are
    compared: how many of the short prompts have their first token within half a step of the real time, and the median
    difference in seconds, real less simulated.
    """
    reached = {number: timelines.at("reached", number, each) for number, each in enumerate(results)}
    order = sorted(reached, key=lambda number: reached[number])
    requests = [
        Request(reached[number], results[number].prompt_tokens, results[number].output_tokens) for number in order
    ]
    later = [
        timelines.at("first", number, results[number]) - each.first
        for number, each in zip(order, simulate(device, workers, requests, 0.0), strict=True)
        if is_short(each)
    ]
    half = device.costs.linear(1) / 2
    return {"short": len(later), "alike": sum(abs(each) < half for each in later), "later": statistics.median(later)}


def is_short(request: Measured | Result | SimulatedRequest) -> bool:
    return request.prompt_tokens < PROMPTS["long"][0]


def report(found: dict[str, Any]) -> None:
    table = Table(title="real / simulated, and the difference", title_justify="left")
    for column in ("workers", "requests", "load", *FIGURES):
        table.add_column(column, justify="left" if column == "workers" else "right")
    for name, each in found["results"].items():
        cells = []
        for figure, scale in FIGURES.values():
            real, simulated = each["real"][figure], each["simulated"][figure]
            cells.append(f"{real * scale:.0f} / {simulated * scale:.0f}, {simulated / real - 1:+.0%}")
        table.add_row(name, str(each["requests"]), f"{each['load']:.1f}", *cells)
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
