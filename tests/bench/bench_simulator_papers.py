"""Simulations beside what DistServe, Splitwise and Mooncake published.

* DistServe (OSDI 2024), Figure 11a as its repository has it (simdistserve/benchmarks/figure11-abalation/figure/
  figure_11a.json, commit 0bba6065): the share of requests within 200 ms and 100 ms for OPT-13B and ShareGPT, by the
  requests per second and GPU. The figure's own points come from a simulation, too, with the same costs of steps.
* Splitwise (ISCA 2024), sections 6.2 and 6.3 and Figure 18: the throughput of clusters of BLOOM-176B that take the same
  power or cost the same, with conversations. The clusters are those of its repository
  (github.com/Mutinifni/splitwise-sim, notebooks/plots.ipynb), with a fifth of the machines. A request is in time by
  Table 6: TTFT, TBT and the whole answer are compared with those of the request alone on A100s. The prefill and decode
  machines keep their roles, or change them while they run (`mixed_pool`), as in the paper. Steps that decode cost what
  was measured for as many sequences, or what splitwise-sim takes them to cost, which is about the same for 1 and 127
  sequences: it looks up the times of its table by the tokens of whole prompts (performance_model.py).
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
from nearfar.server_fallback.simulate.costs import Shape, StepCosts
from nearfar.server_fallback.simulate.device import Device
from nearfar.server_fallback.simulate.layout import Layout
from nearfar.server_fallback.simulate.mixed_pool import MixedPool
from nearfar.server_fallback.simulate.network import LinkSpeed
from nearfar.server_fallback.simulate.prefixes import PrefixStore
from nearfar.server_fallback.simulate.presets import DEVICES
from nearfar.server_fallback.simulate.request import SimulatedRequest
from nearfar.server_fallback.simulate.run import run
from nearfar.server_fallback.simulate.studies import PRECISION, GoodputSearch
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
# At 10 requests a second, the two minutes of a trace of section 4.4.
SPLITWISE_REQUESTS = 1200
# A fifth of the machines: whole H100s or A100s, or the prefill and decode workers with their letters.
CLUSTERS: dict[str, dict[str, str]] = {
    "same power": {
        "Baseline-A100": "14A", "Baseline-H100": "8H", "Splitwise-AA": "9A+5A",
        "Splitwise-HA": "5H+5A",
    },
    "same cost": {"Baseline-H100": "8H", "Splitwise-AA": "10A+7A"},
}  # fmt: skip
# How much more one cluster delivers than another one, as published. The paper does not say what the 10 % lower cost of
# Splitwise-HA refers to; by the repository's prices it costs less than Baseline-H100, and more than Baseline-A100.
RATIOS = (
    ("same power", "Splitwise-AA", "Baseline-A100", 2.15),
    ("same power", "Splitwise-HA", "Baseline-H100", 1.18),
    ("same cost", "Splitwise-AA", "Baseline-H100", 1.4),
)
COSTS = ("measured", "splitwise-sim")
ROLES: dict[str, MixedPool | None] = {"fixed": None, "changing": MixedPool()}
# Milliseconds of steps that decode 1 and 127 sequences, as splitwise-sim extrapolates them from the medians of its
# table for 128 and 256 tokens; and of a prompt of 128 tokens. Here, steps of 128 positions and more contain prompts.
FLAT = {"A": (47.51, 47.61, 79.7), "H": (35.33, 35.74, 48.3)}
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


def splitwise_device(letter: str, costs: str) -> Device:
    device = DEVICES[f"bloom-176b-8{letter.lower()}100"]
    if costs == "measured":
        return device
    flat = tuple((count, cost / 1000) for count, cost in zip((1.0, 127.0, 128.0), FLAT[letter], strict=True))
    return replace(device, costs=StepCosts((*flat, *(knot for knot in device.costs.knots if knot[0] > 128))))


def splitwise_layout(workers: str, costs: str, roles: str) -> Layout:
    """Of "8H", or "5H+3A"."""
    parts = [(int(part[:-1]), splitwise_device(part[-1], costs)) for part in workers.split("+")]
    if len(parts) == 1:
        return Layout(parts[0][1], whole=parts[0][0])
    (prefill, device), (decode, decode_device) = parts
    # The slower side has the slower network.
    link = BESIDE_A100 if "A" in workers else BESIDE_H100
    return Layout(
        device, prefill=prefill, decode=decode, decode_device=decode_device, link=link, first_token="prefill",
        mixed_pool=ROLES[roles],
    )  # fmt: skip


def slowdown_limits() -> dict[str, Limit]:
    """All nine, by their names."""
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

    found = {}
    for share, (most_first, most_between, most_whole) in SLOWDOWNS.items():
        name = f"p{100 * share:.0f}"
        found[f"{name} TTFT"] = limit(most_first, share, lambda request: request.first_token_seconds, first)
        found[f"{name} TBT"] = limit(most_between, share, lambda request: request.token_seconds, between)
        found[f"{name} E2E"] = limit(most_whole, share, lambda request: request.finish - request.arrival, whole)
    return found


def splitwise_rate(workers: str, costs: str, roles: str) -> dict[str, Any]:
    """Requests a second within all limits; and for the next higher rate, the limits that do not hold and how often
    workers changed roles.
    """
    layout = splitwise_layout(workers, costs, roles)
    machines = layout.whole + layout.prefill + layout.decode
    load = workload("azure-conversation", 1.0, SPLITWISE_REQUESTS)
    limits = slowdown_limits()
    rate = GoodputSearch(layout, load, list(limits.values()), seed=1).find(float(machines)).rate
    above = run(layout, load.at_rate(rate * (1 + PRECISION)).make(1, Path()))
    missed = [
        name
        for name, limit in limits.items()
        if sum(limit.holds(request) for request in above.requests) < limit.share * len(above.requests)
    ]
    changes = None if above.cluster.pools is None else above.cluster.pools.changes
    print(workers, costs, roles, f"{rate:.1f}", missed, changes, flush=True)
    return {"rate": rate, "missed_above": missed, "role_changes_above": changes}


def splitwise() -> dict[str, Any]:
    """For each cluster, what it delivers by the costs and the roles; whole machines have no roles."""
    known: dict[tuple[str, str, str], Any] = {}
    found: dict[str, Any] = {"requests": SPLITWISE_REQUESTS, "clusters": {}, "ratios": []}
    for title, clusters in CLUSTERS.items():
        found["clusters"][title] = {}
        for name, workers in clusters.items():
            rates: dict[str, dict[str, Any]] = {}
            for costs in COSTS:
                for roles in ROLES if "+" in workers else ("fixed",):
                    key = (workers, costs, roles)
                    if key not in known:
                        known[key] = splitwise_rate(*key)
                    rates.setdefault(costs, {})[roles] = known[key]
            found["clusters"][title][name] = {"workers": workers, "rates": rates}
    for title, name, baseline, published in RATIOS:
        rates, base = (found["clusters"][title][each]["rates"] for each in (name, baseline))
        simulated = {
            costs: {roles: each["rate"] / base[costs]["fixed"]["rate"] for roles, each in rates[costs].items()}
            for costs in COSTS
        }
        found["ratios"].append(
            {"clusters": title, "of": name, "to": baseline, "published": published, "simulated": simulated}
        )
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
    if "splitwise" in found:
        report_splitwise(found["splitwise"], console)
    if "mooncake" in found:
        each = found["mooncake"]
        table = Table("blocks", "simulated", "published", title=f"Mooncake, {each['requests']} requests")
        for capacity, share in each["simulated"].items():
            table.add_row(capacity, f"{share:.2f}", f"{each['published'][capacity]:.2f}")
        console.print(table)


def report_splitwise(found: dict[str, Any], console: Console) -> None:
    variants = [(costs, roles) for costs in COSTS for roles in ROLES]
    columns = [f"{costs}, {roles}" for costs, roles in variants]
    for title, clusters in found["clusters"].items():
        table = Table(
            "cluster",
            "machines",
            *columns,
            title=f"Splitwise, {title}: requests/s by costs and roles; above, these limits fail",
        )
        for name, each in clusters.items():
            rates = [each["rates"][costs].get(roles) for costs, roles in variants]
            table.add_row(
                name,
                each["workers"],
                *("-" if rate is None else f"{rate['rate']:.1f}; {', '.join(rate['missed_above'])}" for rate in rates),
            )
        console.print(table)
    table = Table("ratio", "published", *columns, title="Splitwise: simulated and published ratios")
    for each in found["ratios"]:
        ratios = [f"{each['simulated'][costs][roles]:.2f}" for costs, roles in variants]
        table.add_row(f"{each['clusters']}: {each['of']} / {each['to']}", f"{each['published']:.2f}", *ratios)
    console.print(table)


def drawn(found: dict[str, Any]) -> str:
    lines = []
    for name, (curve, _) in distserve_layouts().items():
        if "memory" not in name:
            lines.append(Line(f"{curve}, published", list(zip(RATES, PUBLISHED[curve], strict=True)), dashed=True))
        points = list(zip(RATES, found[name]["simulated"], strict=True))
        lines.append(Line(f"{name}, simulated", points, like=None if "memory" in name else f"{curve}, published"))
    title = "OPT-13B on A100s, ShareGPT\nfirst token within 200 ms, further ones within 100 ms each"
    return chart(title, "requests a second and GPU", "requests within the bounds, %", lines)


if __name__ == "__main__":
    main()
