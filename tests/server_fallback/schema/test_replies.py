"""The server sends the fields that its declarations name, from which the page's types follow, and no others."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import pytest
from asgi import HI, ask
from encoders import ModelsWithEncoders, encoders
from fake_models import FakeExecutor, FakeModels
from fake_source import executor

from nearfar.server_fallback.schema.typescript import reply_schema

TEXT = {"model": "fake", "prompt": "ab"}
TOOL = {"type": "function", "function": {"name": "f"}}
LISTED = {"n": 2, "return_token_ids": True, "prompt_logprobs": 1}
CHATS: list[dict[str, Any]] = [{}, {"stop": "b"}, {**LISTED, "logprobs": True, "top_logprobs": 1}]
TEXTS: list[dict[str, Any]] = [{}, {"stop": "b"}, {**LISTED, "logprobs": 1, "echo": True}]
CALLS: list[dict[str, Any]] = [{"tools": [TOOL]}, {"functions": [TOOL["function"]]}]


def require(name: str, value: object) -> None:
    """Raises ValidationError unless the value has each field that is always sent, and none that is not declared."""
    validator_of(name).validate(value)


@cache
def validator_of(name: str) -> Any:
    definitions = reply_schema()["$defs"]
    for each in definitions.values():
        each["additionalProperties"] = False
    text = json.dumps({"$defs": definitions, "$ref": name}).replace('"$ref": "', '"$ref": "#/$defs/')
    return jsonschema_rs.validator_for(json.loads(text))


def require_answers(path: str, body: dict[str, Any], models: FakeModels, whole: str, chunk: str) -> None:
    """A whole answer, a streamed one, and a streamed one with usage."""
    response = ask("POST", path, body, models)
    assert response.status_code == 200, response.text
    require(whole, response.json())
    for options in ({}, {"stream_options": {"include_usage": True}}):
        lines = ask("POST", path, {**body, "stream": True, **options}, models).text.splitlines()
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert len(chunks) > 1
        for each in chunks:
            require(chunk, each)
            assert ("usage" in each) == bool(options)


@pytest.mark.parametrize("params", CHATS)
def test_chats_have_the_declared_fields(params: dict[str, Any], tmp_path: Path) -> None:
    models = FakeModels(fake=cast("FakeExecutor", executor(tmp_path, *6 * ["abc"])[0]))
    require_answers("/v1/chat/completions", HI | params, models, "ChatCompletion", "ChatCompletionChunk")


@pytest.mark.parametrize("params", CALLS)
def test_calls_have_the_declared_fields(params: dict[str, Any]) -> None:
    require_answers("/v1/chat/completions", HI | params, FakeModels(), "ChatCompletion", "ChatCompletionChunk")


@pytest.mark.parametrize("params", TEXTS)
def test_texts_have_the_declared_fields(params: dict[str, Any], tmp_path: Path) -> None:
    models = FakeModels(fake=cast("FakeExecutor", executor(tmp_path, *6 * ["abc"])[0]))
    require_answers("/v1/completions", TEXT | params, models, "Completion", "CompletionChunk")


def test_scores_and_errors_have_the_declared_fields(tmp_path: Path) -> None:
    models = ModelsWithEncoders(encoders=encoders(tmp_path))

    def answer(path: str, **body: Any) -> Any:
        return ask("POST", path, body, models).json()

    for returns in (True, False):
        given = answer("/v1/rerank", model="rank", query="a", documents=["a", "b"], return_documents=returns)
        require("RerankResponse", given)
        assert ("document" in given["results"][0]) == returns
    require("ScoreResponse", answer("/v1/score", model="rank", text_1="a", text_2=["a"]))
    require("ClassifyResponse", answer("/v1/classify", model="classify", input="ab"))
    require("ClassifyResponse", answer("/v1/classify", model="tag", input="ab"))
    require("ErrorDetail", answer("/v1/score", model="none")["error"])
