"""nearfar models: show the models that compile, with their sizes and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from rich.markup import escape
from rich.table import Table

from ..measure.model_table import Model, model_table
from ..names import EXPORTS, TARGETS
from ..nearest import did_you_mean
from ..runtime.errors import RequestError
from .options import Models
from .output import megabytes, new_console, print_json

COLUMNS = ("model", "params", "q4f16", "KV, 32k", "steps")


def run(options: Models) -> None:
    if options.json and options.markdown:
        raise RequestError("--json and --markdown exclude each other; remove one of the two options")
    models = model_table()
    if options.family is not None:
        families = list(dict.fromkeys(model.model_type for model in models))
        if options.family not in families:
            meant = did_you_mean(options.family, families)
            raise RequestError(f"model_type {options.family!r} is not one of {', '.join(families)}{meant}")
        models = tuple(model for model in models if model.model_type == options.family)
    if options.json:
        for model in models:
            print_json(asdict(model))
    elif options.markdown:
        print(markdown(models))
    else:
        new_console().print(table(models))


def table(models: Sequence[Model]) -> Table:
    """A row for each model, below one for its family."""
    rows = Table(box=None, pad_edge=False, caption_justify="left", caption=caption(models))
    for column in (*COLUMNS, "exports"):
        rows.add_column(column, justify="left" if column in ("model", "exports") else "right", no_wrap=True)
    for family, members in groupby(models, key=lambda model: model.model_type):
        rows.add_row(f"[bold]{escape(family)}")
        for model in members:
            rows.add_row(escape(f"  {model.name}"), *cells(model), ", ".join(model.exports or ()))
    return rows


def caption(models: Sequence[Model]) -> str:
    text = (
        f"All compile for {', '.join(TARGETS)}, and so do other sizes and finetunes of these families.\n"
        "KV, 32k: keys and values of 32,768 tokens in float16, or of the longest context.\n"
        "steps: of the plan for WebGPU, for one token."
    )
    if any(model.exports is None for model in models):
        text += f"\nInstall nearfar\\[onnx] to see which also compile for {' and '.join(EXPORTS)}."
    return text


def cells(model: Model) -> tuple[str, ...]:
    sizes = (megabytes(size).replace(".0 ", " ") for size in (model.weight_bytes, model.kv_bytes))
    return (f"{model.parameters / 1e9:.2f} B", *sizes, str(model.steps_per_token))


def mark(target: str, models: Sequence[Model]) -> str:
    """Whether all, some or none of the models compile for a target."""
    compiles = [target in model.targets for model in models]
    return "yes" if all(compiles) else "some" if any(compiles) else "no"


def markdown(models: Sequence[Model]) -> str:
    """A row for each family, with its published models and a column for each target."""
    header = ("`model_type`", "published models whose shapes were compiled", *TARGETS, *EXPORTS)
    rows = [header, ("---",) * len(header)]
    for family, group in groupby(models, key=lambda model: model.model_type):
        members = list(group)
        names = ", ".join(f"{model.name} ({model.parameters / 1e9:.2g} B)" for model in members)
        rows.append((f"`{family}`", names, *(mark(target, members) for target in header[2:])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    rows[1] = tuple("-" * width for width in widths)
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    )
