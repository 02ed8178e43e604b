"""Compares what a probe predicts with what the model then does: the time to the first token and tokens per second, on
Dawn in Node with Vulkan drivers for CPUs, all of them and one core alone. Prints a JSON object for each.

The answers are timed by the functions of the bench page (web/page/measure.ts). Rounds alternate between both, because
other programs change a machine's speed; the medians over rounds are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench_page import ROOT, narrow_bundle

DRIVERS = {
    "SwiftShader": Path("/usr/lib/chromium/vk_swiftshader_icd.json"),
    "lavapipe": Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"),
}
WITHIN = 0.25
ROUNDS = 3
CORE = ("taskset", "-c", "0")
ARGUMENTS = ("--prompts", "16,64,256", "--contexts", "16,256", "--tokens", "24", "--runs", "2")


def main() -> None:
    bundle = Path(sys.argv[1]) if len(sys.argv) > 1 else narrow_bundle()
    for driver, file in DRIVERS.items():
        if not file.exists():
            print(json.dumps({"driver": driver, "skipped": f"{file} is missing"}))
            continue
        for cores, prefix in (("all", ()), ("one", CORE)):
            rounds = run(bundle, file, prefix)
            if isinstance(rounds, str):
                print(json.dumps({"driver": driver, "cores": cores, "failed": rounds}), flush=True)
                continue
            print(json.dumps({"driver": driver, "cores": cores, **compared(rounds)}), flush=True)


def run(bundle: Path, driver: Path, prefix: tuple[str, ...]) -> list[dict[str, Any]] | str:
    """A round's report and measurements, for each round; or why there are none."""
    command = [*prefix, "node", "dist/tools/bench_probe.js", str(bundle), "--rounds", str(ROUNDS), *ARGUMENTS]
    environment = {**os.environ, "VK_ICD_FILENAMES": str(driver)}
    done = subprocess.run(command, cwd=ROOT / "web", env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return [json.loads(line) for line in done.stdout.splitlines()]


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
            [each["decode"][index]["tokens_per_second"] for each in rounds],
            [(each["low"], each["high"]) for each in predicted],
        )
    return {
        "adapter": rounds[0]["report"]["device"]["adapter"]["description"],
        "layers": rounds[0]["report"]["model"],
        "probe_ms": round(median(each["report"]["probe_ms"] for each in rounds)),
        "bytes_read": rounds[0]["report"]["bytes_read"],
        "results": found,
        "within_25_percent": sum(abs(each["error"]) <= WITHIN for each in found.values()),
        "of": len(found),
    }


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
