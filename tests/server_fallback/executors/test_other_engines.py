"""What we send to vLLM and SGLang against what their newest version accepts, as `other_engines/read_engine.py` has read
it. Both drop unknown fields of requests silently, so no server would report such a mistake.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nearfar import server_fallback
from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.executors import sglang, upstream_executor, vllm
from nearfar.server_fallback.executors.dialect import Dialect, generation_body, health_path, other_body
from nearfar.server_fallback.executors.refusal import streamed_error
from nearfar.server_fallback.executors.vllm import NodeOptions, VllmOptions
from nearfar.server_fallback.executors.vllm_arguments import PARSER_OF_FAMILY, PARSER_OF_FORMAT, CheckpointFacts
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.common import GenerationRequest
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.tokenize import DetokenizeRequest, TokenizeRequest

FACTS: dict[str, Any] = {
    name: json.loads((Path(__file__).parent / "other_engines" / f"{name}.json").read_text())
    for name in ("vllm", "sglang")
}
KINDS: dict[str, type[ChatCompletionRequest] | type[CompletionRequest]] = {
    "chat": ChatCompletionRequest,
    "completion": CompletionRequest,
}
# Part of a request's route, of its older form, or without any effect on another server.
NEVER_SENT = {"model", "messages", "prompt", "stream", "functions", "function_call", "priority"}
# As README.md states: it is a hint, which only our own engine passes to the template.
IGNORED = {"verbosity"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SAMPLES: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 1, "stream_options": {"include_usage": True},
    "n": 2, "stop": ["x"], "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {"5": 1.0}, "user": "u",
    "repetition_penalty": 1.1, "stop_token_ids": [3], "min_tokens": 2, "ignore_eos": True,
    "structured_outputs": {"json": SCHEMA}, "guided_json": SCHEMA, "guided_regex": "a+", "guided_choice": ["a.", "b"],
    "guided_grammar": 'root ::= "a"', "prompt_logprobs": 1, "return_token_ids": True, "receipt": True,
    "skip_special_tokens": False, "include_stop_str_in_output": True, "max_tokens": 4, "max_completion_tokens": 4,
    "response_format": {"type": "regex", "pattern": "a+"},
    "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none", "parallel_tool_calls": False,
    "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k",
    "prompt_cache_retention": "24h", "prediction": {"type": "content", "content": "a"}, "modalities": ["text"],
    "reasoning_effort": "low", "verbosity": "low", "chat_template_kwargs": {"a": 1}, "thinking_token_budget": 5,
    "enable_thinking": True, "continue_final_message": True, "echo": True, "best_of": 1, "suffix": "z", "middle": "y",
    "input_extra": [{"filename": "f", "text": "t"}], "split_special_tokens": True, "top_logprobs": 2, "watermark": True,
    "id_slot": 0, "cache_prompt": True,
}  # fmt: skip


def request(kind: str, **options: Any) -> GenerationRequest:
    given = {"messages": [{"role": "user", "content": "hi"}]} if kind == "chat" else {"prompt": "hi"}
    return KINDS[kind].model_validate({"model": "ours", **given, **options})


def samples(kind: str) -> list[dict[str, Any]]:
    logprobs: object = True if kind == "chat" else 2
    values = {**SAMPLES, "logprobs": logprobs}
    # A parameter that is new must be added to the table.
    names = KINDS[kind].model_fields.keys() - NEVER_SENT
    assert names <= values.keys()
    return [{name: values[name], **({"logprobs": True} if name == "top_logprobs" else {})} for name in sorted(names)]


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_every_parameter_has_a_field_of_the_other_server_or_is_refused(dialect: Dialect, kind: str) -> None:
    fields, refused = set(FACTS[dialect]["requests"][kind]) | IGNORED, set[str]()
    for options in samples(kind):
        try:
            body = generation_body(request(kind, **options), "theirs", dialect, priority=1)
        except RequestError as error:
            refused.add(str(error.details["param"]))
            continue
        assert body.keys() <= fields, options
        assert set(body["stream_options"]) <= set(FACTS[dialect]["requests"]["stream_options"])
        if dialect == "vllm":
            assert set(body.get("structured_outputs", {})) <= set(FACTS["vllm"]["requests"]["structured_outputs"])
    expected = {
        ("vllm", "chat"): set(),
        ("sglang", "chat"): {"return_token_ids", "thinking_token_budget"},
    }
    of_all = {"receipt", "watermark", "prompt_logprobs", "id_slot"}
    assert refused == of_all | expected.get((dialect, kind), {"suffix", "split_special_tokens"})


def test_answer_forms_have_sglangs_names() -> None:
    def form(kind: str = "chat", **options: Any) -> dict[str, Any]:
        body = generation_body(request(kind, **options), "theirs", "sglang", priority=None)
        return {name: body[name] for name in ("regex", "ebnf", "response_format", "json_schema") if name in body}

    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    own = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    assert form(response_format={"type": "regex", "pattern": "a+"}) == {"regex": "a+"}
    assert form(response_format={"type": "grammar", "grammar": "root ::= x"}) == {"ebnf": "root ::= x"}
    assert form(response_format=own) == {"response_format": own}
    assert form(response_format={"type": "json_object"}) == {"response_format": {"type": "json_object"}}
    assert form("completion", guided_json=SCHEMA) == {"response_format": schema}
    assert form(structured_outputs={"json": json.dumps(SCHEMA)}) == {"response_format": schema}
    assert form(structured_outputs={"json_object": True})["response_format"]["json_schema"]["schema"] == {
        "type": "object"
    }
    assert form("completion", guided_choice=["a.b", "c"]) == {"regex": r"a\.b|c"}
    assert form(guided_grammar="root ::= y") == {"ebnf": "root ::= y"}
    assert form(structured_outputs={}) == {}


def test_sglang_gets_the_switch_of_the_reasoning_under_both_names() -> None:
    turn = {"role": "assistant", "content": "Yes", "reasoning": "Hm"}
    body = generation_body(
        request("chat", messages=[turn], enable_thinking=False, chat_template_kwargs={"a": 1}),
        "theirs", "sglang", priority=None,
    )  # fmt: skip
    assert body["chat_template_kwargs"] == {"a": 1, "thinking": False, "enable_thinking": False}
    assert body["messages"] == [{"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}]
    assert set(body["messages"][0]) <= set(FACTS["sglang"]["requests"]["message"])


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_chats_tokens_are_those_of_its_template_alone(dialect: Dialect) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    tables = FACTS[dialect]["requests"]
    chat = other_body(TokenizeRequest(model="ours", messages=messages), "theirs", dialect)
    assert "add_special_tokens" not in chat
    assert chat.keys() <= set(tables.get("tokenize_chat", tables["tokenize"]))
    text = other_body(TokenizeRequest(model="ours", prompt="hi"), "theirs", dialect)
    assert text["add_special_tokens"] is True
    # vLLM's request of a text has no fields for a turn; ours have their default values.
    of_chats = {"add_generation_prompt", "continue_final_message"}
    assert text.keys() - of_chats <= set(tables["tokenize"])
    assert other_body(DetokenizeRequest(model="ours", tokens=[1]), "theirs", dialect).keys() <= set(
        tables["detokenize"]
    )
    with pytest.raises(RequestError, match="split_special_tokens"):
        other_body(TokenizeRequest(model="ours", prompt="a", split_special_tokens=True), "theirs", dialect)


def test_vllm_has_our_arguments_and_parsers() -> None:
    nodes = NodeOptions(2, "10.0.0.1", 29600, 29501, "key")
    sent = [
        argument
        for facts in (CheckpointFacts("hermes"), CheckpointFacts(embeds=True))
        for options in (VllmOptions("org/big", "big", facts=facts, nodes=nodes),)
        for argument in [*vllm.serve_arguments(options, 8000), *vllm.node_command(options, 1)]
    ]
    flags = {argument for argument in sent if argument.startswith("--")}
    assert {"--nnodes", "--headless", "--enable-auto-tool-choice", "--runner"} <= flags
    assert flags <= set(FACTS["vllm"]["arguments"])
    parsers = {*PARSER_OF_FAMILY.values(), *PARSER_OF_FORMAT.values()}
    assert parsers <= set(FACTS["vllm"]["tool_parsers"])


def test_the_routes_that_we_call_are_theirs() -> None:
    routes = {
        "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/models",
        upstream_executor.EMBEDDINGS, upstream_executor.RERANK,
    }  # fmt: skip
    assert routes | {upstream_executor.SCORE, "/classify", health_path("vllm")} <= set(FACTS["vllm"]["routes"])
    own = {upstream_executor.CLASSIFY, sglang.SERVER_INFO, health_path("sglang")}
    assert routes | own <= set(FACTS["sglang"]["routes"])
    assert sglang.ROUTING_KEY in FACTS["sglang"]["headers"]
    assert {"enable_priority_scheduling", "schedule_low_priority_values_first"} <= set(
        FACTS["sglang"]["priority_options"]
    )


def test_our_metrics_with_vllms_names_are_vllms() -> None:
    ours = set(re.findall("`(vllm:[a-z_]+)`", (Path(server_fallback.__path__[0]) / "README.md").read_text()))
    assert len(ours) > 15
    assert ours <= set(FACTS["vllm"]["metrics"])


@pytest.mark.parametrize("message", [*FACTS["vllm"]["dead_engine"], "The server had an error. Retry."])
def test_the_errors_of_a_dead_engine_may_be_answered_by_another_server(message: str) -> None:
    error = streamed_error("http://a", {"message": message, "type": "InternalServerError", "code": 500})
    assert isinstance(error, Unavailable) == (message in FACTS["vllm"]["dead_engine"])
