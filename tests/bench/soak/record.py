"""Records runs of one attack each, for the README: ``python -m soak.record RESULTS NAME=SOAK_JSON ...``.

RESULTS is a JSON file: the machine, and for each name the seconds of honest answers alone and beside the attack, and
of `/health/live`. A name is an attack and what was attacked, such as ``queue-after``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_compile import machine


def row_of(found: Mapping[str, Any]) -> dict[str, object]:
    """The figures of one soak.json. All seconds have two digits, or are null if nothing was answered."""
    baseline, attacked = found["phases"]["baseline"], found["phases"]["attacked"]
    return {
        "answers": attacked["compared"],
        "p50_before": _seconds(baseline["p50_seconds"]),
        "p99_before": _seconds(baseline["p99_seconds"]),
        "p50": _seconds(attacked["p50_seconds"]),
        "p99": _seconds(attacked["p99_seconds"]),
        "live": _seconds(max(found["liveness"]["longest_seconds"])),
        "statuses": {name: attack["statuses"] for name, attack in found["attacks"].items()},
        "came_through": sum(len(attack["findings"]) for attack in found["attacks"].values()),
    }


def _seconds(value: float) -> float | None:
    return None if value != value else round(value, 2)


def main() -> None:
    results, *runs = sys.argv[1:]
    pairs = (run.split("=", 1) for run in runs)
    rows = {name: row_of(json.loads(Path(file).read_text())) for name, file in pairs}
    Path(results).write_text(json.dumps({"machine": machine(), "runs": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
