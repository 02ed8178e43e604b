"""Tuning records: which variant is fastest on one adapter, as a runtime measured it. Files flow in, entries of the manifest flow out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ..errors import RequestError, reason_of
from ..ir.expr import holds
from .manifest import TuningEntry, VariantEntry

# Any values do: a condition is wrong for all of them or for none.
DIMS = dict.fromkeys(("S", "B", "R", "T", "L", "P"), 1)


def read_tuning(files: Iterable[Path]) -> dict[Path, TuningEntry]:
    """Raises RequestError for a file that cannot be read or holds no record, and for two records of one adapter and dtype."""
    entries: dict[Path, TuningEntry] = {}
    for file in files:
        entry = read_file(file)
        same = next((other for other, known in entries.items() if key(known) == key(entry)), None)
        if same is not None:
            name = " ".join(part for part in key(entry) if part)
            raise RequestError(
                f"--tuning {file}: is of the same adapter and dtype as {same} ({name}); give one of them",
                file=str(file),
            )
        entries[file] = entry
    return entries


def check_tuning(entries: Mapping[Path, TuningEntry], variants: Mapping[str, Sequence[VariantEntry]]) -> None:
    """Raise RequestError where a record names a list or a variant that the bundle does not have."""
    for file, entry in entries.items():
        for name, rows in entry.variants.items():
            known = ["+".join(row.kernels) for row in variants.get(name, ())]
            for row in rows:
                if row.variant not in known:
                    what = f"variant '{row.variant}' of '{name}'" if known else f"variants '{name}'"
                    raise RequestError(
                        f"--tuning {file}: {what} is not in this bundle; it is of another model, quantization or release: measure again",
                        file=str(file),
                    )


def read_file(file: Path) -> TuningEntry:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--tuning {file}: cannot be read: {reason_of(error)}; give what engine.exportTuning() returned",
            file=str(file),
        ) from error
    try:
        entry = TuningEntry.model_validate(json.loads(text))
        for row in (row for rows in entry.variants.values() for row in rows):
            holds(row.when, DIMS)
    except (ValueError, TypeError) as error:
        raise RequestError(
            f"--tuning {file}: is no tuning record ({problem_of(error)}); give what engine.exportTuning() returned",
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
