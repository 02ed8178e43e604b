"""A store whose files somebody else has changed: nothing leads out of it, and no wrong bytes are used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.formats import load
from nearfar.compiler.runtime.errors import CheckpointError, RequestError
from nearfar.compiler.store import sources
from nearfar.compiler.store.blobs import Blobs
from nearfar.compiler.store.model import Changes, Files, StoredModel
from nearfar.compiler.store.names import UnknownModel
from nearfar.compiler.store.parameters import Parameters
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


def test_a_model_s_folder_cannot_link_to_other_files_of_the_machine(store: Store, tmp_path: Path) -> None:
    own, adapter, secret = tmp_path / "m", tmp_path / "adapter", tmp_path / "secret"
    shutil.copytree(CHECKPOINT, own)
    secret.write_text('{"a": "b"}')
    (own / "extra.json").symlink_to(secret)
    adapter.mkdir()
    (adapter / "adapter_config.json").symlink_to(secret)
    (adapter / "adapter_model.safetensors").touch()
    for read in (
        lambda: store.pull(str(own), "copy"),
        lambda: store.create("derived", str(own), Changes()),
        lambda: store.create("adapted", "own", Changes(adapter=adapter)),
        lambda: load(str(own)),
    ):
        with pytest.raises(CheckpointError, match=r"\.json: is a link to .*secret, outside of the folder"):
            read()
    assert [model.name for model in store.models()] == ["own"]
    # Weights elsewhere compile, for only their numbers are read; copied, they would be anything.
    (own / "extra.json").unlink()
    (own / "model.safetensors").rename(tmp_path / "weights")
    (own / "model.safetensors").symlink_to(tmp_path / "weights")
    assert load(str(own)).spec == load(str(CHECKPOINT)).spec
    with pytest.raises(CheckpointError, match="outside of the folder"):
        store.pull(str(own), "copy")


def test_a_snapshot_of_the_hub_s_cache_links_to_its_blobs(store: Store, tmp_path: Path) -> None:
    repository = tmp_path / "models--me--model"
    snapshot = repository / "snapshots/0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(each for each in CHECKPOINT.iterdir() if each.is_file()):
        shutil.copy(file, repository / f"blobs/{number}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert store.pull(str(snapshot), "copy").source == store.get("own").source.model_copy(
        update={"folder": store.get("copy").source.folder}  # type: ignore[union-attr]
    )


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
    (files / ".incoming-x").mkdir()
    (files / ".incoming-x" / "weights").write_bytes(b"half")
    (store.folder / "models" / ".x").write_bytes(b"half a record")
    uploads = store.folder / "downloads"
    (uploads / "old-folder").mkdir(parents=True)
    (uploads / "upload-new").write_bytes(b"x")
    for path in (uploads / ".upload-old", uploads / "upload-old", uploads / "old-folder"):
        path.touch()
        os.utime(path, (0, 0))
    with store._adding():
        store.prune(10**12)
        assert (files / ("0" * 24) / "half").exists()
        assert (files / ".incoming-x" / "weights").exists()
    store.prune(10**12)
    assert sorted(path.name for path in files.iterdir()) == [Path(folder_of(store.get("own"))).parts[0]]
    assert [path.name for path in (store.folder / "models").iterdir()] == ["own%3Alatest.json"]
    assert [path.name for path in uploads.iterdir()] == ["upload-new"]
    store.create("still", "own", Changes())


def test_many_processes_add_and_remove_the_same_model_at_once(store: Store) -> None:
    """Each opens the store's lock by itself, as a process does."""

    def work(number: int) -> None:
        for turn in range(4):
            name = f"own-{number % 2}"
            pulled = store.pull(str(CHECKPOINT), name)
            # Another one may have removed it, but never a part of its files.
            found = store.find(name)
            assert found is None or found.source == pulled.source
            with suppress(UnknownModel):
                store.copy(name, f"copy-{number}")
            with suppress(UnknownModel):
                store.remove(name) if turn % 2 else store.prune(0)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, number) for number in range(4)]:
            done.result()
    for model in store.models():
        store.verify(model)
    assert store.has("own")


def test_files_that_are_stored_already_stay_where_others_read_them(store: Store) -> None:
    path = store.path(store.get("own")) / "config.json"
    before = path.stat().st_ino
    store.pull(str(CHECKPOINT), "again")
    assert path.stat().st_ino == before
    # Damaged ones are replaced.
    path.unlink()
    path.write_bytes(b"0" * len((CHECKPOINT / "config.json").read_bytes()))
    store.pull(str(CHECKPOINT), "again")
    store.verify(store.get("own"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (Changes(system="\ud800"), "half of a surrogate pair"),
        (Changes(license=("x" * (17 << 20),)), "at most 16,777,216 are supported"),
        (Changes(parameters=Parameters(repeat_penalty=1.5)), "the last 64 tokens is not supported"),
    ],
)
def test_a_record_that_could_not_be_read_back_is_not_written(store: Store, changes: Changes, message: str) -> None:
    store.create("base", "own", Changes(parameters=Parameters(repeat_last_n=64)))
    with pytest.raises(RequestError, match=message):
        store.create("own", "base", changes)
    assert store.get("own").parent is None
    assert not list((store.folder / "models").glob(".*"))


def test_a_path_is_not_read_for_others_although_it_looks_like_a_name_of_the_hub(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "_of_hub", lambda repository, *_: pytest.fail(f"{repository.repository} was asked"))
    store.pull("owner/model", "mine")
    for work in (partial(store.pull, "owner/model"), partial(store.create, "made", "owner/model", Changes())):
        with pytest.raises(pytest.fail.Exception, match="owner/model was asked"):
            work(local=False)


def test_the_home_of_an_unknown_user_is_no_path(store: Store) -> None:
    with pytest.raises(CheckpointError, match="is neither a path"):
        store.pull("~nobody-has-this-name/model")


def folder_of(model: StoredModel) -> str:
    assert isinstance(model.source, Files)
    return model.source.folder
