"""Compares what a probe predicts with what the model then does: the time to the first token and tokens per second, of
the demo model and of a random one with SmolLM2-135M's shapes, and the time for texts of the demo encoder, on Dawn in
Node with Vulkan drivers for CPUs, on all cores and on one alone, and in the bench page in Chromium, as it is and with
its thread made four times slower. Prints a JSON object for each, and writes all of them into results/probe.json with
``--write``.

The answers are timed by the functions of the bench page (web/page/measure.ts). Rounds alternate between both, because
other programs change a machine's speed; the medians over rounds are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from bench_page import FOLDER, ROOT, bench_page, compiled
from checkpoints import Shapes

from nearfar.compiler.demo import DEMOS
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

DRIVERS = {
    "SwiftShader": Path("/usr/lib/chromium/vk_swiftshader_icd.json"),
    "lavapipe": Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"),
}
# A newer Mesa than the system's: the path of its lvp_icd.json.
LAVAPIPE = "NEARFAR_LAVAPIPE"
# By name, the rates by which DevTools slows the page's thread; it leaves Chromium's process of the GPU as it is.
CHROMIUM = {"Chromium": 1, "throttled": 4}
WITHIN = 0.25
# Tokens; more than an engine queues at once.
WINDOW = 10
SMOLLM2_135M = Shapes(
    "SmolLM2-135M",
    {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536, "tie_word_embeddings": True,
        "rope_theta": 100000.0, "rms_norm_eps": 1e-05, "max_position_embeddings": 8192, "hidden_act": "silu",
    },
)  # fmt: skip
RESULTS = Path(__file__).parent / "results/probe.json"
CORE = ("taskset", "-c", "0")
COMPILED: dict[str, Path] = {}
# By model: the demo model's rounds take seconds, those of the other one minutes on SwiftShader. An engine queues more
# and more steps in its first 24 tokens, which on a fast device are slower than the rest.
SIZES: dict[str, dict[str, Any]] = {
    "demo": {"prompts": [16, 64, 256], "contexts": [16, 256], "tokens": 96, "runs": 2},
    "demo-encoder": {"prompts": [16], "contexts": [16], "tokens": 1, "runs": 3},
    "SmolLM2-135M": {"prompts": [16, 64], "contexts": [16], "tokens": 12, "runs": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="demo,demo-encoder,SmolLM2-135M")
    parser.add_argument("--drivers", default=",".join((*DRIVERS, *CHROMIUM)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of a busy machine: cpu")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = []
    for model, driver in product(options.models.split(","), options.drivers.split(",")):
        for cores in ("all",) if driver in CHROMIUM else ("all", "one"):
            clock = "wall" if driver in CHROMIUM else options.clock
            row = {"model": model, "driver": driver, "cores": cores, "clock": clock, "load": os.getloadavg()[0]}
            rounds: list[dict[str, Any]] | str
            if driver in CHROMIUM:
                rounds = run_in_page(model, CHROMIUM[driver], options.rounds)
            else:
                rounds = run(model, driver_file(driver), CORE if cores == "one" else (), clock, options.rounds)
            rows.append({**row, **({"failed": rounds} if isinstance(rounds, str) else compared(rounds))})
            print(json.dumps(rows[-1]), flush=True)
    if options.write:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def driver_file(driver: str) -> Path:
    return Path(os.environ[LAVAPIPE]) if driver == "lavapipe" and LAVAPIPE in os.environ else DRIVERS[driver]


def bundle_of(model: str) -> Path:
    """The bundle, compiled once in a run."""
    if model in COMPILED:
        return COMPILED[model]
    if model in DEMOS:
        bundle = FOLDER / f"{model}-bundle"
        compile_model(str(DEMOS[model]), bundle, CompileOptions(force=True))
    else:
        bundle = compiled(SMOLLM2_135M, 2048)
    return COMPILED.setdefault(model, bundle)


def run(model: str, driver: Path, prefix: tuple[str, ...], clock: str, rounds: int) -> list[dict[str, Any]] | str:
    """A round's report and measurements, for each round; or why there are none."""
    if not driver.exists():
        return f"{driver} is missing; set {LAVAPIPE}"
    sizes = [
        argument
        for name, value in SIZES[model].items()
        for argument in (f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value))
    ]
    command = [
        *prefix, "node", "dist/tools/bench_probe.js", str(bundle_of(model)), "--rounds", str(rounds),
        "--clock", clock, *sizes,
    ]  # fmt: skip
    environment = {**os.environ, "VK_ICD_FILENAMES": str(driver)}
    done = subprocess.run(command, cwd=ROOT / "web", env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["ended without a message"])[-1]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_in_page(model: str, rate: int, rounds: int) -> list[dict[str, Any]]:
    """As ``run``, in one session of the bench page, whose thread is ``rate`` times slower."""
    with bench_page(bundle_of(model), gpu=False) as page:
        page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": rate})
        return [page.evaluate("(sizes) => nearfarBench.probeRound(sizes)", SIZES[model]) for _ in range(rounds)]


def compared(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of predicted and measured values, by what they are, and whether the interval holds the measured."""
    found: dict[str, Any] = {}
    for index, row in enumerate(rounds[0]["prefill"]):
        tokens = row["prompt_tokens"]
        found[f"first token behind {tokens}, ms"] = side_by_side(
            [1000 * each["report"]["first_token"][index]["seconds"] for each in rounds],
            [each["prefill"][index]["time_to_first_token_ms"] for each in rounds],
            [scaled(each["report"]["first_token"][index], 1000) for each in rounds],
        )
    for index, row in enumerate(rounds[0]["decode"]):
        predicted = [nearest(each["report"]["decode"], row["prompt_tokens"]) for each in rounds]
        found[f"tokens per second behind {row['prompt_tokens']}"] = side_by_side(
            [each["tokens_per_second"] for each in predicted],
            [undisturbed(each["decode"][index]["milliseconds"]) for each in rounds],
            [(each["low"], each["high"]) for each in predicted],
        )
    for index, row in enumerate(rounds[0]["encode"]):
        found[f"{row['texts']} texts of {row['tokens']} tokens, ms"] = side_by_side(
            [1000 * each["report"]["encode"][index]["seconds"] for each in rounds],
            [each["encode"][index]["milliseconds"] for each in rounds],
            [scaled(each["report"]["encode"][index], 1000) for each in rounds],
        )
    return {
        "adapter": rounds[0]["report"]["device"]["adapter"]["description"],
        "probe_ms": round(median(each["report"]["probe_ms"] for each in rounds)),
        "bytes_read": rounds[0]["report"]["bytes_read"],
        "results": found,
        "within_25_percent": sum(abs(each["error"]) <= WITHIN for each in found.values()),
        "of": len(found),
    }


def undisturbed(milliseconds: list[float]) -> float:
    """Tokens per second, by the median of windows: other programs take some milliseconds of a short answer, and tokens
    that were queued together arrive together.
    """
    count = max(1, len(milliseconds) // WINDOW)
    windows = [milliseconds[index * WINDOW :][:WINDOW] for index in range(count)]
    return 1000 / median(sum(window) / len(window) for window in windows)


def scaled(bounds: Mapping[str, float], factor: float) -> tuple[float, float]:
    return bounds["low"] * factor, bounds["high"] * factor


def nearest(decode: list[dict[str, float]], context: int) -> dict[str, float]:
    return min(decode, key=lambda each: abs(each["context"] - context))


def side_by_side(predicted: list[float], measured: list[float], bounds: list[tuple[float, float]]) -> dict[str, Any]:
    one, other = median(predicted), median(measured)
    low, high = median(bound[0] for bound in bounds), median(bound[1] for bound in bounds)
    return {
        "predicted": round(one, 2),
        "measured": round(other, 2),
        "error": round(one / other - 1, 3),
        "in_interval": low <= other <= high,
    }


if __name__ == "__main__":
    main()
