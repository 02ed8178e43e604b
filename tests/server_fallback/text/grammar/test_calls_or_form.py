"""Answers that are either tool calls or a message in a response format."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from picking import END, SHAPES, TOKENS, Grammar, pick

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tool_formats import FORMATS
from nearfar.server_fallback.schema.functions import Function, Tool
from nearfar.server_fallback.text.grammar import worker
from nearfar.server_fallback.text.grammar.bounded import BoundedConstraint
from nearfar.server_fallback.text.grammar.constraint import GrammarConstraint
from nearfar.server_fallback.text.grammar.grammar_compiler import GrammarCompiler
from nearfar.server_fallback.text.grammar.grammars import Grammars
from nearfar.server_fallback.text.grammar.matcher import allowed_ids
from nearfar.server_fallback.text.grammar.source import CallsOrForm, EbnfSource, FormSource, JsonSource, RegexSource
from nearfar.server_fallback.text.tools import tool_grammar
from nearfar.server_fallback.text.vocabulary import Vocabulary

STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORM = JsonSource(json.dumps(ANSWER))
STRICT_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 2}}\n</tool_call>'
FREE_CALL = '<tool_call>\n{"name": "g", "arguments": {"b": [true]}}\n</tool_call>'


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    vocabulary = Vocabulary((*TOKENS[:END], b"</s>"), frozenset([END]), (END,), None)
    grammars = Grammars(GrammarCompiler(), lambda: vocabulary)
    yield grammars
    grammars.close()


def either(style: str = "hermes", form: FormSource = FORM, *, parallel: bool = True) -> CallsOrForm:
    tools = [Tool(type="function", function=Function(name="f", parameters=STRICT, strict=True))]
    if style == "hermes":
        tools.append(Tool(type="function", function=Function(name="g", parameters=ANSWER)))
    source = tool_grammar(FORMATS[style], tools, "auto", parallel, form)
    assert isinstance(source, CallsOrForm)
    return source


def constraint(
    grammars: Grammars, source: CallsOrForm, max_tokens: int | None = None
) -> GrammarConstraint | BoundedConstraint:
    [one] = asyncio.run(grammars.constraints(source, 1, "response_format", max_tokens))
    return one


def takes(grammars: Grammars, source: CallsOrForm, text: str) -> bool:
    """Whether the text is a complete answer."""
    one = constraint(grammars, source)
    try:
        for byte in text.encode():
            one.accept(byte)
    except RequestError:
        return False
    return one.complete


def check(text: str) -> str:
    """The kind of a complete answer."""
    if not text.startswith("<tool_call>"):
        assert jsonschema_rs.is_valid(ANSWER, json.loads(text)), text
        return "form"
    for call in (
        text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>").split("\n</tool_call>\n<tool_call>\n")
    ):
        called = json.loads(call)
        assert list(called) == ["name", "arguments"]
        assert jsonschema_rs.is_valid(STRICT if called["name"] == "f" else {"type": "object"}, called["arguments"]), (
            text
        )
    return "calls"


def test_an_answer_is_calls_or_the_form_and_nothing_else(grammars: Grammars) -> None:
    source = either()
    for text in ('{"ok": true}', STRICT_CALL, FREE_CALL, f"{STRICT_CALL}\n{FREE_CALL}"):
        assert takes(grammars, source, text), text
    for text in (
        "",
        "Well",
        '{"ok": 1}',
        f"Well.\n{STRICT_CALL}",
        f'{{"ok": true}}\n{STRICT_CALL}',
        f'{STRICT_CALL}\n{{"ok": true}}',
        STRICT_CALL.replace("2", "3"),
        STRICT_CALL.replace('"f"', '"h"'),
        STRICT_CALL.removesuffix(">"),
    ):
        assert not takes(grammars, source, text), text
    assert not takes(grammars, either(parallel=False), f"{STRICT_CALL}\n{FREE_CALL}")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (RegexSource("(no|maybe) [a-z]{2}"), "maybe so"),
        (EbnfSource('root ::= "[" tag* "]"\ntag ::= "x" way\nway ::= "y"'), "[xyxy]"),
    ],
)
def test_the_form_may_be_of_any_kind(grammars: Grammars, form: FormSource, text: str) -> None:
    source = either(form=form)
    assert takes(grammars, source, text)
    assert takes(grammars, source, STRICT_CALL)
    assert not takes(grammars, source, text[:-1])


def test_random_answers_are_calls_or_the_form(grammars: Grammars) -> None:
    kinds = set()
    for seed in range(12):
        text = pick(constraint(grammars, either()), seed)
        kinds.add(None if text is None else check(text))
    assert kinds >= {"calls", "form"}


def test_both_are_complete_within_max_tokens_and_a_call_begins_only_if_its_end_fits(grammars: Grammars) -> None:
    source = either()
    kinds: dict[str, list[int]] = {}
    with pytest.raises(RequestError, match="and there is room for 1") as error:
        constraint(grammars, source, 1)
    needed = error.value.details["needed"]
    assert isinstance(needed, int)
    assert 0 < needed <= len('{"ok": true}')
    for seed, more in enumerate((0, 1, 5, 60, 62, 70, 100)):
        for first in (TOKENS.index(b'{"'), TOKENS.index(b"<tool_call>")):
            one, rng, out = constraint(grammars, source, needed + more), random.Random(seed), b""
            if first not in allowed_ids(one.mask(), len(TOKENS)):
                continue
            for count in range(needed + more):
                token_id = first if count == 0 else int(rng.choice(allowed_ids(one.mask(), len(TOKENS))))
                if token_id == END:
                    break
                one.accept(token_id)
                out += TOKENS[token_id]
                if one.finished:
                    break
            assert one.complete, out
            kinds.setdefault(check(out.decode()), []).append(more)
    assert kinds["form"] == [0, 1, 5, 60, 62, 70, 100]
    assert kinds["calls"][-1] == 100
    assert kinds["calls"][0] > 5


def test_there_must_be_room_for_the_form_even_if_a_call_is_shorter(grammars: Grammars) -> None:
    with pytest.raises(RequestError, match="has 100 tokens, and there is room for 99"):
        constraint(grammars, either(form=RegexSource("[!(]{100}")), 99)


def test_with_llama3_the_form_must_not_begin_as_a_call(grammars: Grammars) -> None:
    source = either("llama3")
    assert takes(grammars, source, '{"name": "f", "parameters": {"a": 1}}')
    assert takes(grammars, source, '{"ok": false}')
    assert not takes(grammars, source, '{"name": "f", "parameters": {"a": 3}}')
    for form in (JsonSource('{"type": "object"}'), RegexSource("[^]*")):
        with pytest.raises(
            RequestError, match=r"may begin with .*tool calls do; give a form that cannot, or no tools"
        ) as error:
            constraint(grammars, either("llama3", form))
        assert error.value.details["param"] == "response_format"


def test_with_hermes_any_json_is_distinguished_from_calls_and_any_text_is_not(grammars: Grammars) -> None:
    source = either(form=JsonSource('{"type": "object"}'))
    assert takes(grammars, source, json.dumps({"name": "f", "arguments": STRICT_CALL}))
    with pytest.raises(RequestError, match="may begin with '<tool_call>"):
        constraint(grammars, either(form=RegexSource("[^]*")))


def test_a_wrong_schema_of_a_tool_is_not_attributed_to_the_response_format(grammars: Grammars) -> None:
    tool = Tool(type="function", function=Function(name="f", parameters={"type": "wurst"}, strict=True))
    source = tool_grammar(FORMATS["hermes"], [tool], "auto", message=FORM)
    assert isinstance(source, CallsOrForm)
    with pytest.raises(RequestError, match=r"^tools: .*wurst"):
        constraint(grammars, source)


def test_a_form_too_slow_to_follow_is_refused_beside_calls_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either kind, depending on the random answer of the trial."""
    grammar, slow = Grammar(), RegexSource("[a-z]{9}")
    trials: list[bool] = []

    def is_slow(trial: GrammarConstraint | BoundedConstraint) -> bool:
        trials.append(trial.matcher.accept_text("<tool_call>"))
        return trials[-1]

    monkeypatch.setattr(worker, "_is_fast", is_slow)
    with pytest.raises(RequestError, match="too ambiguous"):
        worker._answer(grammar.compiler, SHAPES, either(form=slow))
    assert trials == [False], "the form alone comes first"
