"""`make gpu-static`: prints each kernel's figures on every GPU, writes them to a file, and compares them with the
budget.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.runtime.errors import NearfarError, RequestError

from .budget import FILE, Budget, excesses, read_budget, write_budget
from .devices import DEVICES
from .measure import Figures, OfBundle, make_bundles, measure
from .packages import prepare, print_progress

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, help="a bundle for webgpu of your own, which has no budget")
    parser.add_argument("--only", default="", help="a regular expression; only kernels that match are printed")
    parser.add_argument("--record", action="store_true", help="write the budget")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/gpu-static", help="folder for the compilers")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-static.json", help="file for the figures")
    options = parser.parse_args()
    if options.record and options.bundle:
        parser.error("--record writes the budget of the models that it names, so --bundle cannot be recorded")
    folder = options.folder.resolve()
    try:
        compilers = prepare(folder, print_progress)
        bundles = own_bundle(options.bundle) if options.bundle else make_bundles(folder / "bundles", print_progress)
        measured = measure(compilers, bundles, folder / "spirv", print_progress)
    except NearfarError as error:
        print(error.message, file=sys.stderr)
        return 2
    for bundle, kernels in measured.items():
        print_table(bundle, {label: each for label, each in kernels.items() if re.search(options.only, label)})
    of_all = {
        bundle: {label: {name: asdict(each) for name, each in devices.items()} for label, devices in kernels.items()}
        for bundle, kernels in measured.items()
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"versions": compilers.versions, "bundles": of_all}, indent=1))
    if options.bundle:
        return 0
    if options.record:
        write_budget(Budget(compilers.versions, measured))
    budget = read_budget()
    if budget.versions != compilers.versions:
        print(f"{FILE.name} is that of {budget.versions}, and these are {compilers.versions}: record it again")
    found = excesses(budget.bundles, measured)
    print("\n".join(found) or "every kernel is within its budget")
    return 1 if found else 0


def own_bundle(folder: Path) -> dict[Path, Manifest]:
    manifest = open_bundle(folder).manifest
    if manifest.target != "webgpu":
        raise RequestError(f"gpu-static: {folder} is a bundle for {manifest.target}; pass one for webgpu")
    return {folder.resolve(): manifest}


def print_table(bundle: str, kernels: OfBundle) -> None:
    table = Table(title=f"{bundle}: occupancy / registers / instructions (for each weight); spills in red")
    table.add_column("kernel")
    for device in DEVICES:
        table.add_column(f"{device.name}\n{device.full} {device.unit}", justify="right")
    for label, devices in kernels.items():
        table.add_row(label, *(cell(devices[device.name]) for device in DEVICES))
    Console(width=230).print(table)


def cell(figures: Figures) -> str:
    instructions = figures.instructions if figures.per_weight is None else f"{figures.per_weight:.1f}"
    spills = f" [red]{figures.spills}[/]" if figures.spills else ""
    return f"{figures.occupancy} / {figures.registers} / {instructions}{spills}"


if __name__ == "__main__":
    sys.exit(main())
