"""Makes a bundle that loads fast on a CPU: only the variant with the shortest source for each step, and float32
activations.

Tests that are not about kernels need not wait until all of them are compiled. Every variant is correct at every size,
so one variant suffices. `few_kernels` does not even lower the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nearfar.compiler.ir.plan import Step
    from nearfar.targets.context import Context
    from nearfar.targets.variant import Variant


@contextmanager
def few_kernels() -> Iterator[None]:
    """Bundles for webgpu that are compiled inside contain only the last variant of each step for each activation dtype,
    which runs on every device.
    """
    from nearfar.targets.webgpu import lower

    variants_of = lower.variants_of

    def last_variants(step: Step, context: Context) -> tuple[Variant, ...]:
        return tuple({variant.activation: variant for variant in variants_of(step, context)}.values())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower, "variants_of", last_variants)
        yield


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
