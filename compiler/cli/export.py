"""nearfar export: the weights of a bundle become a file of another ecosystem."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..bundle.folder import ExportBundle, open_any
from ..errors import RequestError
from .output import add_command, megabytes, print_json, print_note
from .phases import progress_bars
from .program import path_word
from .sign import add_trust, trusted_keys

FORMATS = ("gguf", "safetensors")


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "export", run, example="nearfar export qwen3-web --format gguf -o qwen3.gguf")
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="a bundle for webgpu, cpu or cuda")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        required=True,
        help="gguf: one file for llama.cpp with the bundle's own integers; safetensors: a folder for transformers with "
        "floats",
    )
    parser.add_argument("-o", "--output", metavar="PATH", type=Path, required=True, help="the file or folder to create")
    parser.add_argument(
        "--fallback",
        choices=("f16", "f32"),
        help="for gguf: the type of matrices that no type of GGUF holds exactly: f16 rounds, f32 is exact but large "
        "(default: such a matrix is an error)",
    )
    parser.add_argument(
        "--pre",
        metavar="NAME",
        help="for gguf: llama.cpp's name of the split of words, such as qwen2 (default: the tokenizer's)",
    )
    parser.add_argument(
        "--no-tokenizer",
        action="store_false",
        dest="tokenizer",
        help="for gguf: leave out the tokenizer; llama.cpp then reads only token ids",
    )
    parser.add_argument(
        "--dtype", choices=("float16", "float32"), help="for safetensors: the dtype of weights (default: float16)"
    )
    add_trust(parser)
    parser.add_argument("--force", action="store_true", help="replace what an earlier export wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of progress")


def run(options: argparse.Namespace) -> None:
    check_options(options)
    bundle = open_any(options.bundle, trusted_keys(options))
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
    output: Path = options.output
    files = [output] if output.is_file() else list(output.iterdir())
    size = sum(file.stat().st_size for file in files)
    if options.json:
        print_json({"output": str(output), "format": options.format, "bytes": size, "tensors": kinds, "notes": notes})
        return
    for note in notes:
        print_note(note)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[bold green]exported[/] {escape(path_word(str(output)))}  {megabytes(size)}, tensors: {listed}")


def check_options(options: argparse.Namespace) -> None:
    """Raises RequestError for options of the other format."""
    given = {
        "--fallback": options.fallback, "--pre": options.pre, "--no-tokenizer": not options.tokenizer or None,
        "--dtype": options.dtype,
    }  # fmt: skip
    own = ("--dtype",) if options.format == "safetensors" else ("--fallback", "--pre", "--no-tokenizer")
    for flag, value in given.items():
        if value is not None and flag not in own:
            raise RequestError(f"{flag}: does not apply to --format {options.format}; remove it")
