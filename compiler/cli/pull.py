"""nearfar pull: download a bundle of a published site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from rich.console import Console
from rich.markup import escape

from ..bundle.signature import read_trusted_keys
from ..ir.tasks import Task
from ..publish.catalog import CatalogBundle
from ..publish.pull import pull
from ..runtime.errors import DeviceError
from .model import catalog_models
from .options import Pull
from .output import megabytes, print_json
from .phases import progress_bars
from .program import path_word, program


def run(options: Pull) -> None:
    """Raises DeviceError if no bundle fits this machine and none is for ``options.target``."""
    trust = read_trusted_keys(options.trust)
    models = catalog_models(options.catalog)
    catalog, address = models.catalog, models.address
    entry = chosen(models, options)
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
    console.print(
        f"[bold]try it:[/]  {escape(program())} {try_it(catalog.models[options.name].task, entry.target, where)}"
    )


def chosen(models: Any, options: Pull) -> CatalogBundle:
    """The bundle that fits this machine; for a target that does not run here, the first, which is the most exact."""
    bundles: Sequence[CatalogBundle] = models.catalog.model(options.name).bundles
    of_target = [each for each in bundles if each.target == options.target]
    try:
        return cast("CatalogBundle", models.choose(options.name, options.target))
    except DeviceError:
        if not of_target:
            raise
        return of_target[0]


def try_it(task: Task, target: str, bundle: str) -> str:
    """The command that uses a bundle: in a page for webgpu, else on this machine."""
    if target == "webgpu" and task == "generate":
        return f"demo {bundle} --serve"
    return {
        "generate": f"run {bundle} 'Why is the sky blue?'",
        "embed": f"run {bundle} 'Why is the sky blue?'",
        "rerank": f"run {bundle} 'colour of the sky' --passage 'The sky is blue.'",
        "classify": f"run {bundle} 'Why is the sky blue?'",
        "transcribe": f"transcribe SOUND.wav {bundle}",
    }[task]
