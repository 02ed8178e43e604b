"""nearfar create: a model of one's own, from a Modelfile."""

from __future__ import annotations

from dataclasses import replace

from rich.markup import escape

from ..store.modelfile import read_modelfile_file
from ..store.store import Store
from .options import Create
from .output import new_console
from .phases import phases, progress_bars
from .program import path_word, program


def run(options: Create) -> None:
    """Raises RequestError for a Modelfile that is not one, and the errors of fetching what it begins with."""
    modelfile = read_modelfile_file(options.file)
    changes = replace(modelfile.changes, quantization=options.quantization)
    with progress_bars(quiet=False, transient=True) as bars:
        model = Store.of_user().create(options.name, modelfile.base, changes, phases(bars))
    console = new_console(soft_wrap=True, highlight=False)
    console.print(f"[bold green]created[/] {escape(model.name)}")
    console.print(f"[bold]try it:[/]  {escape(program())} run {escape(path_word(model.name))}")
