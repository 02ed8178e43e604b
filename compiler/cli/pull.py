"""nearfar pull: get a model into the store, or download a bundle of a published site into a folder."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, cast

from rich.markup import escape

from ..bundle.folder import open_any
from ..bundle.signature import TrustedKey, read_trusted_keys
from ..ir.tasks import Task
from ..publish.catalog import CatalogBundle
from ..publish.pull import pull
from ..runtime.errors import DeviceError, NearfarError, RequestError
from ..store.model import StoredModel
from ..store.store import Store
from .model import CACHE, catalog_models
from .options import Pull
from .output import megabytes, new_console, print_json
from .phases import phases, progress_bars
from .program import path_word, program


def run(options: Pull) -> None:
    """Raises DeviceError if no bundle fits this machine and none is for ``options.target``, and what `Store.pull` and
    compiling raise.
    """
    trust = read_trusted_keys(options.trust)
    if options.catalog is not None:
        pull_of_catalog(options, trust)
        return
    for name, given in {"-o": options.output, "--target": options.target}.items():
        if given is not None:
            raise RequestError(f"{name} is for models of a --catalog; compile other models with nearfar compile")
    store = Store.of_user()
    with progress_bars(quiet=options.json, transient=True) as bars:
        model = store.pull(options.model, options.name, phases(bars), trust, options.ignore_keys)
        if options.compile and not model.is_bundle:
            try:
                cache = importlib.import_module(CACHE)
                cache.default_bundle(str(store.path(model)), options.ignore_keys, phases(bars), model)
            except NearfarError:
                # What cannot be compiled would only take space.
                store.remove(model.name)
                raise
    report(store, model, as_json=options.json)


def pull_of_catalog(options: Pull, trust: Sequence[TrustedKey]) -> None:
    models = catalog_models(str(options.catalog))
    catalog, address = models.catalog, models.address
    entry = chosen(models, options)
    if options.output is None:
        store = Store.of_user()
        with progress_bars(quiet=options.json, transient=True) as bars:
            name = options.name or options.model
            model = store.pull_bundle(entry, address, name, phases(bars), trust)
        report(store, model, as_json=options.json)
        return
    with progress_bars(quiet=options.json, transient=True) as bars:
        bars.start()
        task = bars.add_task("downloading", total=entry.download_bytes)
        pulled = pull(
            entry, address, options.output, trust, lambda done, total: bars.update(task, completed=done, total=total)
        )
    license = catalog.models[options.model].license
    if options.json:
        sizes = {"new_bytes": pulled.new_bytes, "kept_bytes": pulled.kept_bytes}
        shown = {"bundle": str(options.output), "target": entry.target, "quantization": entry.quantization, **sizes}
        print_json({**shown, "license": license.model_dump()})
        return
    console = new_console(soft_wrap=True, highlight=False)
    kept = f", {megabytes(pulled.kept_bytes)} were here" if pulled.kept_bytes else ""
    where = escape(path_word(str(options.output)))
    console.print(f"[bold green]pulled[/] {where}  {megabytes(pulled.new_bytes)}{kept}")
    link = f", {license.link}" if license.link else ""
    console.print(f"license: {escape(license.title + link)}")
    console.print(
        f"[bold]try it:[/]  {escape(program())} {try_it(catalog.models[options.model].task, entry.target, where)}"
    )


def report(store: Store, model: StoredModel, *, as_json: bool) -> None:
    if as_json:
        print_json({"model": model.name, "digest": model.digest, "size_bytes": model.size_bytes})
        return
    console = new_console(soft_wrap=True, highlight=False)
    console.print(f"[bold green]pulled[/] {escape(model.name)}  {megabytes(model.size_bytes)}")
    target = open_any(store.path(model)).manifest.target if model.is_bundle else ""
    command = try_it(model.details.task, target, path_word(model.name))
    console.print(f"[bold]try it:[/]  {escape(f'{program()} {command}')}")


def chosen(models: Any, options: Pull) -> CatalogBundle:
    """The bundle that fits this machine; for a target that does not run here, the first, which is the most exact."""
    bundles: Sequence[CatalogBundle] = models.catalog.model(options.model).bundles
    of_target = [each for each in bundles if each.target == options.target]
    try:
        return cast("CatalogBundle", models.choose(options.model, options.target))
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
        "decide": f"decide {bundle} 'Why is the sky blue?' --questions QUESTIONS.json",
        "transcribe": f"transcribe SOUND.wav {bundle}",
    }[task]
