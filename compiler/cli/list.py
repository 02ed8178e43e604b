"""nearfar list: the models of the store."""

from __future__ import annotations

import sys
from datetime import datetime

from rich.markup import escape
from rich.table import Table

from ..store.model import StoredModel
from ..store.store import Store
from .options import List
from .output import megabytes, new_console, print_json
from .program import program

# Digits of a model's id.
ID_DIGITS = 12


def run(options: List) -> None:
    records = list(Store.of_user().records())
    models = sorted(
        (each for each in records if isinstance(each, StoredModel)), key=lambda model: model.modified, reverse=True
    )
    damaged = [each for each in records if not isinstance(each, StoredModel)]
    if options.json:
        print_json({"models": [model_json(model) for model in models], "damaged": [each.message for each in damaged]})
        return
    for each in damaged:
        print(f"note: {each.message}", file=sys.stderr)
    if not models:
        print(f"the store has no models; {program()} pull MODEL gets one")
        return
    table = Table("name", "id", "size", "modified", "made from", box=None, padding=(0, 2), header_style="dim")
    for model in models:
        modified = model.modified.astimezone()
        table.add_row(
            escape(model.name),
            model.digest[:ID_DIGITS],
            megabytes(model.size_bytes),
            datetime.strftime(modified, "%Y-%m-%d %H:%M"),
            escape(model.parent or ""),
        )
    new_console(soft_wrap=True).print(table)


def model_json(model: StoredModel) -> dict[str, object]:
    return {
        "name": model.name,
        "digest": model.digest,
        "size_bytes": model.size_bytes,
        "modified": model.created,
        "parent": model.parent,
        "quantization": model.quantization,
    }
