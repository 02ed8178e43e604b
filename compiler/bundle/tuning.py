"""Reads tuning records: the variants that a runtime measured to be fastest on one adapter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ..given_file import read_given_text
from ..ir.expr import holds
from ..runtime.errors import RequestError, reason_of
from .entries import TuningEntry, VariantEntry

# Any values work, because a condition is invalid for all values or for none.
DIMS = dict.fromkeys(("S", "B", "R", "T", "L", "P", "LW", "PW", "DR"), 1)


def read_tuning(files: Iterable[Path]) -> dict[Path, TuningEntry]:
    """Raises RequestError for a file that cannot be read or is not a record, and for two records of one adapter and
    dtype.
    """
    entries: dict[Path, TuningEntry] = {}
    for file in files:
        entry = read_file(file)
        same = next((other for other, known in entries.items() if key(known) == key(entry)), None)
        if same is not None:
            name = " ".join(part for part in key(entry) if part)
            raise RequestError(
                f"--tuning {file}: has the same adapter and dtype as {same} ({name}); pass only one of them",
                file=str(file),
            )
        entries[file] = entry
    return entries


def check_tuning(
    entries: Mapping[Path, TuningEntry], variants: Mapping[str, Sequence[VariantEntry]], activations: Sequence[str]
) -> None:
    """Raise RequestError if a record is for an activation dtype, or names a list or a variant, that the bundle does not
    have.
    """
    for file, entry in entries.items():
        if entry.activation not in activations:
            raise RequestError(
                f"--tuning {file}: was measured with {entry.activation} activations, and the bundle offers "
                f"{', '.join(activations)}; leave it out, or add {entry.activation} to --activations",
                file=str(file),
            )
        for name, tuned in entry.variants.items():
            known = ["+".join(variant.kernels) for variant in variants.get(name, ())]
            for each in tuned:
                if each.variant not in known:
                    what = f"variant '{each.variant}' of '{name}'" if known else f"variants '{name}'"
                    raise RequestError(
                        f"--tuning {file}: {what} is not in this bundle; the record belongs to another model, "
                        "quantization or release, so measure again",
                        file=str(file),
                    )


def read_file(file: Path) -> TuningEntry:
    try:
        text = read_given_text(file)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--tuning {file}: cannot be read: {reason_of(error)}; pass the output of engine.exportTuning()",
            file=str(file),
        ) from error
    try:
        entry = TuningEntry.model_validate(json.loads(text))
        if not any(entry.adapter.model_dump().values()):
            raise ValueError("adapter: the browser named no part of it, so no device could be recognized")
        for each in (each for tuned in entry.variants.values() for each in tuned):
            holds(each.when, DIMS)
    except (ValueError, TypeError) as error:
        raise RequestError(
            f"--tuning {file}: is not a tuning record ({problem_of(error)}); pass the output of engine.exportTuning()",
            file=str(file),
        ) from error
    return entry


def problem_of(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def key(entry: TuningEntry) -> tuple[str, ...]:
    adapter = entry.adapter
    return adapter.vendor, adapter.architecture, adapter.device, adapter.description, entry.activation
