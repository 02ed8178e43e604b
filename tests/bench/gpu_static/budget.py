"""The budget: the figures of every kernel that a change must not make worse, with the compilers' versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .devices import DEVICES
from .measure import Figures, OfBundle

FILE = Path(__file__).with_name("budget.json")
# The least occupancy of a kernel on each GPU, because any variant may run before a tuner has measured it.
LEAST = {device.name: device.full // 4 for device in DEVICES}
# Decode attention of seven and eight heads, and over pages of integers, keeps each key's score of every head and the
# results in registers, up to all 256 of a thread, so that a key is loaded once. With half the keys, half the registers
# are free (the small sizes), and the kernel takes 1.0 to 1.6 times as long on lavapipe; a tuner decides.
LEAST_DECODE, DECODE = {device.name: device.full // 8 for device in DEVICES}, ("attention_decode", "attention_few_rows")
# The order of a kernel's numbers in the file, and the key of the GPUs that take it only after tuning.
FIELDS, TUNED = ("occupancy", "registers", "spills", "instructions", "per_weight"), "tuned"


@dataclass(frozen=True, slots=True)
class Budget:
    """With compilers of other versions than ``versions``, figures differ for reasons that are not the kernels'."""

    versions: Mapping[str, str]
    bundles: Mapping[str, OfBundle]


def read_budget() -> Budget:
    stored = json.loads(FILE.read_text())
    bundles = {
        bundle: {
            label: {
                device: Figures(**dict(zip(FIELDS, each, strict=False)), tuned=device in devices.get(TUNED, ()))
                for device, each in devices.items()
                if device != TUNED
            }
            for label, devices in kernels.items()
        }
        for bundle, kernels in stored["bundles"].items()
    }
    return Budget(stored["versions"], bundles)


def write_budget(budget: Budget) -> None:
    """One line for each kernel, so that a change of one is a change of a line."""
    blocks = []
    for bundle, kernels in budget.bundles.items():
        rows = []
        for label, devices in kernels.items():
            numbers: dict[str, list[Any]] = {
                device: [value for name in FIELDS if (value := getattr(figures, name)) is not None]
                for device, figures in devices.items()
            }
            tuned = [device for device, figures in devices.items() if figures.tuned]
            if tuned:
                numbers[TUNED] = tuned
            rows.append(f"   {json.dumps(label)}: {json.dumps(numbers, separators=(',', ':'))}")
        blocks.append(f"  {json.dumps(bundle)}: {{\n" + ",\n".join(rows) + "\n  }")
    text = f' "versions": {json.dumps(dict(budget.versions))},\n "bundles": {{\n' + ",\n".join(blocks) + "\n }"
    FILE.write_text(f"{{\n{text}\n}}\n")


def excesses(budget: Mapping[str, OfBundle], measured: Mapping[str, OfBundle]) -> list[str]:
    """Every kernel that spills where a GPU takes it before a tuner has measured, that is worse than its budget or has
    too low an occupancy, and every kernel that only one of both has.
    """
    found = []
    for bundle, kernels in measured.items():
        known = budget.get(bundle, {})
        found += [f"{bundle}: {label} is no longer a kernel" for label in known.keys() - kernels.keys()]
        for label, devices in kernels.items():
            for device, figures in devices.items():
                where, before = f"{bundle}: {label} on {device}", known.get(label, {}).get(device)
                if figures.spills and not figures.tuned:
                    found.append(f"{where}: {figures.spills} spills, and such GPUs run it before a tuner has measured")
                least = (LEAST_DECODE if label.startswith(DECODE) else LEAST)[device]
                if figures.occupancy < least:
                    found.append(f"{where}: occupancy {figures.occupancy}, at least {least} are needed")
                if before is None:
                    found.append(f"{where} is not in the budget")
                    continue
                if figures.spills > before.spills:
                    found.append(f"{where}: {figures.spills} spills, were {before.spills}")
                if figures.occupancy < before.occupancy:
                    found.append(f"{where}: occupancy {figures.occupancy}, was {before.occupancy}")
                if (figures.per_weight or 0) > (before.per_weight or 0):
                    found.append(f"{where}: {figures.per_weight} instructions a weight, were {before.per_weight}")
    return sorted(found)
