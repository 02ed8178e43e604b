"""A Hybrid routes each step of an agent by its own rules, and a real model calls tools through its grammar."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_openai import Received, Reply, chunk
from hybrid_sides import FakeFar, FakeNear, hybrid, run
from scripted_engine import ANSWERED, LIGHT, ScriptedEngine, light

from nearfar.compiler.bundle.folder import chat_tree_entry, open_bundle
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.chat_template import ChatTemplate
from nearfar.compiler.runtime.text.tool_formats import tool_format
from nearfar.server_fallback.agent import Agent, AgentResult, AskedCall, Tool, function_tool
from nearfar.server_fallback.agent.tools import Functions, ResultText
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.router.hybrid import Hybrid

NUMBER = "078-05-1120"


def calling(name: str, /, **values: Any) -> Reply:
    """A server's answer with one call."""
    first = chunk(role="assistant")
    called = {"index": 0, "id": "far1", "type": "function", "function": {"name": name, "arguments": json.dumps(values)}}
    middle, last = chunk(), chunk(finish="tool_calls")
    middle["choices"][0]["delta"] = {"tool_calls": [called]}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return Reply(chunks=[first, middle, last, {**chunk(), "choices": [], "usage": usage}])


def routes(result: AgentResult) -> list[tuple[str, str]]:
    return [(step.route.side, step.route.reason) for step in result.steps]


@pytest.mark.parametrize(
    ("rules", "labels"),
    [({"patterns": ["[0-9]{3}-[0-9]{2}-[0-9]{4}"]}, ()), ({"labels": ["secret"]}, ("secret",))],
    ids=["pattern", "label"],
)
def test_a_private_result_keeps_the_rest_of_the_run_near(rules: dict[str, Any], labels: tuple[str, ...]) -> None:
    far = FakeFar(lambda _: calling("find", name="Ada"))
    near = FakeNear(text="it is there", context=4096)
    person = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

    async def work() -> AgentResult:
        async with hybrid(near, far, {"version": 1, "mode": "prefer-far", "private": rules}) as opened:
            tool = function_tool(
                lambda name: f"{name} has {NUMBER}", name="find", description="Find", parameters=person, labels=labels
            )
            return await Agent(opened, [tool], bounds={"step_tokens": 20}).run("find Ada's number")

    result = run(work())
    assert routes(result) == [("far", "prefer"), ("near", "private")]
    assert (result.reason, result.text) == ("answer", "it is there")
    assert len(far.generated) == 1
    assert NUMBER not in json.dumps([received.body for received in far.received])


MAIL = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
TO, EMAIL = "anna@lee.org", r"[a-z]+@[a-z.]+[a-z]"


@pytest.mark.parametrize(
    ("private", "approves", "received", "outcome"),
    [
        ({"patterns": [EMAIL]}, None, None, "denied"),
        ({"patterns": [EMAIL]}, False, None, "denied"),
        ({"patterns": [EMAIL]}, True, TO, "ran"),
        ({"masks": {"patterns": [{"kind": "EMAIL", "pattern": EMAIL}]}}, None, "[EMAIL_1]", "ran"),
        ({"patterns": ["nothing"]}, None, TO, "ran"),
    ],
    ids=["nobody", "denied", "approved", "masked", "public"],
)
def test_private_arguments_reach_a_server_elsewhere_only_masked_or_approved(
    private: dict[str, Any], approves: bool | None, received: str | None, outcome: str
) -> None:
    given, asked = list[str](), list[AskedCall]()

    async def mail(values: Mapping[str, Any]) -> ResultText:
        given.append(values["to"])
        return ResultText(f"sent to {values['to']}")

    def approve(call: AskedCall) -> bool:
        asked.append(call)
        return bool(approves)

    async def work() -> AgentResult:
        near = FakeNear(text=json.dumps({"to": TO}), calls=True, context=4096)
        far = FakeFar(lambda _: Reply(status=500))
        async with hybrid(near, far, {"version": 1, "mode": "prefer-near", "private": private}) as opened:
            source = Functions((Tool("f", "Write", MAIL, mail, server="post", remote=True),))
            agent = Agent(opened, [source], approve=None if approves is None else approve)
            return await agent.run("write to her")

    [call] = run(work()).steps[0].calls
    assert (call.outcome, given) == (outcome, [] if received is None else [received])
    assert (None if call.left is None else json.loads(call.left)) == (None if received is None else {"to": received})
    # The model reads the private text.
    assert received is None or call.text == f"sent to {TO}"
    assert [(each.private, each.leaves) for each in asked] == [(True, json.dumps({"to": TO}))] * (approves is not None)


def test_a_step_after_a_failed_call_goes_far_with_the_reason() -> None:
    def reply(_: Received) -> Reply:
        return calling("answer", text="from far")

    far, near = FakeFar(reply), FakeNear(text='{"room": "kitchen"}', calls=True, context=4096)

    async def work() -> AgentResult:
        async with hybrid(near, far, {"version": 1, "mode": "auto"}) as opened:
            return await Agent(opened, [light(name="f")], bounds={"step_tokens": 20}).run("dim the kitchen")

    result = run(work())
    assert routes(result) == [("near", "cost"), ("far", "step")]
    assert [step.stake["reasons"] for step in result.steps] == [[], ["the last call failed", "step 2 of at most 8"]]
    assert (result.reason, result.text) == ("answer", "from far")
    (sent,) = far.generated
    assert sent["tool_choice"] == "required"
    assert "stake" not in sent


def test_the_client_of_a_gateway_sends_stakes_and_labels() -> None:
    engine = ScriptedEngine([("set_light", {"room": "bath", "level": 1})], ANSWERED)
    agent = Agent(engine, [light(labels=["secret"])], routes=True, parameters={"model": "pair"})
    assert asyncio.run(agent.run("dim")).reason == "answer"
    assert [asked["extra_body"]["stake"]["weight"] for asked in engine.asked] == [1, 1 + 1 / 7]
    assert engine.asked[1]["messages"][-1]["labels"] == ["secret"]
    assert engine.asked[1]["model"] == "pair"


@pytest.fixture(scope="module")
def calling_demo(plain_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with a chat template that has calls in Hermes' form. It was not trained for tools."""
    bundle = tmp_path_factory.mktemp("agent") / "demo"
    shutil.copytree(plain_demo, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    tokenizer = manifest["tokenizer"]
    template = "{# tools: <tool_call> #}" + tokenizer["chat_template"].replace(
        "['user', 'assistant']", "['user', 'assistant', 'tool']"
    )
    tree, tools = chat_tree_entry(ChatTemplate(template, {})), tool_format(template)
    assert tree is not None
    assert tools is not None
    tokenizer.update(chat_template=template, chat_tree=tree.model_dump(), tools=tools.model_dump())
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    return bundle


def test_a_real_model_calls_a_tool_through_its_grammar_and_then_answers(calling_demo: Path) -> None:
    done = list[Any]()

    async def work() -> AgentResult:
        folder = open_bundle(calling_demo)
        runner = ReferenceRunner(folder, activation="float32", limits=Limits(tokens=512, sequences=4, rows=64))
        local = LocalExecutor(TokenEngine(runner, TokenModel.of(folder.manifest)), TextModel.of(folder, "demo"))
        async with await Hybrid.create(near=local, far=None, policy={"version": 1, "mode": "near-only"}) as opened:
            agent = Agent(opened, [light(done)], bounds={"steps": 2, "step_tokens": 60}, parameters={"temperature": 0})
            return await agent.run("dim the kitchen lights to 30 percent")

    result = run(work())
    # The grammar holds the model to the schema, also in the step that can only answer.
    assert [set(each) for each in done] == [set(LIGHT["properties"])]
    assert result.steps[0].calls[0].outcome == "ran"
    assert routes(result) == [("near", "mode"), ("near", "mode")]
    assert result.reason in ("steps", "tokens")
