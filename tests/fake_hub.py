"""A server with the routes of the Hugging Face Hub that downloads need, for repositories in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event

from server_thread import serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """``repositories``: files by name, of which those of ``large`` are stored as large files (LFS). The connection is
    lost after ``limit_bytes`` of a body, once. The first request for ``missing`` gets status 503. After
    ``held_bytes`` of a body, once, the rest waits until ``resumed`` is set. ``requested`` has each file of a GET, with
    its header Range.
    """

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.limit_bytes: int | None = None
        self.missing: str | None = None
        self.large = frozenset({"model.safetensors"})
        self.held_bytes: int | None = None
        self.resumed = Event()
        self.requested: list[tuple[str, str | None]] = []
        self.url = ""


@contextmanager
def fake_hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[FakeHub]:
    hub = FakeHub(repositories)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    with serving(server):
        yield hub


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0].strip("/")
            if path.startswith("api/models/"):
                repository = "/".join(path.split("/")[2:4])
                files = hub.repositories.get(repository)
                if files is None:
                    return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
                body: object = [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in files.items()
                ]
                if "/tree/" not in path:
                    siblings = [_sibling(name, content, large=name in hub.large) for name, content in files.items()]
                    body = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}
                return self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
            owner, name, _, _, file = path.split("/", 4)
            content = hub.repositories[f"{owner}/{name}"][file]
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if not with_body:
                return self._send(200, content, headers, with_body=False)
            wanted = self.headers.get("Range")
            hub.requested.append((file, wanted))
            if file == hub.missing:
                hub.missing = None
                return self._send(503, b"", {})
            start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            if wanted:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return self._send(206 if wanted else 200, content[start:], headers)

        def _send(self, status: int, body: bytes, headers: Mapping[str, str], *, with_body: bool = True) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if not with_body:
                return
            limit = hub.limit_bytes
            if limit is not None and len(body) > limit:
                hub.limit_bytes, self.close_connection = None, True
                body = body[:limit]
            held = hub.held_bytes
            if held is not None and len(body) > held:
                hub.held_bytes = None
                self.wfile.write(body[:held])
                hub.resumed.wait()
                body = body[held:]
            with suppress(ConnectionError):
                self.wfile.write(body)

    return Handler


def _sibling(name: str, content: bytes, *, large: bool) -> dict[str, object]:
    git_id = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    sibling = {"rfilename": name, "size": len(content), "blobId": git_id}
    lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return {**sibling, "lfs": lfs} if large else sibling
