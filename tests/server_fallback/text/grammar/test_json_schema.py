"""The server's xgrammar enforces the schemas of the conformance file, as the page's does in
web/test/grammar/json_schema.test.ts. That file refuses the others, since both sides evaluate the same rules.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from picking import Grammar, pick

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.text.grammar.rules import source_rules
from nearfar.server_fallback.text.grammar.source import JsonSource

VECTORS = json.loads((Path(__file__).parents[4] / "tests/conformance/json_schemas.json").read_text())


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar()


@pytest.mark.parametrize("name", VECTORS["schemas"])
def test_every_answer_is_valid(grammar: Grammar, name: str) -> None:
    schema = VECTORS["schemas"][name]
    validator = jsonschema_rs.Draft7Validator(schema, validate_formats=True) if "$defs" not in str(schema) else None
    constraint_source = JsonSource(json.dumps(schema))
    compiled = grammar.compile(constraint_source)
    answers = [pick(grammar.constraint(constraint_source), seed) for seed in range(5)]
    # Random choices do not find the two adjacent letters that this pattern requires.
    assert name == "pattern somewhere" or any(answer is not None for answer in answers)
    for answer in answers:
        if answer is not None:
            value = json.loads(answer)
            assert validator is None or validator.is_valid(value), answer
            assert grammar.takes(compiled, answer)


@pytest.mark.parametrize("name", VECTORS["answers"])
def test_a_schema_accepts_and_rejects_answers(grammar: Grammar, name: str) -> None:
    case = VECTORS["answers"][name]
    compiled = grammar.compile(JsonSource(json.dumps(case["schema"])))
    for text in case["accepted"]:
        assert grammar.takes(compiled, text), text
    for text in case["rejected"]:
        assert not grammar.takes(compiled, text), text


def test_a_refusal_begins_with_a_small_letter_here() -> None:
    with pytest.raises(RequestError, match=r"^the JSON schema\.type must be a list of names$"):
        source_rules(JsonSource('{"type": {}}'))


def test_an_integer_bound_that_no_float_holds_is_accepted(grammar: Grammar) -> None:
    compiled = grammar.compile(JsonSource(json.dumps({"type": "integer", "minimum": -(10**400), "maximum": 10**400})))
    assert grammar.takes(compiled, "-123")
    assert not grammar.takes(compiled, "1.5")


@pytest.mark.parametrize("form", ["items", "additionalProperties", "patternProperties"])
def test_the_rules_of_nested_values_grow_by_the_same_size_with_each_depth(form: str) -> None:
    def size(depth: int) -> int:
        schema: dict[str, Any] = {"type": "boolean"}
        for _ in range(depth):
            schema = {"type": ["array", "object"], form: {"^x": schema} if form == "patternProperties" else schema}
        return len(source_rules(JsonSource(json.dumps(schema))).text)

    assert size(60) - size(40) < 2.5 * (size(20) - size(10))


def test_a_schema_too_large_or_too_deep_is_refused() -> None:
    wide = {"type": "object", "properties": {f"property {index}": {"type": "string"} for index in range(5_000)}}
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"type": "array", "items": deep}
    bomb = {f"d{index}": {"allOf": [{"$ref": f"#/$defs/d{index + 1}"}] * 2} for index in range(25)}
    for schema, message in (
        (wide, "too large"),
        (deep, "nested too deep"),
        ({"enum": list(range(5_000))}, "too large"),
    ):
        with pytest.raises(RequestError, match=message):
            source_rules(JsonSource(json.dumps(schema)))
    assert source_rules(JsonSource(json.dumps({"$ref": "#/$defs/d0", "$defs": {**bomb, "d25": {"type": "null"}}})))
    with pytest.raises(RequestError, match="not JSON"):
        source_rules(JsonSource("[" * 50_000))
