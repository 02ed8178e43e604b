"""nearfar index: embed the documents of a folder into a store, which pipelines search."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from nearfar.compiler.cli.output import add_command, print_json, print_note
from nearfar.compiler.cli.sign import add_trust, trusted_keys
from nearfar.compiler.errors import RequestError

from .numbers import count


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "index", run, example="nearfar index ./handbook -o handbook.store --model ./e5-small"
    )
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="documents: text, Markdown, HTML, Word and PDF, in subfolders too"
    )
    parser.add_argument("-o", "--output", metavar="STORE", type=Path, required=True, help="the file of the store")
    parser.add_argument("--model", required=True, help="an embedding model, as for nearfar serve")
    parser.add_argument(
        "--passage-tokens",
        type=count,
        default=200,
        metavar="N",
        help="the most tokens of a passage (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_trust(parser)


def run(options: argparse.Namespace) -> None:
    """Raises ToolError if sqlite-vec is missing, RequestError, and the errors of opening a model."""
    # Without TVM and numpy, options are checked at once.
    if not options.folder.is_dir():
        raise RequestError(f"{options.folder}: is not a folder; give one with documents")
    asyncio.run(_index(options))


async def _index(options: argparse.Namespace) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..executors.encoder_executor import EncoderExecutor
    from ..executors.local_opener import LocalOpener, LocalOptions
    from ..retrieval.documents import DocumentReader
    from ..retrieval.indexing import index_folder, store_model
    from ..retrieval.store import VectorStore

    opening = await LocalOpener(LocalOptions(trust=tuple(trusted_keys(options)))).prepare(options.model, None)
    executor = await opening.open()
    reader = DocumentReader()
    try:
        if not isinstance(executor, EncoderExecutor):
            raise RequestError(f"{options.model}: generates text and makes no embeddings; use an embedding model")
        store = VectorStore.create(options.output, store_model(executor))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        try:
            with Progress(*columns, transient=True, disable=options.json) as bar:
                task = bar.add_task("indexing")

                def report(name: str, done: int, total: int) -> None:
                    bar.update(task, description=name[-40:] or "indexing", completed=done, total=total)

                summary = await index_folder(
                    options.folder, store, executor, reader, passage_tokens=options.passage_tokens, report=report
                )
            passages = store.num_passages()
        finally:
            store.close()
    finally:
        reader.close()
        await executor.close()
    if options.json:
        print_json(
            {
                "indexed": summary.indexed,
                "unchanged": len(summary.unchanged),
                "removed": summary.removed,
                "unreadable": summary.unreadable,
                "passages": passages,
            }
        )
        return
    print(
        f"{options.output}: {len(summary.indexed)} documents indexed, {len(summary.unchanged)} unchanged, "
        f"{len(summary.removed)} removed; {passages} passages in all"
    )
    for name, reason in summary.unreadable.items():
        print_note(f"{name}: left out, because {reason}")
