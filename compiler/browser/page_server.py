"""Serves the page of the web package and one bundle on this machine.

The page is at /, the bundle at /bundle/, an embedding model's bundle at /encoder/, that of a model of sound at
/transcriber/, that of a model that finds private texts at /finder/, and a policy at /policy.json.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any
from urllib.parse import urlencode

from ..runtime.errors import RequestError, ToolError, reason_of

PAGE = Path(__file__).resolve().parents[2] / "web" / "dist" / "page"
POLICY_PATH = "/policy.json"


def require_page() -> None:
    """Raises ToolError if the page has not been built: an editable install does not build it."""
    if not (PAGE / "index.html").is_file():
        raise ToolError("the web page is not built; run 'make web' in a checkout (it needs Node.js 20 or newer)")


class PageServer:
    """Serves on 127.0.0.1 while in a ``with`` block. ``port`` 0 chooses a free port. Raises ToolError if the page has
    not been built.

    ``far``: the address of a server that may answer too. The policy in the file ``policy`` decides; None uses the
    page's own policy. ``encoder``: the bundle that embeds for the documents page. ``transcriber``: the bundle that
    writes down what is said. ``finder``: the bundle that finds what the chat page masks for the server.
    """

    def __init__(
        self,
        bundle: Path,
        port: int = 0,
        *,
        far: str | None = None,
        policy: Path | None = None,
        encoder: Path | None = None,
        transcriber: Path | None = None,
        finder: Path | None = None,
    ) -> None:
        require_page()
        bundles = {"bundle": bundle, "encoder": encoder, "transcriber": transcriber, "finder": finder}
        try:
            folders = {name: path.resolve() for name, path in bundles.items() if path is not None}
            self._server = Server(("127.0.0.1", port), partial(Handler, folders=folders, policy=policy))
        except (OSError, OverflowError) as error:
            raise RequestError(
                f"--port {port}: {reason_of(error)}; choose another port, or 0 for a free one"
            ) from error
        parameters = {
            "far": far,
            "policy": None if policy is None else f".{POLICY_PATH}",
            "transcriber": None if transcriber is None else "./transcriber/",
        }
        self._parameters = {name: value for name, value in parameters.items() if value is not None}
        self._finds = {} if finder is None else {"finder": "./finder/"}
        self.bundle = bundle
        # Whether the documents page has a model that embeds, and whether one transcribes.
        self.embeds, self.transcribes = encoder is not None, transcriber is not None
        # It looks this often whether it should end.
        polling = {"poll_interval": 0.05}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=polling, daemon=True)

    @property
    def url(self) -> str:
        return f"{self.origin}/"

    @property
    def origin(self) -> str:
        """The origin that a server must allow, so that this page can call it."""
        return f"http://localhost:{self._server.server_port}"

    @property
    def chat_url(self) -> str:
        """The address of the chat page, with the server, the policy and the other models as parameters."""
        return self._with_parameters("", self._finds)

    @property
    def documents_url(self) -> str:
        """The address of the documents page, likewise."""
        return self._with_parameters("documents.html")

    @property
    def transcripts_url(self) -> str:
        """The address of the transcripts page."""
        return f"{self.url}transcripts.html"

    @property
    def voice_url(self) -> str:
        """The address of the voice page, as that of the chat page."""
        return self._with_parameters("voice.html")

    def _with_parameters(self, page: str, more: Mapping[str, str] = MappingProxyType({})) -> str:
        query = urlencode({**self._parameters, **more}, safe=":/")
        return f"{self.url}{page}" + (f"?{query}" if query else "")

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that leaves cuts the connections of its downloads, which is not an error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript", ".wgsl": "text/plain"}  # noqa: RUF012

    def __init__(self, *arguments: Any, folders: Mapping[str, Path], policy: Path | None) -> None:
        self._folders, self._policy = folders, policy
        super().__init__(*arguments, directory=str(PAGE))

    def translate_path(self, path: str) -> str:
        """The path of a file of the page, of a bundle (below the name of its part, such as /bundle/), or of the policy.

        The base class prevents paths outside of the folders of the page and the bundles.
        """
        if self._policy is not None and path == POLICY_PATH:
            return str(self._policy)
        name = path.split("/")[1] if path.count("/") > 1 else ""
        if name in self._folders:
            self.directory = str(self._folders[name])
            return super().translate_path(path.removeprefix(f"/{name}"))
        self.directory = str(PAGE)
        return super().translate_path(path)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing, because the terminal shows the answer."""
