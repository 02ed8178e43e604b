"""Compares embedded vector stores at the job of `nearfar index`, exact search by cosine: sqlite-vec in APSW's SQLite,
and LanceDB.

    pip install apsw lancedb numpy sqlite-vec && python tests/bench/vector_stores.py

Each reports the size of its installed packages, the processor seconds to write 100,000 vectors of 384 float32 with
their texts in transactions of 500, the size of the store, and the processor milliseconds, of all threads, of a search
for the best 20.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

COUNT, SIZE, BEST, BATCH, SEARCHES = 100_000, 384, 20, 500, 30


def main() -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((COUNT, SIZE), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = random.standard_normal((SEARCHES, SIZE), np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as folder:
        searches: dict[str, Callable[[Any], list[int]]] = {}
        for name, write, packages in (
            ("sqlite-vec", write_sqlite, ["sqlite-vec", "apsw"]),
            ("LanceDB", write_lance, ["lancedb", "pyarrow", "lance-namespace", "pydantic", "tqdm"]),
        ):
            path = Path(folder) / name
            begin = time.process_time()
            searches[name] = write(path, vectors)
            seconds = time.process_time() - begin
            size = sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())
            print(
                f"{name}: install {installed(packages) / 1e6:.1f} MB, write {seconds:.1f} s, store {size / 1e6:.0f} MB"
            )
        times: dict[str, list[float]] = {name: [] for name in searches}
        for query in queries:
            expected = np.argsort(-(vectors @ query))[:BEST].tolist()
            for name, search in searches.items():
                begin = time.process_time()
                found = search(query)
                times[name].append((time.process_time() - begin) * 1e3)
                assert len(set(found) & set(expected)) >= BEST - 1, (name, found, expected)
        for name, each in times.items():
            print(f"{name}: search median {statistics.median(each):.1f} ms, least {min(each):.1f} ms")


def write_sqlite(path: Path, vectors: Any) -> Callable[[Any], list[int]]:
    import apsw
    import sqlite_vec

    store = apsw.Connection(str(path))
    store.enable_load_extension(True)
    store.load_extension(sqlite_vec.loadable_path())
    store.execute("PRAGMA mmap_size = 2147483648")
    store.execute("CREATE TABLE passages (id INTEGER PRIMARY KEY, text TEXT)")
    store.execute(f"CREATE VIRTUAL TABLE vectors USING vec0(embedding float[{SIZE}] distance_metric=cosine)")
    for start in range(0, COUNT, BATCH):
        with store:
            rows = range(start, start + BATCH)
            store.executemany("INSERT INTO passages VALUES (?, ?)", [(row, f"text {row}") for row in rows])
            store.executemany(
                "INSERT INTO vectors (rowid, embedding) VALUES (?, ?)", [(row, vectors[row].tobytes()) for row in rows]
            )

    def search(query: Any) -> list[int]:
        found = store.execute(
            "SELECT rowid FROM vectors WHERE embedding MATCH ? AND k = ? ORDER BY distance", (query.tobytes(), BEST)
        )
        return [row for (row,) in found]

    return search


def write_lance(path: Path, vectors: Any) -> Callable[[Any], list[int]]:
    import lancedb

    table: Any = None
    for start in range(0, COUNT, BATCH):
        rows = [{"id": row, "text": f"text {row}", "vector": vectors[row]} for row in range(start, start + BATCH)]
        if table is None:
            table = lancedb.connect(path).create_table("vectors", rows)
        else:
            table.add(rows)

    def search(query: Any) -> list[int]:
        found = table.search(query).distance_type("cosine").limit(BEST).select(["id"]).to_list()
        return [each["id"] for each in found]

    return search


def installed(packages: list[str]) -> int:
    """The size of packages' files in bytes."""
    files = [file for name in packages for file in importlib.metadata.files(name) or ()]
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file())


if __name__ == "__main__":
    main()
