"""Recorded bodies of other clients for /v1/responses, which send our own answers back, and a coding agent's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asgi import ask
from fake_models import FakeModels
from response_events import read_events

from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.schema.chat import ChatCompletionRequest

PATH = "/v1/responses"
SENT: list[dict[str, Any]] = json.loads((Path(__file__).parent / "response_bodies.json").read_text())
PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}


def agent_turn(**more: Any) -> dict[str, Any]:
    """The first turn of a coding agent, with the parameters that OpenAI's own sends."""
    described = "Runs a command in the workspace and returns what it prints. " * 10
    tools = [
        {"type": "function", "name": f"tool_{number}", "description": described, "strict": False}
        for number in range(20)
    ]
    texts = [("developer", "<permissions>"), ("user", "<environment>"), ("user", "fix the test")]
    return {
        "model": "fake",
        "instructions": "You are a coding agent. " * 1000,
        "input": [
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]} for role, text in texts
        ],
        "tools": [
            *({**tool, "parameters": PARAMETERS} for tool in tools[:15]),
            {"type": "namespace", "name": "agents", "description": "Sub-agents.", "tools": tools[15:]},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "text": {"verbosity": "low"},
        "client_metadata": {"installation": "1"},
        **more,
    }


@pytest.mark.parametrize("sent", SENT, ids=[sent["client"] for sent in SENT])
def test_bodies_of_clients_are_chats(sent: dict[str, Any]) -> None:
    models, body = FakeModels(), sent["body"]
    response = ask("POST", PATH, body, models)
    assert response.status_code == 200, response.text
    last = read_events(response.text)[-1].response if body.get("stream") else None
    assert (last.status if last is not None else response.json()["status"]) == "completed"
    [request] = models.fake.requests
    assert isinstance(request, ChatCompletionRequest)
    kinds = [item.get("type") for item in body["input"]]
    assert sum(message.role == "tool" for message in request.messages) == kinds.count("function_call_output")
    assert sum(len(message.tool_calls or ()) for message in request.messages) == kinds.count("function_call")
    thoughts = [message.reasoning_content for message in request.messages if message.reasoning_content]
    assert thoughts == ["Hm, well."] * kinds.count("reasoning")


@pytest.mark.parametrize("lenient", [False, True])
def test_a_coding_agent_s_first_turn(lenient: bool) -> None:
    models, turn = FakeModels(), agent_turn()
    if lenient:
        # It offers this one by default.
        turn["tools"].append({"type": "web_search", "external_web_access": True})
        assert ask("POST", PATH, turn, models).json()["error"]["param"] == "tools[16]"
    response = ask("POST", PATH, turn, models, ApiConfig(lenient=lenient))
    assert response.headers.get("x-nearfar-ignored") == ("tools[16]" if lenient else None)
    assert response.status_code == 200, response.text
    assert read_events(response.text)[-1].response.output[0].type == "function_call"
    [request] = models.fake.requests
    assert isinstance(request, ChatCompletionRequest)
    assert [message.role for message in request.messages] == ["system", "user", "user"]
    assert request.messages[0].text.endswith("agent. \n\n<permissions>")
    assert (len(request.tools or ()), request.reasoning_effort, request.verbosity) == (20, "medium", "low")
