"""The formats of tool calls: the shared vectors, which mlx-lm's parsers confirm, and any division of any text."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.compiler.runtime.text.tool_formats import FORMATS
from nearfar.server_fallback.text.tool_call_stream import CallEvent, TextEvent, ToolCallStream

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "conformance/tool_calls.json").read_text())
CASES = VECTORS["cases"]


def outcome(name: str, pieces: list[str], texts: dict[str, list[str]] | None = None) -> list[Any]:
    """Texts, and lists of a call's name and arguments."""
    stream = ToolCallStream(FORMATS[name], texts={key: frozenset(value) for key, value in (texts or {}).items()})
    result: list[Any] = []
    for event in [event for piece in pieces for event in stream.feed(piece)] + stream.finish():
        if isinstance(event, CallEvent):
            result.append([event.name, ""])
        elif not isinstance(event, TextEvent):
            result[-1][1] += event.text
        elif result and isinstance(result[-1], str):
            result[-1] += event.text
        else:
            result.append(event.text)
    return result


def test_the_vectors_hold_all_formats() -> None:
    assert VECTORS["formats"] == {name: form.model_dump() for name, form in FORMATS.items()}


@pytest.mark.parametrize("case", CASES, ids=[f"{case['format']}-{index}" for index, case in enumerate(CASES)])
def test_calls_are_read_the_same_however_the_text_is_cut(case: dict[str, Any]) -> None:
    text, expected = case["text"], case["expected"]
    assert outcome(case["format"], [text], case.get("texts")) == expected
    assert outcome(case["format"], list(text), case.get("texts")) == expected
    for at in range(1, len(text)):
        assert outcome(case["format"], [text[:at], text[at:]], case.get("texts")) == expected


PARSERS = {"gemma4": "gemma4", "qwen3_coder": "qwen3_coder", "mistral": "mistral", "mistral_named": "mistral"}


@pytest.mark.parametrize("name", PARSERS)
def test_complete_calls_are_read_as_mlx_lm_reads_them(name: str) -> None:
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")
    parser = importlib.import_module(f"mlx_lm.tool_parsers.{PARSERS[name]}")
    compared = 0
    for case in CASES:
        calls = [call for call in case["expected"] if not isinstance(call, str)]
        text = case["text"]
        is_plain = case["format"] == name and len(calls) == len(case["expected"]) == 1 and "[CALL_ID]" not in text
        # Their parsers read neither spaces around Gemma's keys nor markers inside of strings.
        if not is_plain or not calls[0][1].endswith("}") or '<|"|>a b' in text or "</function>\n</par" in text:
            continue
        properties = {key: {"type": "string"} for key in case.get("texts", {}).get("f", ())}
        properties |= {"days": {"type": "integer"}, "on": {"type": "boolean"}}
        tools = [{"function": {"name": "f", "parameters": {"properties": properties}}}]
        inside = text.strip().removeprefix(parser.tool_call_start).removesuffix(parser.tool_call_end or "\0")
        assert parser.parse_tool_call(inside.strip(), tools) == {
            "name": calls[0][0], "arguments": json.loads(calls[0][1]),
        }  # fmt: skip
        compared += 1
    assert compared


PARTS = [
    *{marker for form in FORMATS.values() for marker in (form.marker, form.close, form.begin, *form.tokens) if marker},
    *("call:", "f", "<function=f>", "<parameter=a>", "</parameter>", "</function>", "\n", " ", "{", "}", "[", "]", ","),
    *('"a"', '"name": "f", ', '"arguments": ', ":", "1", "\\", '"', "text", "<", "a:", "ü😀"),
]


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.sampled_from(PARTS), max_size=14),
    st.lists(st.integers(1, 120), max_size=6),
)
def test_any_text_is_read_the_same_however_it_is_cut(name: str, parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole = outcome(name, [text])
    assert outcome(name, [text[start:end] for start, end in itertools.pairwise(edges)]) == whole
    assert outcome(name, list(text)) == whole
    if all(isinstance(item, str) for item in whole):
        # Text without a call is complete, except for the surrounding space.
        assert "".join(whole).strip() == text.strip()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex("[a-z_]{1,6}", fullmatch=True), inner),
    max_leaves=6,
)


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call as the format's template writes it."""
    form = FORMATS[name]
    inside = {"json": json.dumps(arguments), "gemma": gemma(arguments), "xml": xml(arguments)}[form.arguments]
    one = f"{form.before_name}f{form.before_arguments}{inside}{form.after_arguments}"
    return f"{form.begin}{one}{form.end}"


def gemma(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def xml(arguments: dict[str, Any]) -> str:
    return "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )


@given(
    st.sampled_from(sorted(FORMATS)),
    st.dictionaries(st.from_regex("[a-z_]{1,6}", fullmatch=True), JSON, max_size=3),
    st.integers(1, 7),
)
def test_arguments_are_returned_as_they_were_written(name: str, arguments: dict[str, Any], size: int) -> None:
    text = written(name, arguments)
    texts = {"f": [key for key, value in arguments.items() if isinstance(value, str)]}
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    [[called, given_arguments]] = outcome(name, pieces, texts)
    assert called == "f"
    assert json.loads(given_arguments) == arguments
