from __future__ import annotations

import json
import random
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picking import Grammar

from nearfar.compiler.errors import RequestError
from nearfar.server_fallback.text.grammar.rules import source_rules
from nearfar.server_fallback.text.grammar.source import JsonSource, RegexSource

# Python's own regular expressions interpret these in the same way.
PATTERNS = [
    "a*b|c+",
    "(ab|a)(bc|c)?",
    "[^a-c]x?",
    r"[0-9]{2,3}[.,]?",
    "(a|b)*abb",
    "x{0,2}y{1,}",
    "(?:a(b)?)+",
    "a[^\n\r]c",
    r"[\]\-a]+",
]
PATTERNS += [
    "",
    "^a$|b",
    "^(é|中|a)+$",
    r"-(1|12|123)\.5|1\.5|12\.55",
    r"[\s0-9]+",
    "(ab){2}|(abab)*c",
    r"a\x62?",
    "(a{2}|b+?)c*?",
]
ALPHABET = "abcxy1235.,-] \né中"
KNOWN = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "abb",
    "cc",
    "12",
    "123.",
    "abab",
    "ababc",
    "-12.5",
    "1.5",
    "12.55",
    "-12.55",
    "a中b",
    "xxyyy",
]


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_grammar_accepts_the_texts_that_its_expression_matches(grammar: Grammar, pattern: str) -> None:
    rng = random.Random(7)
    texts = KNOWN + ["".join(rng.choices(ALPHABET, k=rng.randrange(7))) for _ in range(120)]
    whole = grammar.compile(RegexSource(pattern))
    assert [grammar.takes(whole, text) for text in texts] == [
        re.fullmatch(f"(?:{pattern})", text) is not None for text in texts
    ]
    # JSON Schema's patterns match anywhere, and their $ does not match before a last line end.
    somewhere = grammar.compile(JsonSource(json.dumps({"type": "string", "pattern": pattern})))
    found = [re.search(pattern.replace("$", r"\Z"), text) is not None for text in texts]
    assert [grammar.takes(somewhere, json.dumps(text, ensure_ascii=False)) for text in texts] == found


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is not a regular expression"),
        (")", "is not a regular expression"),
        ("*a", "is not a regular expression"),
        ("a**", "is not a regular expression"),
        ("a{2}{3}", "is not a regular expression"),
        ("a{3,2}", "is not a regular expression"),
        ("[z-a]", "is not a regular expression"),
        ("[a", "is not a regular expression"),
        ("a\\", "is not a regular expression"),
        ("(?i)a", "is not a regular expression"),
        ("(?=a)b", "uses lookaround"),
        ("(?<!a)b", "uses lookaround"),
        (r"(a)\1", "which is not supported here"),
        (r"\bfoo", "which is not supported here"),
        (r"\p{L}", "which is not supported here"),
        (r"\u12", "unfinished"),
        ("[^\\s\\S]", "without a character"),
        ("a(^b)", "anchor"),
        ("a^b", "anchor"),
        ("a{1234567}", "too large"),
        ("(" * 300 + ")" * 300, "nested too deep"),
    ],
)
def test_patterns_that_are_not_regular_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(RequestError) as error:
        source_rules(RegexSource(pattern))
    assert message in error.value.message


@settings(max_examples=200)
@given(st.text(r"ab01()[]{}*+?|^$\-,.xdwsSuU", max_size=12))
def test_any_text_is_an_expression_or_refused(pattern: str) -> None:
    with suppress(RequestError):
        source_rules(RegexSource(pattern))


BOUND = st.one_of(st.integers(-130, 130), st.integers(-2500, 2500).map(lambda value: value / 100))
NAMES = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]


@settings(max_examples=20, deadline=None)
@given(
    bounds=st.dictionaries(st.sampled_from(NAMES), BOUND),
    whole=st.booleans(),
    thousandths=st.lists(st.integers(-140_000, 140_000), min_size=10, max_size=10),
)
def test_a_range_accepts_the_numbers_within_it_and_no_others(
    grammar: Grammar, bounds: dict[str, float], whole: bool, thousandths: list[int]
) -> None:
    near = [value + step for value in bounds.values() for step in (0, 0.001, -0.001, 1)]
    written = [
        f"{value:.3f}".rstrip("0").rstrip(".") for value in (0, 1, *near, *(value / 1000 for value in thousandths))
    ]
    texts = [text for text in written if text != "-0"]
    infinity = float("inf")

    def within(value: float) -> bool:
        return (
            (not whole or value == int(value))
            and bounds.get("minimum", -infinity) <= value <= bounds.get("maximum", infinity)
            and bounds.get("exclusiveMinimum", -infinity) < value < bounds.get("exclusiveMaximum", infinity)
        )

    expected = [within(float(text)) for text in texts]
    try:
        compiled = grammar.compile(JsonSource(json.dumps({"type": "integer" if whole else "number", **bounds})))
    except RequestError as error:
        refused = error.message
        compiled = None
    if compiled is None:
        assert (refused, any(expected)) == ("the JSON schema allows no value at all", False)
        return
    assert [grammar.takes(compiled, text) for text in texts] == expected
