"""The error for an invalid request names the parameter by its path in the body."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.validation import validation_error
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest
from nearfar.server_fallback.schema.tgi import TgiRequest
from nearfar.server_fallback.text.requests import with_name

OBFUSCATION = "stream_options.include_obfuscation"
HI = [{"role": "user", "content": "hi"}]
OK: dict[str, Any] = {"model": "m", "messages": HI}


def parts(*content: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(content)}]}


def refusal(model: type[BaseModel], body: Any) -> ApiError:
    with pytest.raises(ValidationError) as wrong:
        model.model_validate(body)
    return validation_error([{**error, "loc": ("body", *error["loc"])} for error in wrong.value.errors()], body)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({**OK, "temprature": 1}, "temprature", "unknown_parameter"),
        ({**OK, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        ({"messages": HI}, "model", "missing_required_parameter"),
        ({"model": "m", "messages": []}, "messages", "invalid_value"),
        ({"model": "m", "messages": "hi"}, "messages", "invalid_type"),
        ({"model": "m", "messages": [*HI, {"role": "robot", "content": "x"}]}, "messages[1].role", "invalid_type"),
        (parts({"type": "text"}), "messages[0].content[0].text", "missing_required_parameter"),
        (parts({"type": "text", "text": "a", "x": 1}), "messages[0].content[0].x", "unknown_parameter"),
        (
            parts({"type": "text", "text": "a"}, {"type": "image_url"}),
            "messages[0].content[1].image_url",
            "missing_required_parameter",
        ),
        (parts({"type": "image_url", "image_url": "u"}), "messages[0].content[0].image_url", "invalid_type"),
        (parts({"type": "image_url", "image_url": {"url": 1}}), "messages[0].content[0].image_url.url", "invalid_type"),
        (
            parts({"type": "image_url", "image_url": {"url": "u", "x": 1}}),
            "messages[0].content[0].image_url.x",
            "unknown_parameter",
        ),
        (parts({"type": "picture_url", "picture_url": {}}), "messages[0].content[0]", "invalid_value"),
        (
            parts({"type": "video_url", "video_url": {}}),
            "messages[0].content[0].video_url.url",
            "missing_required_parameter",
        ),
        (
            parts({"type": "input_audio", "input_audio": {"format": "wav"}}),
            "messages[0].content[0].input_audio.data",
            "missing_required_parameter",
        ),
        (parts({"text": "a"}), "messages[0].content[0].type", "missing_required_parameter"),
        ({**OK, "temperature": "0.5"}, "temperature", "invalid_type"),
        ({**OK, "temperature": 3}, "temperature", "invalid_value"),
        ({**OK, "n": 1.5}, "n", "invalid_type"),
        ({**OK, "n": True}, "n", "invalid_type"),
        ({**OK, "seed": 1 << 63}, "seed", "invalid_value"),
        ({**OK, "stop": ["a"] * 17}, "stop", None),
        ({**OK, "stop": ["a", 1]}, "stop[1]", "invalid_type"),
        ({**OK, "logit_bias": {"x": 1}}, "logit_bias.x", "invalid_type"),
        ({**OK, "logit_bias": {"5": 1, "05": 2}}, "logit_bias.05", "invalid_type"),
        ({**OK, "logit_bias": {"1_0": 1}}, "logit_bias.1_0", "invalid_type"),
        ({**OK, "response_format": {"type": "xml"}}, "response_format", "invalid_value"),
        (
            {**OK, "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        ({**OK, "tool_choice": {"type": "function"}}, "tool_choice.function", "missing_required_parameter"),
        ({**OK, "tool_choice": "sometimes"}, "tool_choice", "invalid_type"),
        ([1], None, "invalid_type"),
        ("text", None, "invalid_type"),
    ],
)
def test_the_parameter_is_named(body: Any, param: str | None, code: str | None) -> None:
    error = refusal(ChatCompletionRequest, body)
    assert error.status == 400
    assert error.param == param
    assert code is None or error.code == code
    assert param is None or param in error.message


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("input_image", "image_url"),
        ("audio_url", "input_audio"),
        ("input_file", "file_data"),
        ("output_text", "text"),
        ("tool_result", "role tool"),
        ("hologram", "leave it out"),
    ],
)
def test_a_part_of_an_unknown_type_is_named_with_those_that_are_read(kind: str, advice: str) -> None:
    error = refusal(ChatCompletionRequest, parts({"type": "text", "text": "a"}, {"type": kind, kind: "secret"}))
    assert error.message.startswith(
        f"'messages[0].content[1]' is a part of type '{kind}'; supported: text, image_url, video_url, video, "
        "input_audio, file, "
    )
    assert advice in error.message.split(";", 2)[2]
    assert "secret" not in error.message
    assert error.param == "messages[0].content[1]"


def test_an_unknown_type_of_an_answer_format_is_named() -> None:
    error = refusal(ChatCompletionRequest, {**OK, "response_format": {"type": "xml" * 100}})
    assert "'response_format' is of type 'xmlxml" in error.message
    assert "supported: text, json_object, json_schema, regex, grammar" in error.message
    assert len(error.message) < 250


def test_no_text_of_a_request_is_sent_back() -> None:
    assert "secret" not in refusal(ChatCompletionRequest, {"model": "m", "messages": "my secret"}).message


def test_numbers_in_the_forms_of_json_are_accepted() -> None:
    request = ChatCompletionRequest.model_validate({**OK, "temperature": 1, "logit_bias": {"5": -100}, "seed": -1})
    assert request.logit_bias == {5: -100}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionRequest, {"model": "m", "prompt": [*[1] * 300_000, "a"]}),
        (CompletionRequest, {"model": "m", "prompt": [[], *["a"] * 300_000]}),
        (EmbeddingRequest, {"model": "m", "input": [None] * 300_000}),
        (
            ChatCompletionRequest,
            {"model": "m", "messages": [1] * 300_000, "stop": [1] * 300_000, "tools": [1] * 300_000},
        ),
    ],
)
def test_of_a_million_mistakes_only_a_few_are_reported(model: type[BaseModel], body: Any) -> None:
    with pytest.raises(ValidationError) as wrong:
        model.model_validate(body)
    assert wrong.value.error_count() <= 20
    refusal(model, body)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("messages", [{"role": "user", "content": "hi"}] * 4097),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "a"}] * 1000}] * 17),
        ("tools", [{"type": "function", "function": {"name": "f"}}] * 1025),
        ("logit_bias", {str(token_id): 1 for token_id in range(1025)}),
    ],
)
def test_more_items_than_the_schema_allows_are_refused(key: str, value: object) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], key: value}
    with pytest.raises(ValidationError, match="at most"):
        ChatCompletionRequest.model_validate(body)


@pytest.mark.parametrize("texts", [["a"] * 2049, [[1]] * 2049])
def test_more_texts_than_openai_accepts_are_refused_and_token_ids_are_not(texts: list[object]) -> None:
    for model, key in ((EmbeddingRequest, "input"), (CompletionRequest, "prompt")):
        error = refusal(model, {"model": "m", key: texts})
        assert (error.param, "2049 texts; at most 2048" in error.message) == (key, True)
        model.model_validate({"model": "m", key: [1] * 2049})


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (TgiRequest, {"inputs": "", "parameters": {"top_n_tokens": False}}, "parameters.top_n_tokens"),
        (TgiRequest, {"inputs": "", "parameters": {"best_of": True}}, "parameters.best_of"),
        (CompletionRequest, {"model": "m", "prompt": "", "stream_options": {"include_obfuscation": 0}}, OBFUSCATION),
        (CompletionRequest, {"model": "m", "prompt": "", "cache_prompt": 1}, "cache_prompt"),
    ],
)  # fmt: skip
def test_false_is_not_0_and_1_is_not_true(model: type[BaseModel], body: Any, param: str) -> None:
    error = refusal(model, body)
    assert (error.param, error.code) == (param, "invalid_type")
    assert "Input should be" in error.message


@pytest.mark.parametrize(
    ("message", "renamed"),
    [
        ("this model makes embeddings", "this model makes embeddings"),
        ("the model is on the far side; name another model", "the model is on the far side; name another adapter_id"),
        ("model is 'x' in the address", "adapter_id is 'x' in the address"),
    ],
)
def test_a_parameter_is_renamed_where_an_error_names_it(message: str, renamed: str) -> None:
    error = with_name(RequestError(message, param="model"), "model", "adapter_id")
    assert (str(error), error.details["param"]) == (renamed, "adapter_id")
