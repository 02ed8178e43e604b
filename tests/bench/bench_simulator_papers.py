"""Simulations beside what DistServe and Splitwise published.

* DistServe (OSDI 2024), Figure 11a as its repository has it (simdistserve/benchmarks/figure11-abalation/figure/
  figure_11a.json, commit 0bba6065): the share of requests within 200 ms and 100 ms for OPT-13B and ShareGPT, by the
  requests per second and GPU. The figure's own points come from a simulation, too, with the same costs of steps.
* Splitwise (ISCA 2024): the goodput of machines with 8 H100 against splits of which the decode workers have H100 or
  A100, with the costs that it measured. No number of a figure is compared: none was found as text.

    python tests/bench/bench_simulator_papers.py -o tests/bench/results/simulator-papers.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_compile import ROOT
from rich.console import Console
from rich.table import Table

from nearfar.server_fallback.simulate.chart import Line, chart
from nearfar.server_fallback.simulate.layout import Layout
from nearfar.server_fallback.simulate.network import LinkSpeed
from nearfar.server_fallback.simulate.presets import DEVICES
from nearfar.server_fallback.simulate.run import run
from nearfar.server_fallback.simulate.studies import goodput
from nearfar.server_fallback.simulate.summary import Bounds, share_in_time
from nearfar.server_fallback.simulate.workload import Workload

# NVLink of an A100, and InfiniBand of Splitwise's machines.
NVLINK, INFINIBAND = LinkSpeed(300e9), LinkSpeed(50e9)
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
SPLITWISE_BOUNDS = Bounds(1.0, 0.1)
MACHINES = 4


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


def splitwise() -> dict[str, float]:
    """Requests a second within the bounds, of MACHINES machines."""
    new, old = DEVICES["llama2-70b-8h100"], DEVICES["llama2-70b-8a100"]
    load = workload("azure-conversation", 1.0, 800)
    layouts = {"4 whole, H100": Layout(new, whole=MACHINES)}
    for prefill in range(1, MACHINES):
        for name, device in (("H100", new), ("A100", old)):
            layouts[f"{prefill} prefill H100 + {MACHINES - prefill} decode {name}"] = Layout(
                new, prefill=prefill, decode=MACHINES - prefill, decode_device=device, link=INFINIBAND,
                first_token="prefill",
            )  # fmt: skip
    found = {}
    for name, layout in layouts.items():
        found[name] = goodput(layout, load, SPLITWISE_BOUNDS, 1, near_rate=16.0).rate
        print(name, f"{found[name]:.1f}", flush=True)
    return found


def workload(lengths: str, rate: float, requests: int) -> Workload:
    return Workload.model_validate(
        {"arrivals": {"kind": "poisson", "rate": rate}, "requests": requests, "lengths": lengths}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build/bench/simulator-papers.json")
    parser.add_argument("--plot", type=Path, help="an SVG of DistServe's figure with the simulations")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"rates": RATES, "distserve": distserve()}
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot is not None:
        options.plot.write_text(drawn(found["distserve"]), encoding="utf-8")
    found["splitwise"] = splitwise()
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    table = Table(title="share within the bounds by requests a second and GPU, simulated / published, %")
    for column in ("", *map(str, RATES)):
        table.add_column(column, justify="right" if column else "left")
    for name, each in found["distserve"].items():
        pairs = zip(each["simulated"], each["published"], strict=True)
        table.add_row(name, *(f"{said:.0f} / {published:.0f}" for said, published in pairs))
    Console(width=140).print(table)


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
