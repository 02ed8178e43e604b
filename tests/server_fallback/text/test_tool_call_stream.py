from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.compiler.runtime.text.tool_formats import FORMATS
from nearfar.server_fallback.text.tool_call_stream import CallEvent, TextEvent, ToolCallStream

ARGUMENTS = '{"city": "a } \\" {", "days": [1, {"x": null}]}'
WEATHER = ("weather", ARGUMENTS)
TOOL_CALL = '<tool_call>\n{"name": "weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"


def outcome(form: str, pieces: list[str], begins: tuple[str, ...] | None = None) -> list[str | tuple[str, str]]:
    """The joined output: texts, and calls with their arguments."""
    stream = ToolCallStream(FORMATS[form], lambda: "id", begins)
    result: list[Any] = []
    events = [event for piece in pieces for event in stream.feed(piece)] + stream.finish()
    for event in events:
        if isinstance(event, CallEvent):
            assert event.index == sum(isinstance(item, list) for item in result)
            result.append([event.name, ""])
        elif not isinstance(event, TextEvent):
            assert event.text
            result[-1][1] += event.text
        elif result and isinstance(result[-1], str):
            result[-1] += event.text
        else:
            result.append(event.text)
    assert stream.calls == sum(isinstance(item, list) for item in result)
    return [tuple(item) if isinstance(item, list) else item for item in result]


CASES: list[tuple[str, str, list[str | tuple[str, str]]]] = [
    ("hermes", "just text < and <tool", ["just text < and <tool"]),
    ("hermes", TOOL_CALL, [WEATHER]),
    (
        "hermes",
        f'Well.\n{TOOL_CALL}\n<tool_call>{{"name": "f", "arguments": {{}}}}</tool_call>',
        ["Well.\n", WEATHER, ("f", "{}")],
    ),
    ("hermes", '\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\nbye', [("f", "{}"), "\nbye"]),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", '{"a":1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "cut', [("f", '{"a": "cut')]),
    ("hermes", "<tool_call>no call</tool_call>", ["<tool_call>no call</tool_call>"]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        ['<tool_call>{"name": "f", "arguments": [1]}</tool_call>'],
    ),
    ("hermes", '<tool_call>{"name": "f"', ['<tool_call>{"name": "f"']),
    (
        "hermes",
        '<tool_call>oops <tool_call>{"name": "f", "arguments": {}}</tool_call>',
        ["<tool_call>oops ", ("f", "{}")],
    ),
    ("llama3", "just text", ["just text"]),
    ("llama3", ' {"name": "weather", "parameters": {"city": "x"}}', [("weather", '{"city": "x"}')]),
    ("llama3", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', [("f", "{}")]),
    (
        "llama3",
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": "\\\\"}}\n',
        [("f", "{}"), ("g", '{"a": "\\\\"}')],
    ),
    ("llama3", '{"parameters": {"a": 1}, "name": "f"}', [("f", '{"a":1}')]),
    ("llama3", '{"answer": 42}', ['{"answer": 42}']),
    ("llama3", '{"name": "f"}', ['{"name": "f"}']),
    ("llama3", 'see {"name": "f", "parameters": {}}', ['see {"name": "f", "parameters": {}}']),
    ("llama3", "{", ["{"]),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_calls_are_read_the_same_however_the_text_is_cut(
    form: str, text: str, expected: list[str | tuple[str, str]]
) -> None:
    assert outcome(form, [text]) == expected
    assert outcome(form, list(text)) == expected
    for position in range(1, len(text)):
        assert outcome(form, [text[:position], text[position:]]) == expected


PARTS = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {',
    '{"name": "f", "parameters": {',
    "<|python_tag|>",
]
PARTS += ['"a"', ":", "1", "}", "\\", '"', "\n", ";", "text", "<", "{"]


@given(
    st.sampled_from(["hermes", "llama3"]),
    st.lists(st.sampled_from(PARTS), max_size=12),
    st.lists(st.integers(1, 80), max_size=6),
)
def test_any_text_is_read_the_same_however_it_is_cut(form: str, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    complete = outcome(form, [text])
    assert outcome(form, [text[start:end] for start, end in itertools.pairwise(edges)]) == complete
    if all(isinstance(item, str) for item in complete):
        # Text without a call is complete, except for the surrounding space.
        assert "".join(str(item) for item in complete).strip() == text.strip()


def test_a_call_with_its_keys_the_other_way_round_keeps_its_characters() -> None:
    [call] = outcome("hermes", ['<tool_call>{"arguments": {"a": "é\\n"}, "name": "f"}</tool_call>'])
    assert json.loads(call[1]) == {"a": "é\n"}
    assert "é" in call[1]


@pytest.mark.parametrize(
    ("form", "text", "complete"),
    [
        ("hermes", TOOL_CALL, True),
        ("hermes", TOOL_CALL.removesuffix("}\n</tool_call>"), True),
        ("hermes", TOOL_CALL.removesuffix("}}\n</tool_call>"), False),
        ("hermes", f"{TOOL_CALL} And so", False),
        ("hermes", f"{TOOL_CALL}\n<tool_call>", False),
        ("hermes", "text", False),
        ("llama3", '{"name": "f", "parameters": {"a": 1}', True),
        ("llama3", '{"name": "f", "parameters": {"a": 1', False),
    ],
)
def test_an_answer_that_ends_with_a_complete_call_is_recognised(form: str, text: str, complete: bool) -> None:
    stream = ToolCallStream(FORMATS[form])
    stream.feed(text)
    stream.finish()
    assert stream.complete == complete


BEGINS = ('<tool_call>\n{"name": "f", "arguments": ', '<tool_call>\n{"name": "g", "arguments": ')
HERMES = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("form", "begins", "text", "expected"),
    [
        ("hermes", BEGINS, HERMES, [("f", "{}")]),
        ("hermes", BEGINS, f"{HERMES}\n{HERMES}".replace('"f"', '"g"', 1), [("g", "{}"), ("f", "{}")]),
        ("hermes", BEGINS, f" {HERMES}", [f" {HERMES}"]),
        ("hermes", BEGINS, f'"{HERMES}"', [f'"{HERMES}"']),
        ("hermes", BEGINS, HERMES.replace('"f"', '"h"'), [HERMES.replace('"f"', '"h"')]),
        ("hermes", BEGINS, "<tool_call>\n{", ["<tool_call>\n{"]),
        ("hermes", BEGINS, "", []),
        ("llama3", ('{"name": "f", "parameters": ',), '{"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
        (
            "llama3",
            ('{"name": "f", "parameters": ',),
            '{"name": "g", "parameters": {}}',
            ['{"name": "g", "parameters": {}}'],
        ),
        ("llama3", ('{"name": "f", "parameters": ',), '{"name": "f"}', ['{"name": "f"}']),
    ],
)
def test_with_texts_that_begin_calls_only_these_do(
    form: str, begins: tuple[str, ...], text: str, expected: list[str | tuple[str, str]]
) -> None:
    for size in (1, 3, 17, 200):
        assert outcome(form, [text[at : at + size] for at in range(0, len(text), size)], begins) == expected


def test_with_texts_that_begin_calls_other_text_is_out_as_soon_as_it_differs() -> None:
    stream = ToolCallStream(FORMATS["llama3"], lambda: "id", ('{"name": "f", "parameters": ',))
    assert [stream.feed(piece) for piece in ('{"name": "', "x", '"}')] == [
        [],
        [TextEvent('{"name": "x')],
        [TextEvent('"}')],
    ]
