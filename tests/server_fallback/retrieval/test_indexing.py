"""Indexing a folder: what changed is embedded, the rest is not, and an interrupted run continues."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from encoders import encoders
from fake_source import FakeEncoder

from nearfar.compiler.cli import main
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.server_fallback.engine.encode_job import EncodeRequest
from nearfar.server_fallback.executors import local_opener
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.executors.executor import Opening
from nearfar.server_fallback.retrieval.documents import DocumentReader
from nearfar.server_fallback.retrieval.indexing import IndexSummary, index_folder, store_model
from nearfar.server_fallback.retrieval.store import VectorStore


@pytest.fixture
def model(tmp_path: Path) -> EncoderExecutor:
    return encoders(tmp_path)["embed"]


@pytest.fixture
def store(tmp_path: Path, model: EncoderExecutor) -> Iterator[VectorStore]:
    store = VectorStore.create(tmp_path / "store", store_model(model))
    yield store
    store.close()


def index(folder: Path, store: VectorStore, model: EncoderExecutor, tokens: int = 10) -> IndexSummary:
    async def work() -> IndexSummary:
        reader = DocumentReader()
        try:
            return await index_folder(folder, store, model, reader, passage_tokens=tokens)
        finally:
            reader.close()

    return asyncio.run(work())


def fill(folder: Path, **texts: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)


def test_only_what_changed_is_embedded(tmp_path: Path, store: VectorStore, model: EncoderExecutor) -> None:
    folder, engine = tmp_path / "docs", model._engine
    assert isinstance(engine, FakeEncoder)
    fill(folder, one="aaa", two="bbb. ccc ccc.", three="c")
    (folder / "bad.txt").write_bytes(b"\xff\xff\xff")
    first = index(folder, store, model)
    assert (sorted(first.indexed), list(first.unreadable)) == (["one.txt", "three.txt", "two.txt"], ["bad.txt"])
    assert store.num_passages() == 4
    assert [each.text for each in store.search(np.array([1, 0, 0], np.float32), 1)] == ["aaa"]
    engine.requests.clear()
    os.utime(folder / "one.txt", ns=(1, 1))
    fill(folder, two="a")
    (folder / "three.txt").unlink()
    second = index(folder, store, model)
    assert (second.indexed, second.unchanged, second.removed) == (["two.txt"], ["one.txt"], ["three.txt"])
    assert [request.texts for request in engine.requests] == [[[97]]]
    assert store.documents()["one.txt"].modified_ns == 1
    assert store.num_passages() == 2


def test_an_interrupted_run_continues_where_it_was(tmp_path: Path, store: VectorStore, model: EncoderExecutor) -> None:
    folder = tmp_path / "docs"
    fill(folder, a="a", b="b", c="c")

    class Failing(FakeEncoder):
        async def encode(self, request: EncodeRequest) -> np.ndarray:
            if len(self.requests) == 2:
                raise DeviceError("lost")
            return await super().encode(request)

    broken = EncoderExecutor(Failing(), model.model)
    with pytest.raises(DeviceError):
        index(folder, store, broken)
    assert index(folder, store, model).indexed == ["c.txt"]


def test_wrong_folders_models_and_sizes_are_refused(tmp_path: Path, store: VectorStore, model: EncoderExecutor) -> None:
    with pytest.raises(RequestError, match="is not a folder"):
        index(tmp_path / "none", store, model)
    with pytest.raises(RequestError, match="context of 4096 allows"):
        index(tmp_path, store, model, tokens=4096)
    with pytest.raises(RequestError, match="makes no embeddings"):
        store_model(encoders(tmp_path)["rank"])


def test_the_command_fills_a_store_and_prints_what_it_did(
    tmp_path: Path, model: EncoderExecutor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def prepare(self: object, name: str, _: None) -> Opening:  # noqa: ARG001
        async def open_it() -> EncoderExecutor:
            return model

        return Opening(name, None, open_it)

    monkeypatch.setattr(local_opener.LocalOpener, "prepare", prepare)
    fill(tmp_path / "docs", one="a", two="b")
    command = ["index", str(tmp_path / "docs"), "-o", str(tmp_path / "made"), "--model", "fake"]
    assert main(command) == 0
    assert "2 documents indexed, 0 unchanged, 0 removed; 2 passages in all" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "indexed": [], "unchanged": 2, "removed": [], "unreadable": {}, "passages": 2,
    }  # fmt: skip
    assert main(["index", str(tmp_path / "none"), "-o", "x", "--model", "fake"]) != 0
