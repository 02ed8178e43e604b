"""The routes of the Hugging Face Hub by which a client uploads, beside those of `fake_hub.py`: new repositories, which
files are large (LFS), the bytes of large files, and commits.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

import fake_hub
from server_thread import serving


class UploadHub(fake_hub.FakeHub):
    """``commits``: the paths of each, in order. ``objects``: large files by their SHA-256."""

    def __init__(self) -> None:
        super().__init__({})
        self.files: dict[str, dict[str, bytes]] = {}
        self.repositories = self.files
        self.commits: list[list[str]] = []
        self.objects: dict[str, bytes] = {}
        self.refuses = False


@contextmanager
def upload_hub() -> Iterator[UploadHub]:
    hub = UploadHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    with serving(server):
        yield hub


def handler(hub: UploadHub) -> Any:
    base: Any = fake_hub._handler(hub)

    class Handler(base):  # type: ignore[misc]
        def do_GET(self) -> None:
            if self.path == "/api/whoami-v2":
                self.json({"name": "owner", "type": "user"})
            else:
                super().do_GET()

        def do_PUT(self) -> None:
            hub.objects[self.path.rpartition("/")[2]] = self.body()
            self._send(200, b"", {})

        def do_POST(self) -> Any:
            path, body = self.path.partition("?")[0], self.body()
            if hub.refuses:
                return self._send(403, b'{"error": "no"}', {"X-Error-Message": "This token may not write"})
            if path == "/api/repos/create":
                name = "/".join(filter(None, (json.loads(body).get("organization"), json.loads(body)["name"])))
                hub.files.setdefault(name, {})
                return self.json({"url": f"{hub.url}/{name}"})
            if path == "/api/validate-yaml":
                return self.json({"errors": [], "warnings": []})
            if path.endswith("/preupload/main"):
                wanted = json.loads(body)["files"]
                modes = {True: "lfs", False: "regular"}
                files = [
                    {"path": f["path"], "uploadMode": modes[is_large(f["path"])], "shouldIgnore": False} for f in wanted
                ]
                return self.json({"files": files})
            if path.endswith("/info/lfs/objects/batch"):
                objects = [
                    {**each, "actions": {"upload": {"href": f"{hub.url}/put/{each['oid']}"}}}
                    for each in json.loads(body)["objects"]
                ]
                return self.json({"transfer": "basic", "objects": objects})
            if "/commit/" in path:
                return self.commit("/".join(path.split("/")[3:5]), body)
            return self._send(404, b"", {})

        def commit(self, repository: str, body: bytes) -> None:
            files, added = dict(hub.files[repository]), []
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.objects[value["oid"]]
                if line["key"] != "header":
                    added.append(value["path"])
            hub.files[repository] = files
            hub.large = hub.large | {path for path in files if is_large(path)}
            hub.commits.append(added)
            self.json({"success": True, "commitOid": "0" * 40, "commitUrl": f"{hub.url}/{repository}/commit/0"})

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return bytes(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def json(self, value: object) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    return Handler


def is_large(path: str) -> bool:
    """As .gitattributes of the hub: weights."""
    return path.endswith(".bin")
