"""Makes a bundle that loads fast on a CPU: only the variant with the shortest source for each step, float32
activations, and no self-test, which takes as long as everything else in a load.

Tests that are not about kernels need not wait until all of them are compiled. Every variant is correct at every size,
so one variant suffices. `few_kernels` does not even lower the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nearfar.compiler.ir.plan import Step
    from nearfar.targets.context import Context
    from nearfar.targets.cpu.levels import Arch
    from nearfar.targets.variant import Variant


@contextmanager
def few_kernels(keep: Collection[str] = ()) -> Iterator[None]:
    """Bundles for webgpu that are compiled inside contain only the last variant of each step for each activation dtype,
    which runs on every device, and all variants of the ops in ``keep``.
    """
    from nearfar.targets.webgpu import lower
    from nearfar.targets.webgpu.variants import variants_of

    def last_variants(step: Step, context: Context) -> tuple[Variant, ...]:
        variants = variants_of(step, context)
        return variants if step.op in keep else tuple({each.activation: each for each in variants}.values())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower, "variants_of", last_variants)
        yield


@contextmanager
def one_compilation() -> Iterator[None]:
    """Bundles for cpu that are compiled inside have kernels for the base level of instruction sets alone, and those for
    cuda have empty cubins: the emulator compiles their source.
    """
    from nearfar.targets.cpu import lower as cpu
    from nearfar.targets.cpu.levels import by_name
    from nearfar.targets.cuda import lower as cuda

    def base_of(name: str | None) -> Arch:
        arch = by_name(name)
        return replace(arch, levels=arch.levels[-1:])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "by_name", base_of)
        patch.setattr(cuda, "compile_cubin", lambda *_: (b"\x7fELF", ""))
        yield


def lighten(bundle: Path, *, keep: Collection[str] = (), self_test: bool = False) -> None:
    """Change the manifest of a bundle. The ops in ``keep`` retain all their variants, and with ``self_test`` it retains
    its self-test.
    """
    manifest = json.loads((bundle / "manifest.json").read_text())
    kept = {step["variants"] for plan in manifest["plans"].values() for step in plan["steps"] if step["op"] in keep}
    manifest["activations"] = [entry for entry in manifest["activations"] if entry["dtype"] == "float32"]
    if not self_test:
        manifest["self_test"] = None
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
