"""nearfar ps: the models that a server has loaded, by Ollama's API."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..runtime.errors import RequestError, Unavailable, reason_of
from .options import Ps
from .output import megabytes, new_console, print_json

TIMEOUT_S = 10.0
MAX_BYTES = 1 << 20


def run(options: Ps) -> None:
    """Raises Unavailable if no server answers, and RequestError if it refuses or is of another kind."""
    models = loaded_models(options)
    if options.json:
        print_json({"models": models})
        return
    if not models:
        print("no models are loaded")
        return
    table = Table("name", "memory", "on", "unloads", box=None, padding=(0, 2), header_style="dim")
    for model in models:
        table.add_row(
            escape(str(model["name"])), megabytes(int(model["size"])), escape(str(model.get("device", ""))),
            unloads(model.get("expires_at")),
        )  # fmt: skip
    new_console(soft_wrap=True).print(table)


def loaded_models(options: Ps) -> list[dict[str, Any]]:
    if not options.server.startswith(("http://", "https://")):
        raise RequestError(f"--server {options.server}: is not the address of a server; write http://HOST:PORT")
    key = os.environ.get(options.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{options.server.rstrip('/')}/api/ps", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            found: list[dict[str, Any]] = json.loads(response.read(MAX_BYTES))["models"]
            return found
    except urllib.error.HTTPError as error:
        raise RequestError(
            f"{options.server}: answered with status {error.code}; pass its key, or its address"
        ) from error
    except OSError as error:
        raise Unavailable(
            f"{options.server}: {reason_of(error)}; start nearfar serve, or pass its address with --server"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{options.server}: is not a server with Ollama's API; pass another --server") from error


def unloads(expires_at: str | None) -> str:
    """When a model is unloaded, if no request uses it before."""
    if expires_at is None:
        return ""
    seconds = (datetime.fromisoformat(expires_at) - datetime.now(UTC)).total_seconds()
    if seconds > 10 * 365 * 86_400:
        return "never"
    return f"in {seconds / 60:.0f} min" if seconds >= 90 else f"in {max(0.0, seconds):.0f} s"
