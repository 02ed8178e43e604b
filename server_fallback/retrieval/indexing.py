"""Fills a store with the documents of a folder: only those that have changed since the last time.

Each document is one transaction, so an indexing that was interrupted continues where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from ..executors.encoder_executor import EncoderExecutor
from ..executors.executor import Call
from .document_worker import Unreadable, cannot_open
from .documents import DocumentReader, document_of, files_of
from .passages import passages_of
from .store import StoreModel, VectorStore

# Passages that are embedded together.
BATCH = 64
# The special tokens and the prompt that each passage gets.
RESERVED_TOKENS = 32


@dataclass(slots=True)
class IndexSummary:
    """Paths of documents; ``unreadable`` with the reasons."""

    indexed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def store_model(executor: EncoderExecutor) -> StoreModel:
    """Raises RequestError for a model that makes no embeddings."""
    model = executor.model
    if model.embedding is None:
        raise RequestError(f"{model.name}: makes no embeddings; use an embedding model", param="model")
    return StoreModel(model.name, model.identity, model.embedding_size)


async def index_folder(
    folder: Path,
    store: VectorStore,
    executor: EncoderExecutor,
    reader: DocumentReader,
    *,
    passage_tokens: int,
    report: Callable[[str, int, int], None] = lambda *_: None,
) -> IndexSummary:
    """``report`` is called with the path of each document, its number and their count.

    Raises RequestError for a folder that is none, for passages beyond the model's context, and for a store of another
    model; and the errors of `EncoderExecutor.vectors`.
    """
    store.require_model(store_model(executor))
    if not folder.is_dir():
        raise RequestError(f"{folder}: is not a folder; give one with documents")
    if not 1 <= passage_tokens <= executor.context - RESERVED_TOKENS:
        raise RequestError(
            f"passages of {passage_tokens} tokens; this model's context of {executor.context} allows 1 to "
            f"{executor.context - RESERVED_TOKENS}"
        )
    summary, known = IndexSummary(), store.documents()
    files = [(name, path) for name, path in files_of(folder) if path.resolve() != store.path.resolve()]
    for number, (name, path) in enumerate(files):
        report(name, number, len(files))
        try:
            document = await asyncio.to_thread(document_of, name, path, known.get(name))
            before = known.pop(name, None)
            if before is not None and before.sha256 == document.sha256:
                if document is not before:
                    store.touch(document)
                summary.unchanged.append(name)
                continue
            text = await reader.read(path)
        except OSError as error:
            text = cannot_open(error)
            known.pop(name, None)
        if isinstance(text, Unreadable):
            summary.unreadable[name] = text.reason
            store.remove(name)
            continue
        spans = await asyncio.to_thread(passages_of, text, executor.model.tokenizer, passage_tokens)
        vectors = [np.zeros((0, store.model.size), np.float32)]
        for start in range(0, len(spans), BATCH):
            batch = [span.text for span in spans[start : start + BATCH]]
            vectors.append(await executor.vectors(batch, Call("index"), is_query=False))
        await asyncio.to_thread(store.put, document, spans, np.concatenate(vectors))
        summary.indexed.append(name)
    for name in known:
        store.remove(name)
        summary.removed.append(name)
    report("", len(files), len(files))
    return summary
