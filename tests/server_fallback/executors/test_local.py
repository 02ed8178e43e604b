"""Chats that the local executor answers."""

from __future__ import annotations

import asyncio
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from answers import chunks_of
from fake_source import FakeSource, executor, text_model
from local_requests import CALL, HI, IMAGE, TOOL, chat, chat_request, chunks, complete, prompt_text, run

from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, RequestError
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.schema.tokenize import TokenizeRequest


def test_a_chat_is_answered_with_its_usage(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "hello")
    answer = chat(local)
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason, choice.logprobs) == ("hello", "stop", None)
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.model_dump() == {
        "prompt_tokens": 19,
        "completion_tokens": 5,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 3},
        "queue_ms": 500.0,
    }
    assert prompt_text(source) == "[user]hi[assistant]"


def test_a_stream_starts_with_the_role_and_ends_with_the_reason_and_the_usage(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "é!")
    streamed = chunks(local)
    assert [[choice.model_dump(exclude_none=True) for choice in chunk.choices] for chunk in streamed] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
        [{"index": 0, "delta": {"content": "é"}}],
        [{"index": 0, "delta": {"content": "!"}}],
        [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        [],
    ]
    assert [chunk.usage is not None for chunk in streamed] == [False] * 4 + [True]
    assert len({chunk.id for chunk in streamed}) == 1


def test_messages_of_all_roles_and_text_parts_reach_the_template_and_developer_is_system(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "x")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    chat(local, messages=messages)
    assert prompt_text(source) == "[system]be short[user]ab[assistant][tool]42[assistant]"


def test_continue_final_message_goes_on_from_the_start_of_an_answer(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "x")
    chat(local, messages=[*HI, {"role": "assistant", "content": "Dear "}], continue_final_message=True)
    assert prompt_text(source) == "[user]hi[assistant]Dear "


def test_template_variables_are_vllms(tmp_path: Path) -> None:
    template = "{{ enable_thinking }}/{{ reasoning_effort }}/{{ verbosity }}/{{ budget }} "
    local, source = executor(tmp_path, "x", template=template)
    own = {"enable_thinking": True, "reasoning_effort": "max", "budget": 3}
    for given in (
        {"reasoning_effort": "none"},
        {"reasoning_effort": "low", "verbosity": "high"},
        {"reasoning_effort": "none", "chat_template_kwargs": own},
        {"chat_template_kwargs": own},
        {},
    ):
        chat(local, **given)
    assert [prompt_text(source, index).strip() for index in range(5)] == [
        "False/none//",
        "True/low/high/",
        "True/none//3",
        "True/max//3",
        "///",
    ]
    with pytest.raises(RequestError, match="chat_template_kwargs cannot set 'messages'") as refused:
        chat(local, chat_template_kwargs={"messages": []})
    assert refused.value.details["param"] == "chat_template_kwargs"
    tokenized = run(
        local.tokenize(
            TokenizeRequest(model="fake", messages=chat_request().messages, chat_template_kwargs={"budget": 7})
        )
    )
    assert bytes(tokenized.tokens).decode().strip() == "///7"


def test_a_message_that_a_client_sends_back_gives_the_same_prompt(tmp_path: Path) -> None:
    template = "{# tools: <tool_call> #}{% for m in messages %}{{ m | tojson }}{% endfor %}"
    local, source = executor(tmp_path, "x", template=template)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    plain = {"role": "assistant", "content": None, "tool_calls": [call]}
    function = {**call["function"], "parsed_arguments": {"a": 1}}  # type: ignore[dict-item]
    extra: dict[str, Any] = {
        "refusal": "",
        "parsed": {"a": 1},
        "annotations": [],
        "audio": None,
        "provider_specific_fields": {"refusal": None},
    }
    sent_back = {
        **plain,
        **extra,
        "tool_calls": [{**call, "index": 0, "function": function, "provider_specific_fields": None}],
    }
    for message in (plain, sent_back):
        chat(local, messages=[*HI, message, {"role": "tool", "content": "4", "tool_call_id": "1"}])
    assert prompt_text(source, 0) == prompt_text(source, 1)


def test_no_stop_string_ends_an_answer_before_min_tokens(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "a#b##c#d")
    for least, text in ((0, "a"), (2, "a#b"), (4, "a#b#"), (5, "a#b##c")):
        assert chat(local, stop="#", min_tokens=least).choices[0].message.content == text
        assert complete(local, prompt="x", stop="#", min_tokens=least).choices[0].text == text
    assert source.requests[-1].min_tokens == 5
    with pytest.raises(RequestError, match="min_tokens is 3, more than max_tokens, 2"):
        chat(local, min_tokens=3, max_tokens=2)


def test_vllms_ends_reach_the_engine(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "x")
    chat(local, stop_token_ids=[65, 66], ignore_eos=True, top_k=-1)
    complete(local, prompt="x", stop_token_ids=[67], top_k=0)
    first, second = source.requests
    assert (first.last_token_ids, first.ignore_eos, first.sampling.top_k) == (frozenset({65, 66}), True, 0)
    assert (second.last_token_ids, second.ignore_eos, second.sampling.top_k) == (frozenset({67}), False, 0)
    with pytest.raises(RequestError, match="stop_token_ids has token id 260"):
        chat(local, stop_token_ids=[260])


def test_parameters_reach_the_engine_and_each_choice_has_the_next_seed(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "x")
    chat(
        local,
        n=2,
        seed=-1,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        repetition_penalty=1.1,
        frequency_penalty=1,
        presence_penalty=-1,
    )
    chat(local, Call("2", priority=2, deadline=5.0), temperature=0, logit_bias={"5": -100}, max_completion_tokens=7)
    first, second, third = source.requests
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (
        1,
        0.5,
        4,
        0.1,
        1.1,
    )
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (1, -1)
    assert (sampling.seed, second.sampling.seed) == (2**32 - 1, 0)
    assert (third.max_tokens, third.priority, third.deadline, third.sampling.temperature) == (7, 2, 5.0, 0)
    assert (third.sampling.logit_bias, third.sampling.seed, third.logprobs) == ({5: -100}, None, None)


def test_choices_run_at_once_and_share_the_prompt(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "one", "three", "x")
    waited: list[float] = []
    answer = chat(local, Call("1", observe_queue=waited.append), n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, "one"), (1, "three"), (2, "x")]
    assert source.most == 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (19, 9)
    # The source reports 3 cached tokens for each answer, but the prompt counts once.
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert waited == [0.5] * 3


def test_a_call_observes_its_tokens_and_abilities_are_reported(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "hello")
    ids: list[int] = []
    prompt: list[float] = []
    chat(local, Call("1", observe_token=ids.append))
    answer = chat(local, Call("2", observe_prompt_logprobs=prompt.extend))
    assert bytes(ids).decode() == answer.choices[0].message.content == "hello"
    assert prompt == [-2.0] * (len(source.requests[1].prompt_ids) - 1)
    assert [request.prompt_logprobs for request in source.requests] == [0, 32]
    can = local.abilities()
    assert can.tokenizer_sha256 == sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert (can.tools, can.embeds, can.verify) == (True, False, True)


def test_a_stop_string_ends_generation_and_no_character_of_it_is_streamed(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "abc###def")
    streamed = chunks(local, stop=["###", "zzz"])
    assert "".join(choice.delta.content or "" for chunk in streamed for choice in chunk.choices) == "abc"
    assert [choice.finish_reason for chunk in streamed for choice in chunk.choices][-1] == "stop"
    assert (source.tokens, source.running) == (6, 0)
    usage = streamed[-1].usage
    assert usage is not None
    # Neither the cached part of the prompt nor its waiting time is known.
    assert (usage.completion_tokens, usage.prompt_tokens_details, usage.queue_ms) == (6, None, None)


def test_a_stop_string_may_be_complete_only_when_the_text_that_was_held_back_is_released(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "é")
    [choice] = chat(local, max_tokens=1, stop="\ufffd").choices
    assert (choice.message.content, choice.finish_reason) == ("", "stop")


def test_logprobs_are_sent_with_their_text_and_bytes_and_omitted_for_a_stop_string(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "é##!")
    [choice] = chat(local, logprobs=True, top_logprobs=2, stop="##").choices
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert [(token.token, token.bytes, token.logprob) for token in content] == [
        ("\ufffd", [0xC3], -1),
        ("\ufffd", [0xA9], -1),
    ]
    assert [[(top.bytes, top.logprob) for top in token.top_logprobs] for token in content] == [
        [([0xC3], -1), ([0xC4], -2)],
        [([0xA9], -1), ([0xAA], -2)],
    ]


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_a_stream_ends_generation(tmp_path: Path, n: int) -> None:
    local, source = executor(tmp_path, "hello", "world", "again")

    async def leave() -> None:
        stream = chunks_of(local, chat_request(n=n), CALL)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.aclose()

    run(leave())
    assert source.running == 0
    assert source.tokens < 5 * n


def test_a_failure_of_one_choice_ends_the_others(tmp_path: Path) -> None:
    source = FakeSource("a", failure=DeviceError("gone"))
    local = LocalExecutor(source, text_model(tmp_path))
    with pytest.raises(DeviceError, match="gone"):
        chat(local, n=3)
    assert source.running == 0


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"stop": ["a", ""]}, "stop"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*HI, {"role": "assistant", "content": "a", "refusal": "no"}]}, "messages[1].refusal"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, "messages[0].content[1]"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools[1]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_chat_that_cannot_be_answered_is_refused_before_anything_is_generated(
    tmp_path: Path, given: dict[str, Any], param: str
) -> None:
    local, source = executor(tmp_path, "x")
    with pytest.raises(RequestError) as error:
        chat(local, **given)
    assert error.value.details["param"] == param
    assert source.requests == []


def test_a_deadline_holds_while_a_grammar_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, source = executor(tmp_path, "x")

    async def compile_for_ever(*_: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(local._workers.grammars, "constraints", compile_for_ever)
    with pytest.raises(DeadlineExceeded, match="within the time"):
        chat(local, Call("1", deadline=time.monotonic() + 0.02), response_format={"type": "json_object"})
    assert source.requests == []


def test_the_state_is_the_engines_and_closing_closes_it(tmp_path: Path) -> None:
    local, source = executor(tmp_path, "x")
    state = local.state()
    engine = state.engine
    assert (
        state.ready,
        engine.kv_usage,
        engine.kv_waste,
        engine.prefix_queries,
        engine.prefix_hits,
        engine.preemptions,
    ) == (
        True,
        0.25,
        0.125,
        10,
        4,
        1,
    )
    assert (engine.drafted_tokens, engine.accepted_tokens, local.context) == (6, 3, 4096)
    run(local.close())
    assert source.closed
    assert not local.state().ready
