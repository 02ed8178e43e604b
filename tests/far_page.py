"""A page with an engine that may have prompts computed by a server, its network's speed, and such a server's executor.
The page's clock is the real one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import CDPSession

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel

SCRIPT = Path(__file__).with_name("far_page.js")
READY = "body[data-state=ready]"


def write_site(folder: Path, bundle: Path) -> None:
    """The page in the new folder, with the bundle."""
    folder.mkdir()
    for name in ("nearfar.js", "hybrid.js", "prefill.js", "masks.js"):
        shutil.copy(PAGE.parent / name, folder)
    shutil.copy(SCRIPT, folder / "page.js")
    shutil.copytree(bundle, folder / "bundle")
    html = '<!doctype html><link rel="icon" href="data:,"><body><script type="module" src="page.js"></script>'
    (folder / "index.html").write_text(html)


def throttle(session: CDPSession, bytes_per_second: float | None, latency_ms: float = 0) -> None:
    """Have the page receive that many bytes a second; None: as fast as this machine can. ``latency_ms`` is the time
    until the response of a request.
    """
    limit = -1 if bytes_per_second is None else round(bytes_per_second)
    session.send("Network.enable")
    session.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": latency_ms, "downloadThroughput": limit, "uploadThroughput": -1},
    )


def executor_of(bundle: Path, name: str, kind: type[LocalExecutor] = LocalExecutor) -> LocalExecutor:
    """Computes prompts on numpy, with room for two at a time."""
    opened = open_bundle(bundle)
    pages = 4 * opened.manifest.pages_for(opened.manifest.context)
    runner = ReferenceRunner(opened, limits=Limits(tokens=256, sequences=2, rows=2, pages=pages))
    return kind(TokenEngine(runner, TokenModel.of(opened.manifest)), TextModel.of(opened, name))
