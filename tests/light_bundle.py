"""A bundle that loads fast on a CPU: the variant with the least source for each step, and float32 activations only.

Tests that are not about kernels need not wait for all of them to compile: every variant is right at every size, so one of each suffices.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any


def lighten(bundle: Path, *, keep: Collection[str] = ()) -> None:
    """Change the manifest of a bundle. All variants of the ops in ``keep`` stay."""
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
    """Whether a row with this condition may be wrong elsewhere."""
    return "==" in json.dumps(condition)
