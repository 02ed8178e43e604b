"""The vector store: search against numpy, replaced documents, and stores that cannot be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.retrieval.store import Document, Span, StoreModel, VectorStore

MODEL = StoreModel("m", "a" * 64, 24)


def document(path: str, sha256: str = "0") -> Document:
    return Document(0, path, 3, 4, sha256)


def test_the_search_is_exact_and_ordered_by_cosine(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((300, 24)).astype(np.float32)
    store = VectorStore.create(tmp_path / "s", MODEL)
    for start in (0, 100, 200):
        spans = [Span(row, row + 1, f"text {row}") for row in range(start, start + 100)]
        store.put(document(f"d{start}"), spans, vectors[start : start + 100])
    store.close()
    store = VectorStore.open(tmp_path / "s")
    assert (store.model, store.num_passages()) == (MODEL, 300)
    query = random.standard_normal(24).astype(np.float32)
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    best = np.argsort(-cosines)[:7]
    found = store.search(query, 7)
    assert [each.text for each in found] == [f"text {row}" for row in best]
    assert [each.score for each in found] == pytest.approx(cosines[best], abs=1e-5)
    assert (found[0].source, found[0].begins) == (f"d{best[0] // 100 * 100}", best[0])
    store.close()


def test_a_document_is_replaced_and_removed_with_its_passages(tmp_path: Path) -> None:
    store = VectorStore.create(tmp_path / "s", StoreModel("m", "a", 2))
    store.put(document("a"), [Span(0, 1, "x"), Span(1, 2, "y")], np.eye(2, dtype=np.float32))
    store.put(document("b"), [Span(0, 1, "z")], np.ones((1, 2), np.float32))
    store.put(document("a", "1"), [Span(0, 1, "w")], np.eye(2, dtype=np.float32)[:1])
    assert {path: each.sha256 for path, each in store.documents().items()} == {"a": "1", "b": "0"}
    assert [each.text for each in store.search(np.array([1, 0], np.float32), 9)] == ["w", "z"]
    store.remove("a")
    assert [each.text for each in store.search(np.array([1, 0], np.float32), 9)] == ["z"]
    store.close()


def test_a_store_of_another_model_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    VectorStore.create(path, MODEL).close()
    with pytest.raises(RequestError, match=r"made by m .*not by other") as error:
        VectorStore.create(path, StoreModel("other", "b" * 64, 24))
    assert error.value.details["code"] == "store_of_another_model"
    (tmp_path / "text").write_text("no store, but long enough for a header of SQLite" * 10)
    for name, match in (("none", "no store here"), ("text", "not a store")):
        with pytest.raises(RequestError, match=match):
            VectorStore.open(tmp_path / name)
    with pytest.raises(RequestError, match="not a store"):
        VectorStore.create(tmp_path / "text", MODEL)
