from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picking import Grammar, pick

from nearfar.compiler.errors import RequestError
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


@pytest.mark.parametrize(("schema", "message"), VECTORS["refused"])
def test_schemas_that_cannot_be_enforced_are_refused(schema: Any, message: str) -> None:
    text = schema["$text"] if isinstance(schema, dict) and "$text" in schema else json.dumps(schema)
    with pytest.raises(RequestError) as error:
        source_rules(JsonSource(text))
    assert message in error.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 2}]}},
        },
    ],
)
def test_a_schema_whose_values_never_end_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError, match="no finite value"):
        source_rules(JsonSource(json.dumps(schema)))


def test_values_that_a_schema_allows_can_be_written(grammar: Grammar) -> None:
    def takes(schema: Any, text: str) -> bool:
        return grammar.takes(grammar.compile(JsonSource(json.dumps(schema))), text)

    text = {"type": "string"}
    assert takes(text, '"a \\" \\\\ \\n \\u00e9 é 中"')
    assert not takes(text, '"\\ud83d"')
    assert not takes(text, '"\n"')
    assert takes({"type": "string", "minLength": 2, "maxLength": 3}, '"\\n\\""')
    assert not takes({"type": "string", "minLength": 2, "maxLength": 3}, '"a"')
    assert not takes({"type": "string", "minLength": 2, "maxLength": 3}, '"abcd"')
    assert takes({"type": "string", "minLength": 20}, f'"{"a" * 20}\\n"')
    assert not takes({"type": "string", "minLength": 20}, f'"{"a" * 19}"')
    assert takes({"type": "string", "maxLength": 30}, f'"{"é" * 30}"')
    assert not takes({"type": "string", "maxLength": 30}, f'"{"a" * 31}"')
    assert takes({"type": "string", "pattern": "b$"}, '"a\\nb"')
    members = {"type": "object", "properties": {"a": {"const": 1.0}, "b": {"enum": ["x", None]}}, "required": ["b"]}
    assert takes(members, '{"a": 1, "b":null}')
    assert takes(members, '{\n  "b": "x"\n}')
    assert not takes(members, '{"b": "x", "a": 1}')
    assert not takes(members, '{"a": 1}')
    assert takes({}, '{"a": [1.5e3, {"b": []}, "", true]}')


def test_an_integer_bound_that_no_float_holds_is_accepted(grammar: Grammar) -> None:
    compiled = grammar.compile(JsonSource(json.dumps({"type": "integer", "minimum": -(10**400), "maximum": 10**400})))
    assert grammar.takes(compiled, "-123")
    assert not grammar.takes(compiled, "1.5")


def test_a_schema_too_large_or_too_deep_is_refused() -> None:
    wide = {"type": "object", "properties": {f"property {index}": {"type": "string"} for index in range(5_000)}}
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"type": "array", "items": deep}
    bomb = {f"d{index}": {"allOf": [{"$ref": f"#/$defs/d{index + 1}"}] * 2} for index in range(25)}
    for schema, message in (
        (wide, "too large"),
        (deep, "nested too deep"),
        ({"type": "string", "pattern": "a{100000}"}, "too large"),
        ({"enum": list(range(5_000))}, "too large"),
    ):
        with pytest.raises(RequestError, match=message):
            source_rules(JsonSource(json.dumps(schema)))
    assert source_rules(JsonSource(json.dumps({"$ref": "#/$defs/d0", "$defs": {**bomb, "d25": {"type": "null"}}})))
    with pytest.raises(RequestError, match="not JSON"):
        source_rules(JsonSource("[" * 50_000))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": {}},
        {"type": [[]]},
        {"required": "a"},
        {"required": [5]},
        {"allOf": [{"required": [{}]}, {"required": ["a"]}]},
        {"oneOf": [{"required": [{}]}, {"required": ["a"]}]},
        {"oneOf": [{"type": [{}]}, {"type": "string"}]},
        {"allOf": [{"minimum": "a"}, {"minimum": 3}]},
        {"allOf": [5]},
        {"anyOf": {}},
        {"properties": {"a": 5}},
        {"items": 5},
        {"enum": 5},
        {"const": float("inf")},
        {"enum": [float("nan")]},
        {"minItems": True},
        {"minItems": 1.5},
        {"minLength": "1"},
        {"minimum": None},
        {"maximum": True},
        {"pattern": 5},
        {"format": []},
        {"$ref": {}},
        {"$ref": "#/$defs/a/b", "$defs": {"a": [1]}},
        {"patternProperties": {"(": {}}},
        {"type": "object", "minProperties": 3, "maxProperties": 1},
    ],
)
def test_invalid_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(RequestError):
        source_rules(JsonSource(json.dumps(schema)))


KEYWORDS = [
    "type",
    "enum",
    "const",
    "$ref",
    "$defs",
    "allOf",
    "anyOf",
    "oneOf",
    "items",
    "prefixItems",
    "maxItems",
    "a",
]
KEYWORDS += ["properties", "required", "additionalProperties", "patternProperties", "propertyNames", "pattern"]
KEYWORDS += ["minimum", "exclusiveMaximum", "minLength", "format"]
NAMES = st.sampled_from(["string", "integer", "object", "array", "a", "#", "#/$defs/a"])
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | NAMES
SCHEMAS = st.recursive(
    LEAVES,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), part, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(SCHEMAS)
def test_any_json_is_a_schema_or_refused(schema: Any) -> None:
    with suppress(RequestError):
        assert source_rules(JsonSource(json.dumps(schema))).text.startswith("root ::= ")
