"""Answers that must end within a number of tokens, with the masks of tests/conformance/bounded_masks.json, as in the
browser.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from bounded_masks import CASES, EOS, VOCAB_SIZE, Bounded, fingerprint, source_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.server_fallback.text.grammar.completion import pending_bytes
from nearfar.server_fallback.text.grammar.matcher import allowed_ids
from nearfar.server_fallback.text.grammar.shortener import Shortener
from nearfar.server_fallback.text.grammar.source import EbnfSource, GrammarSource, JsonSource

VECTORS: list[dict[str, Any]] = json.loads(CASES.read_text())["cases"]


@pytest.fixture(scope="module")
def bounded() -> Bounded:
    return Bounded()


def test_the_same_tokens_are_allowed_as_in_the_browser(bounded: Bounded) -> None:
    for case in VECTORS:
        constraint, needed = bounded.constraint(source_of(case["source"]), case["max_tokens"] - case["needed"])
        assert needed == case["needed"], case["source"]
        for index, (expected, token_id) in enumerate(case["steps"]):
            assert fingerprint(constraint.mask()) == expected, f"{case['source']}: token {index}"
            if token_id >= 0:
                constraint.accept(token_id)
        assert constraint.complete


def written(bounded: Bounded, source: GrammarSource, more: int, seed: int) -> str:
    """An answer sampled as in the engine: until a stop token, until nothing else is allowed, or until its tokens are
    used up.
    """
    constraint, needed = bounded.constraint(source, more)
    rng, out = random.Random(seed), b""
    for _ in range(needed + more):
        token_id = rng.choice(allowed_ids(constraint.mask(), VOCAB_SIZE).tolist())
        if token_id == EOS:
            break
        constraint.accept(token_id)
        out += bounded.shapes.tokens[token_id]
        if constraint.finished:
            break
    assert constraint.complete, out
    return out.decode()


@pytest.mark.parametrize(
    "schema",
    [
        # A first character can require more text than all names together.
        {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 150}]},
        {
            "anyOf": [
                {"type": "null"},
                {"type": "array", "minItems": 30, "items": {"type": "object", "required": ["name", "of"]}},
            ]
        },
        {"type": "object", "properties": {"a": {"type": "object", "required": [f"p{index}" for index in range(40)]}}},
        {"type": "string", "pattern": "^(\u4e2d|\U0001f600){3,}$"},
    ],
    ids=["a long string", "many items", "many properties", "letters of several tokens"],
)
def test_an_answer_is_complete_however_much_a_choice_demands(bounded: Bounded, schema: dict[str, Any]) -> None:
    validator = jsonschema_rs.Draft7Validator(schema)
    for more in (0, 1, 2, 100, 150, 200, 330, 500):
        text = written(bounded, JsonSource(json.dumps(schema)), more, more)
        assert validator.is_valid(json.loads(text)), text


def test_far_from_its_end_an_answer_may_be_anything_that_the_grammar_allows(bounded: Bounded) -> None:
    constraint, _ = bounded.constraint(JsonSource('{"type": "object"}'), 10_000)
    plain = constraint._inner
    for character in b'{"a":[{"b":':
        assert constraint.mask() is plain.mask()
        constraint.accept(bounded.shapes.tokens.index(bytes([character])))


@settings(max_examples=60)
@given(
    st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=8),
    st.lists(st.text("ab\u00e9", max_size=9), min_size=1, max_size=6),
)
def test_a_text_becomes_the_fewest_tokens_whatever_texts_came_before(tokens: list[bytes], texts: list[str]) -> None:
    alphabet = [*tokens, b"a", b"ab", b"\xc3", b"\xa9b"]
    together = Shortener(alphabet)
    for text in texts:
        found = together.fewest(text)
        assert found == Shortener(alphabet).fewest(text)
        data, counts = text.encode(), [0]
        for end in range(1, len(text.encode()) + 1):
            counts.append(
                min([1000, *(counts[end - len(token)] + 1 for token in alphabet if data[:end].endswith(token))])
            )
        assert (1000 if found is None else found.count) == min(counts[-1], 1000)


def test_an_ambiguous_grammar_is_given_up_in_time_and_its_answer_goes_on(
    bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = EbnfSource('root ::= e+\ne ::= ("a" | "b" e "c" | "(" e ")")+')
    constraint, _ = bounded.constraint(source, 50)
    monkeypatch.setattr("nearfar.server_fallback.text.grammar.bounded._MOST_SECONDS", -1.0)
    for character in b"((a":
        constraint.accept(bounded.shapes.tokens.index(bytes([character])))
    assert constraint.gave_up
    # The mask is that of the grammar, whose state is the same as before the search.
    assert constraint.mask() is constraint._inner.mask()
    allowed = {bounded.shapes.tokens[token_id] for token_id in allowed_ids(constraint.mask(), VOCAB_SIZE)}
    assert {b"a", b"b", b"(", b")"} <= allowed
    assert not constraint.complete


def test_an_incomplete_character_lacks_the_bytes_that_its_first_byte_requires() -> None:
    assert [pending_bytes(0, text) for text in (b"a", b"\xc3", b"\xe4", b"\xf0\x9f", b"\xc3\xa9")] == [0, 1, 2, 2, 0]
    assert pending_bytes(2, b"\xb8") == 1
