"""Serves a folder on this machine, for tests in a browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from server_thread import serving

# Pages get SharedArrayBuffer, which threads of WebAssembly need, only with these headers.
ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, headers: Mapping[str, str], **kwargs: Any) -> None:
        self.extra_headers = headers
        super().__init__(*args, **kwargs)

    def end_headers(self) -> None:
        for name, value in self.extra_headers.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(folder: Path, headers: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve the folder with these headers in every response, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder), headers=headers or {}))
    with serving(server):
        yield f"http://localhost:{server.server_port}/"
