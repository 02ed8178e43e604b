"""nearfar export: the weights of a bundle become a file of another ecosystem."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape

from ..bundle.folder import ExportBundle, open_any
from ..bundle.signature import read_trusted_keys
from ..runtime.errors import RequestError
from .options import Export
from .output import megabytes, new_console, print_json, print_note
from .phases import progress_bars
from .program import path_word


def run(options: Export) -> None:
    check_options(options)
    bundle = open_any(options.bundle, read_trusted_keys(options.trust))
    if isinstance(bundle, ExportBundle):
        target = bundle.manifest.target
        raise RequestError(
            f"{options.bundle}: is a bundle for {target}, whose files {target}'s own tools read; compile the model for "
            "webgpu, cpu or cuda to export it"
        )
    bundle.verify()
    notes: list[str] = []
    with progress_bars(quiet=options.json, transient=True) as bars:
        bars.start()
        task = bars.add_task("writing weights")

        def progress(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        kinds: Mapping[str, int]
        if options.format == "gguf":
            from ..export.gguf_file import GgufOptions, export_gguf

            chosen = GgufOptions(options.fallback, options.pre, options.tokenizer, options.force)
            kinds = export_gguf(bundle, options.output, chosen, progress, notes.append)
        else:
            from ..export.safetensors_folder import export_safetensors

            kinds = export_safetensors(
                bundle, options.output, options.dtype or "float16", force=options.force, progress=progress,
                note=notes.append,
            )  # fmt: skip
    output = options.output
    files = [output] if output.is_file() else list(output.iterdir())
    size = sum(file.stat().st_size for file in files)
    if options.json:
        print_json({"output": str(output), "format": options.format, "bytes": size, "tensors": kinds, "notes": notes})
        return
    for note in notes:
        print_note(note)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    console = new_console(soft_wrap=True, highlight=False)
    console.print(f"[bold green]exported[/] {escape(path_word(str(output)))}  {megabytes(size)}, tensors: {listed}")


def check_options(options: Export) -> None:
    """Raises RequestError for options of the other format."""
    given = {
        "--fallback": options.fallback, "--pre": options.pre, "--no-tokenizer": not options.tokenizer or None,
        "--dtype": options.dtype,
    }  # fmt: skip
    own = ("--dtype",) if options.format == "safetensors" else ("--fallback", "--pre", "--no-tokenizer")
    for flag, value in given.items():
        if value is not None and flag not in own:
            raise RequestError(f"{flag}: does not apply to --format {options.format}; remove it")
