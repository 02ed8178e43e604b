"""nearfar pull: download a bundle of a published site."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from ..bundle.signature import read_trusted_keys
from ..publish.pull import choose_bundle, fetch_catalog, pull
from .options import Pull
from .output import megabytes, print_json
from .overview import TARGET
from .phases import progress_bars
from .program import path_word, program


def run(options: Pull) -> None:
    trust = read_trusted_keys(options.trust)
    catalog, address = fetch_catalog(options.catalog)
    entry = choose_bundle(catalog, options.name, options.target, TARGET)
    with progress_bars(quiet=options.json, transient=True) as bars:
        bars.start()
        task = bars.add_task("downloading", total=entry.download_bytes)
        pulled = pull(
            entry, address, options.output, trust, lambda done, total: bars.update(task, completed=done, total=total)
        )
    license = catalog.models[options.name].license
    if options.json:
        sizes = {"new_bytes": pulled.new_bytes, "kept_bytes": pulled.kept_bytes}
        shown = {"bundle": str(options.output), "target": entry.target, "quantization": entry.quantization, **sizes}
        print_json({**shown, "license": license.model_dump()})
        return
    console = Console(soft_wrap=True, highlight=False)
    kept = f", {megabytes(pulled.kept_bytes)} were here" if pulled.kept_bytes else ""
    where = escape(path_word(str(options.output)))
    console.print(f"[bold green]pulled[/] {where}  {megabytes(pulled.new_bytes)}{kept}")
    link = f", {license.link}" if license.link else ""
    console.print(f"license: {escape(license.title + link)}")
    console.print(f"[bold]try it:[/]  {escape(program())} inspect {where}")
