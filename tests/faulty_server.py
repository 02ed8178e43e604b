"""A file server that treats downloads as real servers do: it cuts them off, damages them, ignores ranges, and closes
connections.
"""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TIMEOUT_MS = 180_000
CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript"}


@dataclass
class Behaviour:
    """The faults of the server, by path, and the requests that it received.

    ``cut``: bytes after which it closes the connection. It then refuses the file once, so that the load fails, unless
    it ``recovers``. ``hold``: bytes after which it waits until ``go``; ``cut`` then counts from there. ``damage``: the
    number of answers with a flipped byte.
    """

    ranges: bool = True
    version: str = "1"
    recovers: bool = False
    cut: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    hold: dict[str, int] = field(default_factory=dict)
    damage: dict[str, int] = field(default_factory=dict)
    go: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str | None, int]] = field(default_factory=list)

    def received(self, suffix: str) -> list[tuple[str | None, int]]:
        """The ranges and the status codes of the requests whose path ends with the suffix."""
        return [(range_, status) for path, range_, status in self.requests if path.endswith(suffix)]


class Handler(BaseHTTPRequestHandler):
    # Chromium sends an ETag only to a server that speaks HTTP/1.1.
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, folder: Path, behaviour: Behaviour) -> None:
        self._folder, self._behaviour = folder, behaviour
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        file = self._folder / path.lstrip("/")
        if not file.is_file():
            self._answer(path, 404, b"", {})
            return
        behaviour, data = self._behaviour, bytearray(file.read_bytes())
        if path in behaviour.refused:
            behaviour.refused.remove(path)
            self._send_head(410, 0)
            return
        etag = f'"{hashlib.sha256(data).hexdigest()[:8]}-{behaviour.version}"'
        headers = {
            "ETag": etag,
            "Content-Type": CONTENT_TYPES.get(file.suffix, "application/octet-stream"),
        }
        if self.headers.get("If-None-Match") == etag:
            self._answer(path, 304, b"", headers)
            return
        if behaviour.damage.get(path, 0) > 0:
            behaviour.damage[path] -= 1
            data[len(data) // 2] ^= 1
        matched = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if matched and behaviour.ranges and self.headers.get("If-Range", etag) == etag:
            start = int(matched[1])
            self._answer(
                path,
                206,
                bytes(data[start:]),
                {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"},
            )
        else:
            self._answer(path, 200, bytes(data), headers)

    def do_HEAD(self) -> None:
        """Answer the first request of a load: whether the file exists, and its size."""
        file = self._folder / self.path.split("?")[0].lstrip("/")
        self._send_head(*((200, file.stat().st_size) if file.is_file() else (404, 0)))

    def _send_head(self, status: int, size: int) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(size),
            "Access-Control-Allow-Origin": "*",
            "Connection": "close",
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, path: str, status: int, data: bytes, headers: dict[str, str]) -> None:
        behaviour = self._behaviour
        behaviour.requests.append((path, self.headers.get("Range"), status))
        self.send_response(status)
        for name, value in {
            **headers,
            "Content-Length": str(len(data)),
            "Access-Control-Allow-Origin": "*",
            "Connection": "close",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            if path in behaviour.hold:
                sent = behaviour.hold.pop(path)
                self.wfile.write(data[:sent])
                behaviour.held.set()
                behaviour.go.wait(TIMEOUT_MS / 1000)
                data = data[sent:]
            if path in behaviour.cut:
                data = data[: behaviour.cut.pop(path)]
                behaviour.refused |= set() if behaviour.recovers else {path}
            self.wfile.write(data)
        except OSError:
            pass  # The page was closed.

    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass
class Server:
    folder: Path
    behaviour: Behaviour
    server: ThreadingHTTPServer
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def stop(self) -> None:
        self.behaviour.go.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def serve(folder: Path) -> Server:
    behaviour = Behaviour()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, folder=folder, behaviour=behaviour))
    # A paused answer must not block the server from stopping.
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    return Server(folder, behaviour, server, thread)
