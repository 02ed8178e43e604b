"""The page of the web package and one bundle, served on this machine: the page at /, the bundle at /bundle/."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import RequestError, ToolError

PAGE = Path(__file__).resolve().parents[2] / "web" / "dist" / "page"


class PageServer:
    """Serves on 127.0.0.1 while in a ``with`` block. ``port`` 0 takes a free one. Raises ToolError when the page has not been built."""

    def __init__(self, bundle: Path, port: int = 0) -> None:
        if not (PAGE / "index.html").is_file():
            raise ToolError("the web page is not built; run 'make web' in a checkout (it needs Node.js 20 or newer)")
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, bundle=bundle.resolve()))
        except OSError as error:
            raise RequestError(f"--port {port}: {error.strerror}; choose another, or 0 for a free one") from error
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://localhost:{self._server.server_port}/"

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Handler(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript", ".wgsl": "text/plain"}  # noqa: RUF012

    def __init__(self, *arguments: Any, bundle: Path) -> None:
        self._bundle = bundle
        super().__init__(*arguments, directory=str(PAGE))

    def translate_path(self, path: str) -> str:
        """A file of the page, or below /bundle/ one of the bundle. The base class keeps both inside their folders."""
        if path.startswith("/bundle/"):
            self.directory = str(self._bundle)
            return super().translate_path(path.removeprefix("/bundle"))
        self.directory = str(PAGE)
        return super().translate_path(path)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing: the terminal is for the answer."""
