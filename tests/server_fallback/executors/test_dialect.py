"""Requests in the dialects of other servers."""

from __future__ import annotations

from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.dialect import DIALECTS, Dialect, generation_body
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest


def chat(**options: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"model": "ours", "messages": [{"role": "user", "content": "hi"}], **options}
    )


def body(dialect: Dialect, priority: int | None = None, **options: Any) -> dict[str, Any]:
    return generation_body(chat(**options), "theirs", dialect, priority=priority)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_openais_parameters_go_as_they_are_and_the_stream_with_usage(dialect: Dialect) -> None:
    schema = {"type": "object", "properties": {"a": {"default": None, "enum": [None, 1]}}}
    options: dict[str, Any] = {
        "temperature": 0.5, "seed": 3, "stop": ["x"], "n": 2, "logit_bias": {"5": -1.0}, "logprobs": True,
        "top_logprobs": 2,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    }  # fmt: skip
    expected = {
        "model": "theirs",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert body(dialect, **options) == expected | options


@pytest.mark.parametrize("dialect", DIALECTS)
def test_images_go_as_they_are(dialect: Dialect) -> None:
    images = [{"url": "data:image/png;base64,iVBORw0KGgo="}, {"url": "https://here/a.png", "detail": "low"}]
    parts = [{"type": "text", "text": "Alike?"}, *({"type": "image_url", "image_url": image} for image in images)]
    messages = [{"role": "user", "content": parts}]
    assert body(dialect, messages=messages)["messages"] == messages


def test_parameters_for_openais_accounts_are_not_forwarded() -> None:
    sent = body(
        "openai",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
        user="u",
    )
    assert sent.keys() == {"model", "messages", "stream", "stream_options", "user"}


def test_the_newer_name_of_max_tokens_becomes_the_one_that_all_servers_know() -> None:
    assert body("openai", max_completion_tokens=7)["max_tokens"] == 7
    assert body("vllm", max_tokens=9, max_completion_tokens=7)["max_tokens"] == 7
    assert body("nearfar", max_completion_tokens=7)["max_completion_tokens"] == 7


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"response_format": {"type": "regex", "pattern": "a"}}, "response_format"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"stop_token_ids": [3]}, "stop_token_ids"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"thinking_token_budget": 0}, "thinking_token_budget"),
        ({"guided_choice": ["a", "b"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_an_extension_is_refused_if_the_server_lacks_it(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match=param) as raised:
        body("openai", **options)
    assert raised.value.details["param"] == param
    assert body("nearfar", **options).items() >= options.items()


def test_vllm_has_its_own_names_for_grammars_and_continued_messages() -> None:
    sent = body("vllm", top_k=5, response_format={"type": "regex", "pattern": "a+"}, continue_final_message=True)
    assert (sent["top_k"], sent["structured_outputs"], sent["add_generation_prompt"]) == (5, {"regex": "a+"}, False)
    assert "response_format" not in sent
    assert body("vllm", response_format={"type": "grammar", "grammar": "root ::= x"})["structured_outputs"] == {
        "grammar": "root ::= x"
    }
    assert body("vllm", response_format={"type": "json_object"})["response_format"] == {"type": "json_object"}


def test_vllms_own_parameters_go_to_it_under_its_newer_names() -> None:
    own: dict[str, Any] = {
        "stop_token_ids": [3],
        "min_tokens": 2,
        "ignore_eos": True,
        "top_k": -1,
        "chat_template_kwargs": {"a": 1},
    }
    assert body("vllm", **own).items() >= own.items()
    schema = {"type": "object", "properties": {"a": {"enum": [None]}}}
    sent = body("vllm", guided_json=schema)
    assert (sent["structured_outputs"], "guided_json" in sent) == ({"json": schema}, False)
    request = CompletionRequest(model="ours", prompt="x", guided_regex="a+")
    assert generation_body(request, "theirs", "vllm", priority=None)["structured_outputs"] == {"regex": "a+"}
    with pytest.raises(RequestError, match="guided_json and response_format both"):
        body("vllm", guided_json=schema, response_format={"type": "json_object"})


def test_each_server_gets_reasoning_by_the_name_that_it_knows() -> None:
    def last(dialect: Dialect) -> dict[str, Any]:
        turn = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}
        message: dict[str, Any] = body(dialect, messages=[turn])["messages"][-1]
        return message

    assert last("nearfar") == {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}
    assert last("vllm") == {"role": "assistant", "content": "Yes", "reasoning": "Hm"}
    assert last("openai") == {"role": "assistant", "content": "Yes"}
    sent = body("vllm", enable_thinking=False, thinking_token_budget=9, chat_template_kwargs={"a": 1})
    assert (sent["chat_template_kwargs"], sent["thinking_token_budget"]) == ({"a": 1, "enable_thinking": False}, 9)
    assert "enable_thinking" not in sent


@pytest.mark.parametrize("dialect", DIALECTS)
def test_openais_hints_are_forwarded_and_parameters_without_effect_are_not_extensions(dialect: Dialect) -> None:
    hints: dict[str, Any] = {"reasoning_effort": "low", "verbosity": "high"}
    assert body(dialect, **hints, min_tokens=0, ignore_eos=False, stop_token_ids=[]).items() >= hints.items()


def test_priorities_are_sent_to_servers_that_order_requests_by_them() -> None:
    assert body("vllm", -3)["priority"] == -3
    # The API has already replaced the request's own priority by the call's.
    assert "priority" not in generation_body(chat(priority=9), "theirs", "nearfar", priority=0)
    assert "priority" not in body("vllm", None)


def test_whether_control_tokens_are_split_is_for_servers_that_know_it() -> None:
    def sent(dialect: Dialect, split: bool) -> dict[str, Any]:
        return generation_body(
            CompletionRequest(model="ours", prompt="a", split_special_tokens=split), "theirs", dialect, priority=None
        )

    assert sent("nearfar", False)["split_special_tokens"] is False
    # vLLM never splits them, and has no parameter for it.
    assert "split_special_tokens" not in sent("vllm", False)
    assert "split_special_tokens" not in sent("sglang", False)
    refused: list[tuple[Dialect, bool]] = [("vllm", True), ("sglang", True), ("openai", True), ("openai", False)]
    for dialect, split in refused:
        with pytest.raises(RequestError, match="split_special_tokens"):
            sent(dialect, split)


def test_completions_keep_their_prompts() -> None:
    request = CompletionRequest(model="ours", prompt=[[1, 2], [3]], max_tokens=4, echo=True)
    sent = generation_body(request, "theirs", "openai", priority=None)
    assert (sent["prompt"], sent["max_tokens"], sent["echo"]) == ([[1, 2], [3]], 4, True)
