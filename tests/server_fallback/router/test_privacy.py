"""Private texts stay private, however they are split into parts and whatever invisible characters they contain."""

from __future__ import annotations

import json
import re
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.server_fallback.router.decision import privacy, readings
from nearfar.server_fallback.router.decision.privacy import PrivateCheck, compile_pattern

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance/router_private.json").read_text(encoding="utf-8")
)
PATTERNS = (
    r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b",
    r"^private:",
    r"\bcode [A-Z]+\b",
    r"x\By",
    "\u00e9t\u00e9",
    r"end$",
    r"k(?:ey)?\s*=\s*[^ ]{2,4}",
)
CHECK = PrivateCheck.of((), PATTERNS, ignore_case=True)
# All such characters of all planes.
IGNORABLE = "".join(regex.findall(r"[\p{DI}\p{Cf}\u2800]|(?![\t-\r\x85])\p{Cc}", "".join(map(chr, range(0x110000)))))


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_private_texts_match_the_conformance_cases(case: dict[str, Any]) -> None:
    check = PrivateCheck.of((), (case["pattern"],), ignore_case=case.get("ignore_case", True))
    assert check.matches(*case["parts"]) is case["private"]


EXAMPLES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance/private_patterns.json").read_text(encoding="utf-8")
)


def test_the_chat_pages_patterns_match_their_examples_but_no_counterexample() -> None:
    all_of_them = PrivateCheck.of((), tuple(row["pattern"] for row in EXAMPLES["patterns"]), ignore_case=True)
    for row in EXAMPLES["patterns"]:
        one = PrivateCheck.of((), (row["pattern"],), ignore_case=True)
        assert [text for text in row["found"] if not one.matches(f"x {text}")] == []
        assert [text for text in row["clear"] if all_of_them.matches(text)] == []


def test_a_pattern_of_as_many_states_as_allowed_is_searched() -> None:
    assert compile_pattern("a{1000}", ignore_case=False).search("a" * 1000)


atoms = st.sampled_from(
    ["a", "b", "1", "-", " ", ".", r"\w", r"\W", r"\d", r"\s", "[ab]", "[^a1]", "\\n", "^", "$", r"\b", r"\B"]
)
quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{0}", "{1,}", "{0,2}", "*?", "{1,3}?"])
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map("(?:{})".format),
        st.tuples(inner, quantifiers).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(pattern=expressions, text=st.text("ab1- \n", max_size=12))
def test_a_pattern_finds_what_the_standard_library_finds(pattern: str, text: str) -> None:
    # In re, $ also matches before a line feed at the end, and \B does not match an empty text.
    native = re.compile(pattern.replace("$", r"\Z").replace(r"\B", r"(?!\b)"), re.ASCII)
    assert bool(compile_pattern(pattern, ignore_case=False).search(text)) is bool(native.search(text))


FOUND = (
    "my 123-45-6789.",
    "private: it",
    "the CODE abc",
    "xy",
    "\u00c9t\u00e9",
    "the end",
    "KEY = abc",
    r"\u0031\u00323-45-6789",
    "e\u0301te\u0301",
)
others = st.lists(st.text("a1 -.\u00e9\n", max_size=4), max_size=3)


@settings(max_examples=150)
@given(text=st.sampled_from(FOUND), before=others, after=others, data=st.data())
def test_neither_splits_nor_ignorable_characters_make_a_private_text_public(
    text: str, before: list[str], after: list[str], data: st.DataObject
) -> None:
    assert CHECK.matches(text)
    places = st.lists(st.integers(0, len(text)), max_size=4)
    marked = list(text)
    for place in sorted(data.draw(places), reverse=True):
        marked.insert(place, data.draw(st.text(IGNORABLE, min_size=1, max_size=3)))
    assert CHECK.matches("".join(marked))
    cuts = [0, *sorted(data.draw(places)), len(text)]
    parts = ["".join(marked[start:end]) for start, end in zip(cuts, [*cuts[1:-1], len(marked)], strict=False)]
    assert "".join(parts) == "".join(marked)
    assert CHECK.matches(*before, *parts, *after)


def test_a_search_ends_in_time_and_blocks_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern backtracks endlessly; the standard library's re would hold the interpreter's lock meanwhile."""
    monkeypatch.setattr(privacy, "SEARCH_SECONDS", 0.2)
    answers, beats = [], 0
    check = PrivateCheck.of((), ("(a+)+b",), ignore_case=False)
    searching = threading.Thread(target=lambda: answers.append(check.matches("a" * 500_000)))
    searching.start()
    while searching.is_alive():
        searching.join(0.005)
        beats += 1
    assert answers == [True]
    assert beats > 5


def test_a_machine_that_is_busy_with_something_else_does_not_make_a_text_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(*arguments: Any, **options: Any) -> Iterator[str]:
        time.sleep(0.06)
        yield from readings.readings(*arguments, **options)

    monkeypatch.setattr(privacy, "readings", late)
    monkeypatch.setattr(privacy, "SEARCH_SECONDS", 0.05)
    assert not PrivateCheck.of((), ("secret",), ignore_case=False).matches("public")


@pytest.mark.parametrize(
    "unit", ["\u6f22\u5b57", "e\u0301\u0316", "\u0301\u0316", "\ufdfa", "\uff76\uff9e", "\u1161"], ids=ascii
)
def test_a_long_text_is_normalized_in_short_pieces(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """unicodedata holds the interpreter's lock, and takes quadratic time in the length of a run of marks."""
    longest_piece, longest_run = 0, 0

    def normalize(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
        nonlocal longest_piece, longest_run
        longest_piece = max(longest_piece, len(text))
        longest_run = max(longest_run, *(len(run) for run in regex.findall(r"\p{M}*", text)))
        return unicodedata.normalize(form, text)

    monkeypatch.setattr(readings, "unicodedata", SimpleNamespace(normalize=normalize))
    # A busy machine may need longer than a request may.
    monkeypatch.setattr(privacy, "SEARCH_SECONDS", 600.0)
    # A text that grows too long is private without a search.
    assert CHECK.matches(unit * (200_000 // len(unit))) is (unit == "\ufdfa")
    assert 0 < longest_piece <= readings.PIECE_CHARACTERS + readings.MAX_UNCUT
    assert longest_run <= readings.MAX_MARKS
