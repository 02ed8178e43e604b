"""A registry with fake models, and the files of pipelines over them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from encoders import encoders
from fake_source import executor

from nearfar.server_fallback.executors.executor import Executor, Opening
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.pipelines.opener import PipelineOpener
from nearfar.server_fallback.retrieval.indexing import store_model
from nearfar.server_fallback.retrieval.store import Document, Span, VectorStore
from nearfar.server_fallback.schema.models import LoadRequest

ANSWER = "an answer"
RAG: dict[str, Any] = {
    "name": "rag",
    "stores": {"docs": "docs.store"},
    "steps": [
        {"kind": "embed", "output": "vector", "model": "embed", "input": "question"},
        {"kind": "search", "output": "found", "store": "docs", "input": "vector", "limit": 3},
        {"kind": "rerank", "output": "best", "model": "rank", "query": "question", "input": "found", "limit": 2},
        {"kind": "chat", "output": "answer", "model": "chat", "system": "Use:\n{best}", "max_tokens": 20},
    ],
    "output": "answer",
}


@dataclass
class FakeOpener:
    """Opens the fake executors by name."""

    executors: Mapping[str, Executor]

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            return self.executors[model]

        return Opening(name or model, None, open_it)


def write(folder: Path, pipeline: dict[str, Any] = RAG, name: str = "rag.json", **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({**pipeline, **changes}))
    return path


def steps(**changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of RAG with changes by output."""
    return [{**step, **changes.get(step["output"], {})} for step in RAG["steps"]]


def make_store(folder: Path) -> None:
    """Documents "a" (aaa), "b" (bbb) and "ab" (ab)."""
    store = VectorStore.create(folder / "docs.store", store_model(encoders(folder)["embed"]))
    for text, vector in (("aaa", (1, 0, 0)), ("bbb", (0, 1, 0)), ("ab", (1, 1, 0))):
        store.put(Document(0, f"{text}.txt", 1, 1, ""), [Span(0, len(text), text)], np.array([vector], np.float32))
    store.close()


@asynccontextmanager
async def registry_of(folder: Path, *names: str) -> AsyncIterator[tuple[Registry, Any]]:
    """The models "embed", "rank", "classify" and "chat", or only some; and the source of the last one."""
    chat, source = executor(folder, ANSWER)
    models: dict[str, Executor] = {**encoders(folder), "chat": chat}
    opener = PipelineOpener(FakeOpener(models))
    registry = opener.models = Registry(opener)
    try:
        for name in names or ("embed", "rank", "classify", "chat"):
            await registry.load(LoadRequest(model=name))
        yield registry, source
    finally:
        await registry.close(0.0)
