"""Which parameters of OpenAI's and vLLM's APIs are accepted, and which are refused by their name.

The table is also the browser's (web/test/api/parameters.test.ts).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from asgi import HI, ask_app, run
from fake_models import FakeExecutor, FakeModels
from fake_source import executor
from fastapi import FastAPI

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.validation import ADVICE

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "conformance" / "parameters.json").read_text("utf-8")
)
PATHS = {"chat": ("/v1/chat/completions", HI), "completions": ("/v1/completions", {"model": "fake", "prompt": "a"})}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """Created once, because that takes longer than a request."""
    local, _ = executor(tmp_path_factory.mktemp("model"), "abc")
    return create_app(FakeModels(fake=cast("FakeExecutor", local)), ApiConfig())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['route']} {json.dumps(row['params'])}")
def test_each_parameter_is_accepted_or_refused_by_its_name(row: dict[str, Any], app: FastAPI) -> None:
    path, body = PATHS[row["route"]]
    response = run(ask_app(app, "POST", path, {**body, **row["params"]}))
    refused = None if response.status_code == 200 else response.json()["error"]["param"]
    assert refused == row["server"], response.text
    if refused in row["params"] and refused in ADVICE:
        assert ADVICE[refused] in response.json()["error"]["message"]


def test_the_table_names_every_parameter_with_advice() -> None:
    assert set(ADVICE) <= {row["server"] for row in ROWS}
