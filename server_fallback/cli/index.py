"""nearfar index: embed the documents of a folder into a store, which pipelines search."""

from __future__ import annotations

import asyncio

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nearfar.compiler.cli.output import new_console, print_json, print_note
from nearfar.compiler.runtime.errors import RequestError

from ..executors.encoder_executor import EncoderExecutor
from ..executors.local_opener import LocalOpener
from ..executors.local_options import LocalOptions
from ..retrieval.documents import DocumentReader
from ..retrieval.indexing import index_folder, store_model
from ..retrieval.store import VectorStore
from .options import Index


def run(options: Index) -> None:
    """Raises ToolError if sqlite-vec is missing, RequestError, and the errors of opening a model."""
    if not options.folder.is_dir():
        raise RequestError(f"{options.folder}: is not a folder; give one with documents")
    asyncio.run(_index(options))


async def _index(options: Index) -> None:
    opening = await LocalOpener(LocalOptions(trust=options.trust)).prepare(options.model, None)
    executor = await opening.open()
    reader = DocumentReader()
    try:
        if not isinstance(executor, EncoderExecutor):
            raise RequestError(f"{options.model}: generates text and makes no embeddings; use an embedding model")
        store = VectorStore.create(options.output, store_model(executor))
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        try:
            with Progress(*columns, console=new_console(), transient=True, disable=options.json) as bar:
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
