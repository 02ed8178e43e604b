"""Simulations beside what DistServe, Splitwise and Mooncake published.

* DistServe (OSDI 2024), Figure 11a as its repository has it (simdistserve/benchmarks/figure11-abalation/figure/
  figure_11a.json, commit 0bba6065): the share of requests within 200 ms and 100 ms for OPT-13B and ShareGPT, by the
  requests per second and GPU. The figure's own points come from a simulation, too, with the same costs of steps.
* Splitwise (ISCA 2024), section 6.2 and Figure 18: the throughput of clusters of BLOOM-176B that take the same power or
  cost the same, and the splits that it chose for conversations and for code. The clusters are those of its repository
  (github.com/Mutinifni/splitwise-sim, notebooks/plots.ipynb), with a fifth of the machines. A request is in time by
  Table 6: TTFT, TBT and the whole answer are compared with those of the request alone on A100s.
* Mooncake (arXiv 2407.00079), Table 1: the share of blocks that a cache has, by its capacity. With --mooncake FILE, a
  trace of Mooncake's form (github.com/kvcache-ai/Mooncake), which is no part of this repository.

    python tests/bench/bench_simulator_papers.py -o tests/bench/results/simulator-papers.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_compile import ROOT
from rich.console import Console
from rich.table import Table

from nearfar.server_fallback.simulate.chart import Line, chart
from nearfar.server_fallback.simulate.costs import Shape
from nearfar.server_fallback.simulate.layout import Layout
from nearfar.server_fallback.simulate.network import LinkSpeed
from nearfar.server_fallback.simulate.prefixes import PrefixStore
from nearfar.server_fallback.simulate.presets import DEVICES
from nearfar.server_fallback.simulate.request import SimulatedRequest
from nearfar.server_fallback.simulate.run import run
from nearfar.server_fallback.simulate.studies import GoodputSearch
from nearfar.server_fallback.simulate.summary import Bounds, Limit, share_in_time
from nearfar.server_fallback.simulate.trace import read_trace
from nearfar.server_fallback.simulate.workload import Workload

# NVLink of an A100. Splitwise sends the keys and values of a layer while it computes the next one; what it measured
# beside that is a constant (section 6.1).
NVLINK, BESIDE_H100, BESIDE_A100 = LinkSpeed(300e9), LinkSpeed(1e15, 0.005), LinkSpeed(1e15, 0.008)
RATES = (1.0, 2.0, 3.0, 4.0, 5.0)
# Requests for each GPU, as in DistServe's script.
REQUESTS = 100
SEEDS = 4
# In percent, at RATES.
PUBLISHED = {
    "DistServe": (98.3, 89.7, 81.3, 65.3, 49.0),
    "vLLM": (62.0, 49.0, 39.0, 32.0, 19.0),
    "vLLM, 2 GPUs": (95.5, 89.5, 81.0, 62.5, 38.0),
}
DISTSERVE_BOUNDS = Bounds(0.2, 0.1)
# Table 6: the most that TTFT, TBT and the whole answer may be, in times of those of a request alone on A100s, for a
# share of the requests.
SLOWDOWNS = {0.5: (2.0, 1.25, 1.25), 0.9: (3.0, 1.5, 1.5), 0.99: (6.0, 5.0, 5.0)}
SPLITWISE_REQUESTS = 300
# A fifth of the machines: the cluster, whole H100s or A100s, or the prefill and decode workers with their letters; and
# how much more than the first one it delivers, as published.
CLUSTERS: dict[str, tuple[tuple[str, str, float | None], ...]] = {
    "same power, conversations": (
        ("Baseline-A100", "14A", 1.0), ("Baseline-H100", "8H", None), ("Splitwise-AA", "9A+5A", 2.15),
        ("Splitwise-HH", "5H+3H", None), ("Splitwise-HA", "5H+5A", 1.18),
    ),
    "same cost, conversations": (("Baseline-H100", "8H", 1.0), ("Splitwise-AA", "10A+7A", 1.4)),
}  # fmt: skip
# Splits of 8 H100 machines, of which Splitwise chose 25 + 15 of 40 for conversations, and 35 + 5 for code.
SPLITS = {"azure-conversation": "5H+3H", "azure-code": "7H+1H"}
SPLIT_MACHINES = 8
# Table 1, LRUCache: by the blocks that fit.
MOONCAKE = {1000: 0.30, 10_000: 0.40, 30_000: 0.48, 50_000: 0.50, 100_000: 0.51}


def distserve_layouts() -> dict[str, tuple[str, Layout]]:
    """By what is simulated: the curve that was published, and the layout that DistServe's search found."""
    decode = DEVICES["opt-13b-a100"]
    apart = Layout(
        DEVICES["opt-13b-2a100"], prefill=1, decode=1, decode_device=decode, link=NVLINK, first_token="prefill"
    )
    endless = replace(apart, decode_device=replace(decode, cache_tokens=1_000_000))
    return {
        "DistServe, 2 + 1 GPUs": ("DistServe", apart),
        "the same with unlimited memory": ("DistServe", endless),
        "vLLM": ("vLLM", Layout(DEVICES["opt-13b-a100-vllm"], whole=1)),
        "vLLM, 2 GPUs": ("vLLM, 2 GPUs", Layout(DEVICES["opt-13b-2a100-vllm"], whole=1)),
    }


def distserve() -> dict[str, Any]:
    found = {}
    for name, (curve, layout) in distserve_layouts().items():
        shares = []
        for rate in RATES:
            load = workload("sharegpt", rate * layout.gpus, REQUESTS * layout.gpus)
            each = [share_in_time(run(layout, load.make(seed, Path())), DISTSERVE_BOUNDS) for seed in range(SEEDS)]
            shares.append(100 * statistics.mean(each))
        found[name] = {"simulated": shares, "published": PUBLISHED[curve]}
        print(name, [f"{share:.1f}" for share in shares], flush=True)
    return found


def splitwise_layout(workers: str) -> Layout:
    """Of "8H", or "5H+3A"."""
    devices = {"A": DEVICES["bloom-176b-8a100"], "H": DEVICES["bloom-176b-8h100"]}
    parts = [(int(part[:-1]), devices[part[-1]]) for part in workers.split("+")]
    if len(parts) == 1:
        return Layout(parts[0][1], whole=parts[0][0])
    (prefill, device), (decode, decode_device) = parts
    # The slower side has the slower network.
    link = BESIDE_A100 if "A" in workers else BESIDE_H100
    return Layout(device, prefill=prefill, decode=decode, decode_device=decode_device, link=link, first_token="prefill")


def slowdown_limits() -> list[Limit]:
    """All nine."""
    costs = DEVICES["bloom-176b-8a100"].costs

    def first(request: SimulatedRequest) -> float:
        prompt = request.prompt_tokens
        return costs.seconds(Shape(prompt, 1, 0, prompt * (prompt + 1) // 2))

    def between(request: SimulatedRequest) -> float:
        return costs.seconds(Shape(1, 1, request.prompt_tokens + request.output_tokens // 2, 0))

    def limit(most: float, share: float, took: Callable[[SimulatedRequest], float | None], alone: Any) -> Limit:
        return Limit(lambda request: (took(request) or 0.0) <= most * alone(request), share)

    def whole(request: SimulatedRequest) -> float:
        return first(request) + between(request) * (request.output_tokens - 1)

    found = []
    for share, (most_first, most_between, most_whole) in SLOWDOWNS.items():
        found.append(limit(most_first, share, lambda request: request.first_token_seconds, first))
        found.append(limit(most_between, share, lambda request: request.token_seconds, between))
        found.append(limit(most_whole, share, lambda request: request.finish - request.arrival, whole))
    return found


def splitwise_rate(workers: str, lengths: str) -> float:
    """Requests a second within all limits."""
    layout = splitwise_layout(workers)
    machines = layout.whole + layout.prefill + layout.decode
    search = GoodputSearch(layout, workload(lengths, 1.0, SPLITWISE_REQUESTS), slowdown_limits(), seed=1)
    rate = search.find(float(machines)).rate
    print(workers, lengths, f"{rate:.1f}", flush=True)
    return rate


def splitwise() -> dict[str, Any]:
    found: dict[str, Any] = {"clusters": {}, "splits": {}}
    for title, clusters in CLUSTERS.items():
        rates = {name: splitwise_rate(workers, "azure-conversation") for name, workers, _ in clusters}
        base = rates[clusters[0][0]]
        found["clusters"][title] = {
            name: {"workers": workers, "rate": rates[name], "simulated": rates[name] / base, "published": published}
            for name, workers, published in clusters
        }
    for lengths, chosen in SPLITS.items():
        splits = [f"{prefill}H+{SPLIT_MACHINES - prefill}H" for prefill in range(3, SPLIT_MACHINES)]
        rates = {split: splitwise_rate(split, lengths) for split in splits}
        found["splits"][lengths] = {"rates": rates, "published": chosen}
    return found


def mooncake(path: Path) -> dict[str, Any]:
    """The share of the blocks of a trace that a store of the simulator has, by its capacity."""
    rows = read_trace(path)
    prompts = [row.blocks or () for row in rows]
    shares = {str(capacity): hit_rate(prompts, capacity) for capacity in MOONCAKE}
    blocks = len({block for prompt in prompts for block in prompt})
    shares["unlimited"] = hit_rate(prompts, blocks)
    published = {**{str(capacity): share for capacity, share in MOONCAKE.items()}, "unlimited": 0.51}
    return {"requests": len(rows), "blocks": blocks, "simulated": shares, "published": published}


def hit_rate(prompts: Sequence[Sequence[int]], capacity: int) -> float:
    """Each block is a token here, and a page."""
    store = PrefixStore(capacity, page_size=1)
    # A last token is always computed.
    end = -1
    for prompt in prompts:
        store.find([*prompt, end])
        store.put(prompt)
    return store.hits / (store.queries - len(prompts))


def workload(lengths: str, rate: float, requests: int) -> Workload:
    return Workload.model_validate(
        {"arrivals": {"kind": "poisson", "rate": rate}, "requests": requests, "lengths": lengths}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build/bench/simulator-papers.json")
    parser.add_argument("--plot", type=Path, help="an SVG of DistServe's figure with the simulations")
    parser.add_argument("--mooncake", type=Path, metavar="FILE", help="a trace of Mooncake's form")
    parser.add_argument("--only", nargs="+", choices=("distserve", "splitwise", "mooncake"), help="of a stored file")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(options.output.read_text()) if options.only else {"rates": RATES}
    parts: dict[str, Callable[[], Any]] = {"distserve": distserve, "splitwise": splitwise}
    if options.mooncake is not None:
        parts["mooncake"] = lambda: mooncake(options.mooncake)
    for name, part in parts.items():
        if options.only is None or name in options.only:
            found[name] = part()
            options.output.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot is not None:
        options.plot.write_text(drawn(found["distserve"]), encoding="utf-8")
    report(found)


def report(found: dict[str, Any]) -> None:
    console = Console(width=140)
    table = Table(title="share within the bounds by requests a second and GPU, simulated / published, %")
    for column in ("", *map(str, RATES)):
        table.add_column(column, justify="right" if column else "left")
    for name, each in found["distserve"].items():
        pairs = zip(each["simulated"], each["published"], strict=True)
        table.add_row(name, *(f"{said:.0f} / {published:.0f}" for said, published in pairs))
    console.print(table)
    splitwise_found = found.get("splitwise", {"clusters": {}, "splits": {}})
    for title, clusters in splitwise_found["clusters"].items():
        table = Table("cluster", "workers", "requests/s", "simulated", "published", title=f"Splitwise, {title}")
        for name, each in clusters.items():
            published = "-" if each["published"] is None else f"{each['published']:.2f}"
            table.add_row(name, each["workers"], f"{each['rate']:.1f}", f"{each['simulated']:.2f}", published)
        console.print(table)
    for lengths, each in splitwise_found["splits"].items():
        rates = ", ".join(f"{split} {rate:.1f}" for split, rate in each["rates"].items())
        console.print(f"{lengths}: published {each['published']}; requests/s: {rates}", highlight=False)
    if "mooncake" in found:
        each = found["mooncake"]
        table = Table("blocks", "simulated", "published", title=f"Mooncake, {each['requests']} requests")
        for capacity, share in each["simulated"].items():
            table.add_row(capacity, f"{share:.2f}", f"{each['published'][capacity]:.2f}")
        console.print(table)


def drawn(found: dict[str, Any]) -> str:
    lines = []
    for name, (curve, _) in distserve_layouts().items():
        if "memory" not in name:
            lines.append(Line(f"{curve}, published", list(zip(RATES, PUBLISHED[curve], strict=True)), dashed=True))
        lines.append(Line(f"{name}, simulated", list(zip(RATES, found[name]["simulated"], strict=True))))
    title = "OPT-13B on A100s, ShareGPT, within 200 and 100 ms"
    return chart(title, "requests a second and GPU", "requests within the bounds, %", lines)


if __name__ == "__main__":
    main()
