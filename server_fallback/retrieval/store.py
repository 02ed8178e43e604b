"""VectorStore: passages of documents and their vectors in one SQLite file, with sqlite-vec's exact search by cosine.

APSW brings an SQLite that loads extensions, which the one of many Pythons does not.

The file names the model that made its vectors: those of another model cannot be compared with them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import RequestError, ToolError

FORMAT = "nearfar-store-1"
MAPPED_BYTES = 1 << 31
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE documents (
  id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, modified_ns INTEGER NOT NULL,
  sha256 TEXT NOT NULL
);
CREATE TABLE passages (
  id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents (id), begins INTEGER NOT NULL,
  ends INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE INDEX passages_of_document ON passages (document);
"""


@dataclass(frozen=True, slots=True)
class StoreModel:
    """The model of a store's vectors: its name, for messages, its `TextModel.identity`, and the vectors' size."""

    name: str
    identity: str
    size: int


@dataclass(frozen=True, slots=True)
class Document:
    """A file in a store. ``path`` is relative to the indexed folder, with slashes."""

    id: int
    path: str
    size: int
    modified_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Span:
    """A passage to store: the characters ``begins`` to ``ends`` of its document's text."""

    begins: int
    ends: int
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A found passage. ``score`` is the cosine of its vector and the query's, -1 to 1."""

    id: int
    source: str
    begins: int
    ends: int
    text: str
    score: float


class VectorStore:
    """Callable from any thread, one call at a time. ``model`` made the vectors."""

    def __init__(self, path: Path, connection: Any) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()
        facts = dict(connection.execute("SELECT name, value FROM facts"))
        self.model = StoreModel(facts["model"], facts["identity"], int(facts["size"]))

    @staticmethod
    def open(path: Path) -> VectorStore:
        """Open a store to search it. Raises RequestError if there is none, ToolError if sqlite-vec is missing."""
        if not path.is_file():
            raise RequestError(f"{path}: there is no store here; make it with nearfar index FOLDER -o {path}")
        return _opened(path, read_only=True)

    @staticmethod
    def create(path: Path, model: StoreModel) -> VectorStore:
        """Open a store to fill it, and make it if there is none.

        Raises RequestError for a file that is no store or was made by another model, ToolError if sqlite-vec is
        missing.
        """
        if path.exists():
            store = _opened(path, read_only=False)
            store.require_model(model)
            return store
        connection = _connect(path, read_only=False)
        with connection:
            connection.execute(SCHEMA)
            connection.execute(
                f"CREATE VIRTUAL TABLE vectors USING vec0(embedding float[{model.size:d}] distance_metric=cosine)"
            )
            facts = {"format": FORMAT, "model": model.name, "identity": model.identity, "size": str(model.size)}
            connection.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
        return VectorStore(path, connection)

    def require_model(self, model: StoreModel) -> None:
        """Raises RequestError unless this model made the vectors."""
        if self.model.identity != model.identity:
            raise RequestError(
                f"{self.path}: the vectors were made by {self.model.name} ({self.model.identity[:12]}), not by "
                f"{model.name} ({model.identity[:12]}); index the folder again into another file",
                code="store_of_another_model",
            )

    def documents(self) -> dict[str, Document]:
        """All documents by path."""
        with self._lock:
            rows = self._connection.execute("SELECT id, path, size, modified_ns, sha256 FROM documents").fetchall()
        return {row[1]: Document(*row) for row in rows}

    def put(self, document: Document, spans: Sequence[Span], vectors: FloatArray) -> None:
        """Replace the document of this path, with all its passages, in one transaction; ``document.id`` is not used."""
        with self._lock, self._connection:
            self._remove(document.path)
            self._connection.execute(
                "INSERT INTO documents (path, size, modified_ns, sha256) VALUES (?, ?, ?, ?)",
                (document.path, document.size, document.modified_ns, document.sha256),
            )
            id = self._connection.last_insert_rowid()
            for span, vector in zip(spans, np.ascontiguousarray(vectors, "<f4"), strict=True):
                self._connection.execute(
                    "INSERT INTO passages (document, begins, ends, text) VALUES (?, ?, ?, ?)",
                    (id, span.begins, span.ends, span.text),
                )
                passage = self._connection.last_insert_rowid()
                self._connection.execute(
                    "INSERT INTO vectors (rowid, embedding) VALUES (?, ?)", (passage, vector.tobytes())
                )

    def touch(self, document: Document) -> None:
        """Set the time and size of a document whose content has not changed."""
        with self._lock, self._connection:
            self._connection.execute(
                "UPDATE documents SET size = ?, modified_ns = ? WHERE path = ?",
                (document.size, document.modified_ns, document.path),
            )

    def remove(self, path: str) -> None:
        with self._lock, self._connection:
            self._remove(path)

    def num_passages(self) -> int:
        with self._lock:
            [(count,)] = self._connection.execute("SELECT count(*) FROM passages").fetchall()
        return int(count)

    def search(self, vector: FloatArray, limit: int) -> list[Passage]:
        """The passages whose vectors are closest to ``vector`` (E,) by cosine, the best first."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT passages.id, path, begins, ends, text, distance FROM vectors"
                " JOIN passages ON passages.id = vectors.rowid JOIN documents ON documents.id = document"
                " WHERE embedding MATCH ? AND k = ? ORDER BY distance, passages.id",
                (np.ascontiguousarray(vector, "<f4").tobytes(), limit),
            ).fetchall()
        return [
            Passage(id, path, begins, ends, text, 1.0 - distance) for id, path, begins, ends, text, distance in rows
        ]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _remove(self, path: str) -> None:
        of_path = "(SELECT id FROM documents WHERE path = ?)"
        execute = self._connection.execute
        execute(f"DELETE FROM vectors WHERE rowid IN (SELECT id FROM passages WHERE document = {of_path})", (path,))
        execute(f"DELETE FROM passages WHERE document = {of_path}", (path,))
        execute("DELETE FROM documents WHERE path = ?", (path,))


def _opened(path: Path, *, read_only: bool) -> VectorStore:
    import apsw

    connection = _connect(path, read_only=read_only)
    try:
        [(found,)] = connection.execute("SELECT value FROM facts WHERE name = 'format'").fetchall()
        if found == FORMAT:
            return VectorStore(path, connection)
    except (apsw.Error, ValueError, KeyError):
        pass
    connection.close()
    raise RequestError(f"{path}: is not a store of this version; choose another file, or index again")


def _connect(path: Path, *, read_only: bool) -> Any:
    try:
        import apsw
        import sqlite_vec
    except ImportError as error:
        raise ToolError(f"a store needs {error.name}: pip install 'nearfar[index]'") from error
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    try:
        connection = apsw.Connection(str(path), flags=flags)
        connection.enable_load_extension(True)
        connection.load_extension(sqlite_vec.loadable_path())
        connection.enable_load_extension(False)
        # A search reads all vectors. Mapped pages are not copied into the cache.
        connection.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")
    except apsw.Error as error:
        raise RequestError(f"{path}: cannot be opened ({error}); choose another file") from error
    return connection
