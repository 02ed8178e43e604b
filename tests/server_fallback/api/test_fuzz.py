"""Valid and invalid requests that schemathesis generates from the app's own OpenAPI document: the document declares
each response, and none is a server error. NEARFAR_FUZZ_EXAMPLES=1000 searches longer than a test should take.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from fake_models import FakeExecutor, FakeModels
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.types import Receive, Scope, Send

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys

EXAMPLES = int(os.environ.get("NEARFAR_FUZZ_EXAMPLES", "5"))
KEY = "sk-admin-12345678"
load_all_checks()


@dataclass
class AnyModels(FakeModels):
    """Has a model of every name, so that generated requests reach one."""

    async def executor(self, name: str) -> FakeExecutor:  # noqa: ARG002
        return self.fake


@pytest.fixture(scope="module")
def document() -> Any:
    config = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": f"admin={KEY}"}))
    app = create_app(AnyModels(), config)

    async def immortal(scope: Scope, receive: Receive, send: Send) -> None:
        """The app without the end of its lifespan, which schemathesis would trigger after each request."""
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
        else:
            await app(scope, receive, send)

    return schemathesis.openapi.from_asgi("/openapi.json", immortal)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/responses/input_tokens"),
        ("GET", "/v1/responses/{response_id}"),
        ("DELETE", "/v1/responses/{response_id}"),
        ("POST", "/v1/responses/{response_id}/cancel"),
        ("GET", "/v1/responses/{response_id}/input_items"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("POST", "/v1/models/load"),
        ("POST", "/v1/models/unload"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/{model}"),
    ],
)
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_answer_is_one_that_the_document_names(
    document: Any, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    @given(document[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        derandomize=EXAMPLES < 100,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def every_answer(case: schemathesis.Case[Any]) -> None:
        # The schema cannot express all rules, for example that stream_options require stream.
        case.call_and_validate(headers={"Authorization": f"Bearer {KEY}"}, excluded_checks=[positive_data_acceptance])

    every_answer()
