"""A store whose files somebody else has changed: nothing leads out of it, and no wrong bytes are used."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.runtime.errors import CheckpointError
from nearfar.compiler.store.blobs import Blobs
from nearfar.compiler.store.model import Changes, Files, StoredModel
from nearfar.compiler.store.store import Store

Record = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "store"))
    made = Store.of_user()
    made.pull(str(CHECKPOINT), "own")
    return made


def record_of(store: Store) -> Path:
    (path,) = (store.folder / "models").iterdir()
    return path


def out_of_the_folder(record: Record) -> None:
    record["source"]["folder"] = "../../../etc"


def a_file_above(record: Record) -> None:
    files = record["source"]["files"]
    files["../config.json"] = files.pop("config.json")


def another_name(record: Record) -> None:
    record["name"] = "../own"


def a_name_of_another_file(record: Record) -> None:
    record["name"] = "others"


def an_unknown_key(record: Record) -> None:
    record["run"] = "rm -rf /"


def another_version(record: Record) -> None:
    record["format_version"] = 2


def a_hash_that_is_a_path(record: Record) -> None:
    record["source"]["files"]["config.json"]["sha256"] = "../../x"


@pytest.mark.parametrize(
    "change",
    [
        out_of_the_folder,
        a_file_above,
        another_name,
        a_name_of_another_file,
        an_unknown_key,
        another_version,
        a_hash_that_is_a_path,
    ],
)
def test_a_forged_record_is_refused_listed_as_damaged_and_can_be_removed(
    store: Store, change: Callable[[Record], None]
) -> None:
    path = record_of(store)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"own%3Alatest\.json: .*remove the file"):
        store.get("own")
    (found,) = store.records()
    assert isinstance(found, CheckpointError)
    store.remove("own")
    assert not store.has("own")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"null"])
def test_a_record_that_is_no_record_is_refused(store: Store, content: bytes) -> None:
    record_of(store).write_bytes(content)
    with pytest.raises(CheckpointError):
        store.find("own")
    store.pull("demo", "fine")
    assert [each.name for each in store.models()] == ["fine"]


def test_a_record_behind_a_link_is_refused(store: Store, tmp_path: Path) -> None:
    path = record_of(store)
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(CheckpointError, match="is a link"):
        store.find("own")


def test_files_behind_links_and_cut_ones_are_refused(store: Store, tmp_path: Path) -> None:
    model = store.get("own")
    weights = store.path(model) / "model.safetensors"
    content = weights.read_bytes()
    weights.rename(tmp_path / "weights")
    weights.symlink_to(tmp_path / "weights")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is missing or a link"):
        store.path(model)
    weights.unlink()
    # What a broken copy leaves.
    weights.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=r"has 3,\d+,\d+ bytes instead of 3,\d+,\d+; pull or create"):
        store.path(model)
    weights.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert store.path(model)
    with pytest.raises(CheckpointError, match="has other bytes than the record says"):
        store.verify(model)
    # Pulling it again mends it.
    store.verify(store.pull(str(CHECKPOINT), "own"))


def test_a_folder_behind_a_link_is_refused(store: Store, tmp_path: Path) -> None:
    model = store.get("own")
    folder = store.path(model)
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="is missing or a link"):
        store.path(model)


def test_a_blob_that_lies_about_its_bytes_is_not_used(tmp_path: Path) -> None:
    blobs, digest = Blobs(tmp_path / "blobs"), sha256(b"right").hexdigest()
    blobs.folder.mkdir()
    (blobs.folder / f"sha256-{digest}").write_bytes(b"wrong")
    assert not blobs.place(digest, tmp_path / "file")
    assert list(blobs.folder.iterdir()) == []
    assert not (tmp_path / "file").exists()
    # A right file takes its place, also if a wrong one is there when it is added.
    (blobs.folder / f"sha256-{digest}").write_bytes(b"wrong")
    (tmp_path / "file").write_bytes(b"right")
    blobs.add(tmp_path / "file", digest)
    assert (tmp_path / "file").read_bytes() == blobs.path(digest).read_bytes() == b"right"


def test_a_blob_behind_a_link_is_not_used(tmp_path: Path) -> None:
    blobs, digest = Blobs(tmp_path / "blobs"), sha256(b"secret").hexdigest()
    blobs.folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    blobs.path(digest).symlink_to(tmp_path / "secret")
    assert not blobs.place(digest, tmp_path / "file")
    blobs.collect()
    assert (tmp_path / "secret").exists()


def test_what_a_killed_process_left_is_removed_but_not_what_another_one_writes(store: Store) -> None:
    files = store.folder / "files"
    (files / ("0" * 24) / "half").mkdir(parents=True)
    (files / ("1" * 24) / ".half.partial").mkdir(parents=True)
    with store._adding():
        store.prune(10**12)
        assert (files / ("0" * 24) / "half").exists()
    store.prune(10**12)
    assert sorted(path.name for path in files.iterdir()) == [Path(folder_of(store.get("own"))).parts[0]]
    store.create("still", "own", Changes())


def folder_of(model: StoredModel) -> str:
    assert isinstance(model.source, Files)
    return model.source.folder
