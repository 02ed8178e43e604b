"""Grammars of calls in each format: the texts that they allow, answers that consist of valid calls, and calls within
free text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from picking import Grammar, pick

from nearfar.compiler.runtime.text.tool_formats import FORMATS
from nearfar.server_fallback.schema.functions import Tool
from nearfar.server_fallback.text.grammar.source import GrammarSource
from nearfar.server_fallback.text.tool_call_stream import ArgumentsEvent, CallEvent, ToolCallStream
from nearfar.server_fallback.text.tools import ToolChoice, text_parameters, tool_grammar

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "conformance/tool_calls.json").read_text())["grammar"]
TOOLS = [Tool.model_validate(tool) for tool in VECTORS["tools"]]


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar()


def source(name: str, choice: ToolChoice = "required", tools: list[Tool] = TOOLS) -> GrammarSource:
    made = tool_grammar(FORMATS[name], tools, choice)
    assert made is not None
    return made


@pytest.mark.parametrize("name", FORMATS)
def test_a_required_call_allows_what_every_runtime_allows(grammar: Grammar, name: str) -> None:
    compiled = grammar.compile(source(name))
    for case in VECTORS["cases"]:
        if case["format"] == name:
            assert grammar.takes(compiled, case["text"]) == case["valid"], case["text"]


@pytest.mark.parametrize("name", FORMATS)
def test_any_choice_of_the_model_is_calls_with_valid_arguments(grammar: Grammar, name: str) -> None:
    parameters = {"order": VECTORS["tools"][0]["function"]["parameters"], "now": {"type": "object", "maxProperties": 0}}
    ended = 0
    for seed in range(8):
        text = pick(grammar.constraint(source(name)), seed)
        if text is None:
            continue
        ended += 1
        stream = ToolCallStream(FORMATS[name], texts=text_parameters(TOOLS))
        calls: list[list[str]] = []
        for event in [*stream.feed(text), *stream.finish()]:
            if isinstance(event, CallEvent):
                calls.append([event.name, ""])
            else:
                assert isinstance(event, ArgumentsEvent), text
                calls[-1][1] += event.text
        assert calls
        for called, given in calls:
            assert jsonschema_rs.is_valid(parameters[called], json.loads(given)), text
    assert ended


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.marker])
def test_with_optional_calls_the_marker_begins_a_call_of_the_tools(grammar: Grammar, name: str) -> None:
    strict = [
        Tool.model_validate({**tool, "function": {**tool["function"], "strict": True}}) for tool in VECTORS["tools"]
    ]
    compiled = grammar.compile(source(name, "auto", strict))
    assert grammar.takes(compiled, "No call, only { text.")
    for case in VECTORS["cases"]:
        # Free text may precede a call, and follow it.
        is_bare = not case["text"].startswith("Well. ")
        if case["format"] == name and is_bare and not case["text"].startswith(f"{FORMATS[name].marker}\n\n"):
            assert grammar.takes(compiled, f"See: {case['text']}") == case["valid"], case["text"]
