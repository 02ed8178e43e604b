from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tool_formats import FORMATS, tool_format
from nearfar.server_fallback.schema.functions import NamedToolChoice, Tool
from nearfar.server_fallback.text.grammar.source import TagsSource
from nearfar.server_fallback.text.tools import ToolChoice, check_tools, tool_grammar

VECTORS = json.loads((Path(__file__).parents[3] / "tests/conformance/chat_tools.json").read_text())


def tool(name: str, **rest: Any) -> Tool:
    return Tool.model_validate({"type": "function", "function": {"name": name, **rest}})


def named(name: str) -> NamedToolChoice:
    return NamedToolChoice.model_validate({"type": "function", "function": {"name": name}})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (VECTORS["templates"]["hermes"], "hermes"),
        (VECTORS["templates"]["llama3"], "llama3"),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ('{% if tools %}{"name": .., "parameters": ..}{% endif %}', "llama3"),
        ("{% if tools %}<tool_call><function={% endif %}", "qwen3_coder"),
        ("{% if tools %}<tool_call><arg_key>{% endif %}", None),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", "mistral"),
        ("{% if tools %}[TOOL_CALLS][ARGS]{% endif %}", "mistral_named"),
        ("{% if tools %}<|tool_call|>{% endif %}", "granite"),
        ("{% if message['tools'] %}<|tool|><|/tool|>{% endif %}", "phi4_mini"),
        ("{% if xml_tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<|tool_call>call:{% endif %}", "gemma4"),
        ("{% if tools %}<|tool_call_start|>[f(a=1)]{% endif %}", None),
        ("<tool_call>", None),
        (None, None),
    ],
)
def test_the_format_is_read_from_the_template(template: str | None, expected: str | None) -> None:
    form = tool_format(template)
    assert (None if form is None else form.name) == expected


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([tool("a b")], "auto", "letters, digits"),
        ([tool("a" * 65)], "auto", "letters, digits"),
        ([tool("")], "none", "letters, digits"),
        ([tool("f"), tool("f")], "auto", "two functions of the name 'f'"),
        ([], "required", "no tools"),
        ([tool("f")], named("g"), "names 'g'"),
    ],
)
def test_wrong_tools_and_choices_are_refused(tools: list[Tool], choice: ToolChoice, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_tools(tools, choice)


def tags(source: object) -> list[str]:
    assert isinstance(source, TagsSource)
    return [f"{tag.begin}{tag.middle}{tag.schema}{tag.end}" for tag in source.tags]


def test_required_calls_become_a_grammar() -> None:
    tools = [tool("f", parameters={"type": "object"}), tool("g")]
    several = tool_grammar(FORMATS["hermes"], tools, "required")
    assert tags(several)[0] == '<tool_call>\n{"name": "f", "arguments": {"type": "object"}}\n</tool_call>'
    # A function without parameters accepts no arguments.
    assert '"additionalProperties": false' in tags(several)[1]
    assert isinstance(several, TagsSource)
    assert several.separator == "\n"
    for single in (
        tool_grammar(FORMATS["hermes"], tools, "required", parallel=False),
        tool_grammar(FORMATS["hermes"], tools, named("f")),
    ):
        assert isinstance(single, TagsSource)
        assert single.separator is None
    assert len(tags(tool_grammar(FORMATS["hermes"], tools, named("f")))) == 1
    llama = tool_grammar(FORMATS["llama3"], tools, "required")
    assert tags(llama)[0] == '{"name": "f", "parameters": {"type": "object"}}'
    assert isinstance(llama, TagsSource)
    assert llama.separator is None


def test_with_optional_calls_only_strict_functions_follow_their_schemas() -> None:
    loose, strict = tool("f", parameters={"type": "object", "properties": {}}), tool("g", strict=True)
    assert tool_grammar(FORMATS["hermes"], [loose], "auto") is None
    assert tool_grammar(FORMATS["hermes"], [strict], "none") is None
    # Its calls are the complete answer, and the first character does not show whether an answer is a call.
    assert tool_grammar(FORMATS["llama3"], [strict], "auto") is None
    source = tool_grammar(FORMATS["hermes"], [loose, strict], "auto")
    assert isinstance(source, TagsSource)
    assert source.trigger == "<tool_call>"
    assert [json.loads(tag.schema).get("additionalProperties") for tag in source.tags] == [None, False]
