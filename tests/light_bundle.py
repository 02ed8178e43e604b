"""Makes a bundle that loads fast on a CPU: only the variant with the shortest source for each step, and float32
activations.

Tests that are not about kernels need not wait until all of them are compiled. Every variant is correct at every size,
so one variant suffices.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any


def lighten(bundle: Path, *, keep: Collection[str] = ()) -> None:
    """Change the manifest of a bundle. The ops in ``keep`` retain all their variants."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    kept = {step["variants"] for plan in manifest["plans"].values() for step in plan["steps"] if step["op"] in keep}
    manifest["activations"] = [entry for entry in manifest["activations"] if entry["dtype"] == "float32"]
    for name, rows in manifest["variants"].items():
        if name not in kept:
            fitting = [
                row
                for row in rows
                if row["activation"] != "float16" and not row["needs"] and not is_structural(row["when"])
            ]
            files = [[bundle / manifest["kernels"][kernel]["file"] for kernel in row["kernels"]] for row in fitting]
            sizes = [sum(file.stat().st_size for file in each) for each in files]
            manifest["variants"][name] = [{**fitting[sizes.index(min(sizes))], "when": None}]
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def is_structural(condition: Any) -> bool:
    """Returns whether a row with this condition may be wrong for other inputs."""
    return "==" in json.dumps(condition)
