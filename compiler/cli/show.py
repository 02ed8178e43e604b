"""nearfar show: a model of the store: where it comes from, and what requests to it inherit."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape
from rich.table import Table

from ..store.bundles import compiled_from
from ..store.model import Demo, Files, StoredModel
from ..store.store import Store
from .list import ID_DIGITS, model_json
from .options import Show
from .output import megabytes, new_console, print_json


def run(options: Show) -> None:
    """Raises UnknownModel, and CheckpointError for damaged files."""
    store = Store.of_user()
    model = store.get(options.model)
    if options.verify:
        store.verify(model)
    path = store.path(model)
    bundles = [] if model.is_bundle else compiled_from(path)
    if options.json:
        inherits = model.model_dump(mode="json", include={"system", "template", "parameters", "messages", "license"})
        print_json({**model_json(model), **inherits, "path": str(path), "bundles": [str(each) for each in bundles]})
        return
    table = Table(box=None, padding=(0, 2), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, text in rows(model, path, bundles):
        table.add_row(f"[dim]{name}[/]", escape(text))
    new_console(soft_wrap=True, highlight=False).print(table)


def rows(model: StoredModel, path: Path, bundles: list[Path]) -> list[tuple[str, str]]:
    """Names and texts, without what the model does not have."""
    kind = "bundle" if model.is_bundle else "checkpoint"
    found = [
        ("name", model.name),
        ("id", model.digest[:ID_DIGITS]),
        ("made from", model.parent or ""),
        (kind, f"{path}  {megabytes(model.size_bytes)}"),
        ("from", source_of(model)),
        ("family", model.details.family),
        ("parameters", count_text(model.details.num_parameters)),
        ("format", model.details.quantization),
        ("context", f"{model.details.context:,}"),
        ("compile to", model.quantization or ""),
        ("compiled", "\n".join(str(each) for each in bundles)),
        ("adapter", "" if model.adapter is None else megabytes(model.adapter.size_bytes)),
        ("system", model.system or ""),
        ("template", model.template or ""),
        ("requests inherit", "\n".join(f"{name} {value}" for name, value in inherited(model))),
        ("messages", "\n".join(f"{each.role}: {each.content}" for each in model.messages)),
        ("license", "\n".join(model.license) or model.details.license or ""),
    ]
    return [(name, text) for name, text in found if text]


def inherited(model: StoredModel) -> list[tuple[str, str]]:
    """Names and values of parameters; one with several values is listed with each."""
    given = model.parameters.given().items()
    return [(name, str(each)) for name, value in given for each in (value if isinstance(value, list) else [value])]


def count_text(number: int | None) -> str:
    """Such as "1.2B" and "870K"; empty for None."""
    if number is None:
        return ""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def source_of(model: StoredModel) -> str:
    source = model.source
    if isinstance(source, Files):
        return "files of the store"
    return "nearfar" if isinstance(source, Demo) else f"the Hugging Face Hub, {source.model}"
