"""Turns of a coding agent with 20 tools and long instructions, from the first to the answer: OpenAI's and Anthropic's
own clients, streamed, against a model that was trained to make these calls.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import openai
import pytest
from coding_agent import ENVIRONMENT, INSTRUCTIONS, STEPS, TASK, TOOLS, Step, chat_turns, functions
from conftest import lacks
from fake_models import FakeModels
from gemma_chats import make_agent_gemma
from live_server import live_server
from plain_target import compile_plain

from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.text.messages_form import FAILED

CONTEXT = 8192


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("agent")
    make_agent_gemma(folder / "checkpoint", FAILED, CONTEXT)
    bundle = compile_plain(folder / "checkpoint", folder / "bundle", "f32", CONTEXT)
    runner = ReferenceRunner(bundle, limits=Limits(tokens=1024, sequences=2, rows=2))
    local = LocalExecutor(TokenEngine(runner, TokenModel.of(bundle.manifest)), TextModel.of(bundle, "agent"))
    with live_server(FakeModels(loaded={"agent": cast("Any", local)}), ApiConfig()) as live:
        yield f"http://127.0.0.1:{live.port}"
        asyncio.run_coroutine_threadsafe(local.close(), live.loop).result(60)


def test_openai_s_client_streams_the_turns(address: str) -> None:
    """Over /v1/responses, as an agent that stores nothing on the server."""
    tools: Any = [{"type": "function", **tool["function"], "strict": False} for tool in functions()]
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": ENVIRONMENT}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK}]},
    ]
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        for number, step in enumerate(STEPS):
            turn: dict[str, Any] = {
                "model": "agent",
                "instructions": INSTRUCTIONS,
                "input": items,
                "tools": tools,
                "temperature": 0,
                "reasoning": {"effort": "medium", "summary": "auto"},
                "include": ["reasoning.encrypted_content"],
                "store": False,
                "prompt_cache_key": "thread",
            }
            with client.responses.stream(**turn) as stream:
                events = list(stream)
                response = stream.get_final_response()
            check_order(events)
            thought, *rest = cast("list[Any]", response.output)
            assert (thought.type, thought.summary[0].text) == ("reasoning", step.thought)
            calls = [item for item in rest if item.type == "function_call"]
            assert [(call.name, json.loads(call.arguments)) for call in calls] == list(step.calls)
            assert (response.output_text, response.status) == (step.text, "completed")
            usage: Any = response.usage
            check_cached(number, usage.input_tokens, usage.input_tokens_details.cached_tokens)
            if number == 1:
                whole = client.responses.create(**turn)
                assert [said(item) for item in whole.output] == [said(item) for item in response.output]
            items += [item.to_dict() for item in response.output]
            items += [
                {"type": "function_call_output", "call_id": call.call_id, "output": f"{FAILED * fails}{text}"}
                for call, (text, fails) in zip(calls, step.results, strict=True)
            ]


def said(item: Any) -> dict[str, Any]:
    """Without what differs between two equal answers, and what the client adds."""
    return {name: value for name, value in item.to_dict().items() if name not in ("id", "call_id", "parsed_arguments")}


def check_order(events: Sequence[Any]) -> None:
    """Items are added in order, grow while they are open, and end as what grew. Reasoning and text end before the next
    item; calls end with the answer, because the parts of several may alternate.
    """
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert (kinds[:2], kinds[-1]) == (["response.created", "response.in_progress"], "response.completed")
    grown, added, done = defaultdict[int, str](str), list[str](), dict[int, str]()
    for event in events[2:-1]:
        match event.type:
            case "response.output_item.added":
                assert event.output_index == len(added)
                assert all(index in done for index, kind in enumerate(added) if kind != "function_call")
                added.append(event.item.type)
            case kind if kind.endswith(".delta"):
                assert event.output_index < len(added)
                assert event.output_index not in done
                grown[event.output_index] += event.delta
            case "response.function_call_arguments.done":
                assert event.arguments == grown[event.output_index]
            case "response.output_text.done" | "response.reasoning_summary_text.done":
                assert event.text == grown[event.output_index]
            case "response.output_item.done":
                done[event.output_index] = event.item.type
    assert added == [done[index] for index in range(len(added))]
    assert added == [item.type for item in events[-1].response.output]


def check_cached(number: int, prompt: int, cached: int) -> None:
    """All but the end of a later turn's prompt is that of the one before."""
    assert prompt > 2000
    if number:
        assert prompt - cached < 300


def test_anthropic_s_client_streams_the_same_turns(address: str) -> None:
    # Not at the top: each process that collects tests would need seconds for the import.
    try:
        import anthropic
    except ModuleNotFoundError:
        lacks("the package anthropic is not installed")
    stays = {"cache_control": {"type": "ephemeral"}}
    asked: dict[str, Any] = {
        "model": "agent",
        "max_tokens": 2000,
        # The client has left it out of its own parameters.
        "extra_body": {"temperature": 0},
        "system": [
            {"type": "text", "text": f"{INSTRUCTIONS}\n\n", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"type": "text", "text": ENVIRONMENT, **stays},
        ],
        "tools": [{"name": name, "description": text, "input_schema": parameters} for name, text, parameters in TOOLS],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    asked["tools"][-1] |= stays
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": TASK, **stays}]}]
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client:
        for number, step in enumerate(STEPS):
            turn = {**asked, "messages": messages}
            read = ("model", "system", "tools", "thinking", "messages")
            counted = client.messages.count_tokens(**{name: turn[name] for name in read})
            with client.messages.stream(**turn) as stream:
                events = list(stream)
                message = stream.get_final_message()
            check_blocks(events)
            check_message(message, step)
            usage = message.usage
            assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
            check_cached(number, counted.input_tokens, usage.cache_read_input_tokens)
            if number == 1:
                check_message(client.messages.create(**turn), step)
            messages += [{"role": "assistant", "content": [block.to_dict() for block in message.content]}]
            calls = [block for block in message.content if block.type == "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": fails}
                for call, (text, fails) in zip(calls, step.results, strict=True)
            ]
            messages += [{"role": "user", "content": results}] if results else []


# The client under these agents streams the same turns above.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "streams", [True, pytest.param(False, marks=pytest.mark.exhaustive)], ids=["streamed", "whole"]
)
def test_openai_s_agents_run_the_turns(address: str, streams: bool) -> None:
    """Over /v1/responses, its default: from the task through calls and their results to the answer."""
    try:
        import agents
    except ModuleNotFoundError:
        lacks("the package openai-agents is not installed")
    expected = [(call, result) for step in STEPS for call, result in zip(step.calls, step.results, strict=True)]
    called = list[tuple[str, dict[str, Any]]]()

    def tool(name: str, description: str, parameters: dict[str, Any]) -> Any:
        async def invoke(_context: object, arguments: str) -> str:
            called.append((name, json.loads(arguments)))
            text, fails = next(result for call, result in expected if call == called[-1])
            return f"{FAILED * fails}{text}"

        return agents.FunctionTool(name, description, parameters, invoke, strict_json_schema=False)

    async def run() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            settings = agents.ModelSettings(
                temperature=0,
                reasoning={"effort": "medium", "summary": "auto"},
                response_include=["reasoning.encrypted_content"],
                store=False,
            )
            agent = agents.Agent(
                "coder", instructions=INSTRUCTIONS, tools=[tool(*each) for each in TOOLS],
                model="agent", model_settings=settings,
            )  # fmt: skip
            provider = agents.OpenAIProvider(openai_client=client)
            config = agents.RunConfig(model_provider=provider, tracing_disabled=True)
            task: list[Any] = [{"role": "developer", "content": ENVIRONMENT}, {"role": "user", "content": TASK}]
            if not streams:
                return await agents.Runner.run(agent, task, run_config=config), []
            result = agents.Runner.run_streamed(agent, task, run_config=config)
            return result, [event async for event in result.stream_events()]

    result, events = asyncio.run(run())
    # Those of one turn run at once, in any order.
    assert sorted(called, key=itemgetter(0)) == sorted((call for call, _ in expected), key=itemgetter(0))
    assert result.final_output == STEPS[-1].text
    kinds = [kind for step in STEPS for kind in ("reasoning_item", *("tool_call_item" for _ in step.calls))]
    made = [item.type for item in result.new_items if item.type not in ("tool_call_output_item", "message_output_item")]
    assert made == kinds
    if streams:
        written = "".join(
            event.data.delta for event in events
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        )  # fmt: skip
        assert written == STEPS[-1].text


def check_message(message: Any, step: Step) -> None:
    thought, *rest = message.content
    assert (thought.type, thought.thinking) == ("thinking", step.thought)
    assert [(block.name, block.input) for block in rest if block.type == "tool_use"] == list(step.calls)
    assert "".join(block.text for block in rest if block.type == "text") == step.text
    assert message.stop_reason == ("tool_use" if step.calls else "end_turn")


def check_blocks(events: Sequence[Any]) -> None:
    """Blocks start and stop one after the other, and the parts of a call's input are its JSON."""
    kinds = [event.type for event in events if event.type.startswith(("message_", "content_block_"))]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    inputs, open_index, started = defaultdict[int, str](str), -1, 0
    for event in events:
        match event.type:
            case "content_block_start":
                assert (open_index, event.index) == (-1, started)
                open_index, started = event.index, started + 1
            case "content_block_delta":
                assert event.index == open_index
                inputs[open_index] += getattr(event.delta, "partial_json", "")
            case "content_block_stop":
                assert event.index == open_index
                if event.content_block.type == "tool_use":
                    assert json.loads(inputs[open_index]) == event.content_block.input
                open_index = -1
    assert open_index == -1


@pytest.mark.exhaustive
def test_chats_have_the_same_turns(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        for messages, step in chat_turns(FAILED):
            given: Mapping[str, Any] = {"model": "agent", "messages": messages, "tools": functions(), "temperature": 0}
            answer = client.chat.completions.create(**given, reasoning_effort="medium")
            said: Any = answer.choices[0].message
            calls = [(call.function.name, json.loads(call.function.arguments)) for call in said.tool_calls or ()]
            assert (said.reasoning_content, said.content or "", calls) == (step.thought, step.text, list(step.calls))
