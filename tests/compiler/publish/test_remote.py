"""Uploads: by the hub's own client to a server with its routes, and by the calls of boto3's client to one in memory.
Only new files are sent, and those that name others last.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_hub_uploads import UploadHub, upload_hub

from nearfar.compiler.publish.remote import SiteFile, open_remote, site_files, upload_site
from nearfar.compiler.runtime.errors import OutputError, RequestError, ToolError

SCRIPT = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from nearfar.compiler.publish.remote import open_remote, upload_site
from nearfar.compiler.runtime.errors import OutputError

remote = open_remote("hf:owner/name")
try:
    before = remote.read("catalog.json")
    done = asdict(upload_site(Path(sys.argv[1]), remote))
    print(json.dumps([None if before is None else before.decode(), done, remote.address]))
except OutputError as error:
    print(json.dumps(str(error)))
"""
FILES = {
    "catalog.json": "{}", "m/webgpu/manifest.json": "{}", "m/webgpu/manifest.json.sig": "s", "README.md": "# m",
    "m/webgpu/weights/00000-0123456789ab.bin": "weights", "m/webgpu/kernels/a-0123456789ab.wgsl": "kernel",
}  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site"


def to_hub(hub: UploadHub, site: Path, home: Path) -> Any:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env |= {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(site)], capture_output=True, text=True, check=False, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_hub_gets_a_commit_of_new_files(site: Path, tmp_path: Path) -> None:
    with upload_hub() as hub:
        first = to_hub(hub, site, tmp_path / "home")
        assert isinstance(first, list), first
        before, done, address = first
        assert (before, done["files"], done["kept_files"]) == (None, len(FILES), 0)
        assert address == f"{hub.url}/owner/name/resolve/main/"
        assert hub.files["owner/name"] == {name: text.encode() for name, text in FILES.items()}
        assert list(hub.objects.values()) == [b"weights"]
        # Another version: one shard and the manifest differ.
        (site / "m/webgpu/weights/00000-0123456789ab.bin").rename(site / "m/webgpu/weights/00000-ba9876543210.bin")
        (site / "m/webgpu/weights/00000-ba9876543210.bin").write_text("another")
        (site / "m/webgpu/manifest.json").write_text('{"changed": 1}')
        before, done, _ = to_hub(hub, site, tmp_path / "home")
        assert before == "{}"
        assert (done["files"], done["kept_files"]) == (2, len(FILES) - 2)
        assert sorted(hub.commits[-1]) == ["m/webgpu/manifest.json", "m/webgpu/weights/00000-ba9876543210.bin"]
        # Nothing new, no commit.
        assert to_hub(hub, site, tmp_path / "home")[1]["files"] == 0
        assert len(hub.commits) == 2
        hub.refuses = True
        (site / "README.md").write_text("# other")
        error = to_hub(hub, site, tmp_path / "home")
        assert error.startswith("hf:owner/name: ")
        assert "hf auth login" in error


class MemoryBucket:
    """The calls of boto3's S3 client, on objects in memory; a page of a list has two."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, Mapping[str, Any]]] = {}
        self.sent: list[str] = []

    def upload_file(self, filename: str, bucket: str, key: str, *, ExtraArgs: Mapping[str, Any]) -> None:
        assert bucket == "models"
        self.objects[key] = (Path(filename).read_bytes(), ExtraArgs)
        self.sent.append(key)

    def get_paginator(self, name: str) -> MemoryBucket:
        assert name == "list_objects_v2"
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> list[dict[str, Any]]:  # noqa: ARG002
        keys = sorted(key for key in self.objects if key.startswith(Prefix))
        listed = [{"Key": key, "Size": len(self.objects[key][0])} for key in keys]
        return [{"Contents": listed[start : start + 2]} for start in range(0, len(listed), 2)] or [{}]

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: ARG002
        return {"Metadata": self.objects[Key][1]["Metadata"]}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: ARG002
        return {"Body": io.BytesIO(self.objects[Key][0])}


class ClientError(Exception):
    pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    made = MemoryBucket()
    modules = {name: ModuleType(name) for name in ("boto3", "boto3.exceptions", "botocore", "botocore.exceptions")}
    vars(modules["boto3"])["client"] = lambda service: {"s3": made}[service]
    vars(modules["boto3.exceptions"])["Boto3Error"] = type("Boto3Error", (Exception,), {})
    vars(modules["botocore.exceptions"]).update(BotoCoreError=type("B", (Exception,), {}), ClientError=ClientError)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_a_bucket_gets_new_files_and_the_catalog_last(site: Path, bucket: MemoryBucket) -> None:
    remote = open_remote("s3://models/public/")
    assert remote.read("catalog.json") is None
    done = upload_site(site, remote)
    assert (done.files, done.kept_files) == (len(FILES), 0)
    assert [key.rpartition("/")[2] for key in bucket.sent[-3:]] == [
        "manifest.json.sig",
        "manifest.json",
        "catalog.json",
    ]
    assert bucket.objects.keys() == {f"public/{name}" for name in FILES}
    shard = bucket.objects["public/m/webgpu/weights/00000-0123456789ab.bin"][1]
    assert "immutable" in shard["CacheControl"]
    manifest = bucket.objects["public/m/webgpu/manifest.json"][1]
    assert (manifest["CacheControl"], manifest["ContentType"]) == ("no-cache", "application/json")
    assert remote.read("catalog.json") == b"{}"
    # Equal sizes are not equal bytes.
    (site / "README.md").write_text("# n")
    again = upload_site(site, remote)
    assert (again.files, again.kept_files) == (1, len(FILES) - 1)
    assert bucket.sent[-1] == "public/README.md"


def test_a_bucket_that_refuses_is_an_error_of_the_output(site: Path, bucket: MemoryBucket) -> None:
    def refuse(**_: object) -> None:
        raise ClientError("An error occurred (AccessDenied)")

    vars(bucket)["paginate"] = refuse
    with pytest.raises(OutputError, match=r"s3://models/p: An error occurred \(AccessDenied\)"):
        upload_site(site, open_remote("s3://models/p"))


def test_without_boto3_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ToolError, match=r"pip install 'nearfar\[s3\]'"):
        open_remote("s3://models")


@pytest.mark.parametrize("place", ["hf:name", "s3://", "s3:models", "https://models.example", ""])
def test_other_places_are_refused(place: str) -> None:
    with pytest.raises(RequestError, match="is neither hf:OWNER/NAME nor s3://BUCKET/PREFIX"):
        open_remote(place)


def test_gits_id_of_a_file_is_gits(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"some\nbytes\r\n")
    git = subprocess.run(
        ["git", "hash-object", "--no-filters", "a"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert SiteFile("a", tmp_path / "a").git_id == git.stdout.strip()
    assert [file.name for file in site_files(tmp_path)] == ["a"]


def test_hidden_files_are_not_uploaded(site: Path) -> None:
    for name in (".git/config", ".env", "m/.DS_Store"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text("secret")
    assert {file.name for file in site_files(site)} == set(FILES)
