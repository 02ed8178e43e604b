from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.stop_strings import MAX_CHARACTERS, StopAutomaton, StopStrings


def run(stops: list[str], parts: list[str]) -> tuple[list[str], bool]:
    strings = StopStrings(StopAutomaton(stops))
    pieces = [strings.feed(part) for part in parts]
    return [*pieces, strings.finish()], strings.stopped


@pytest.mark.parametrize(
    ("stops", "parts", "pieces", "stopped"),
    [
        (["END"], ["a", "E", "N", "x"], ["a", "", "", "ENx", ""], False),
        (["END"], ["aE", "N", "Db", "c"], ["a", "", "", "", ""], True),
        (["END"], ["aEN"], ["a", "EN"], False),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", "", ""], True),
        (["bc", "abcd"], ["abcd"], ["a", ""], True),
        (["b", "ab"], ["ab"], ["", ""], True),
        ([], ["ab"], ["ab", ""], False),
    ],
)
def test_text_is_held_back_while_it_may_become_a_stop_string(
    stops: list[str], parts: list[str], pieces: list[str], stopped: bool
) -> None:
    assert run(stops, parts) == (pieces, stopped)


letters = st.text("abc", max_size=30)


@given(letters, st.lists(st.text("abc", min_size=1, max_size=4), max_size=5), st.lists(st.integers(0, 30)))
def test_the_result_is_that_of_a_naive_search_for_any_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[start:end] for start, end in itertools.pairwise(edges)]
    pieces, stopped = run(stops, parts)
    # The naive definition: the first position at which a stop string is complete, and the longest one there.
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    assert stopped == bool(ends)
    longest = max((len(stop) for stop in stops if text[: ends[0]].endswith(stop)), default=0) if ends else 0
    assert "".join(pieces) == (text[: ends[0] - longest] if ends else text)
    # Text is held back only as long as necessary.
    for count in range(len(parts)):
        seen, out = "".join(parts[: count + 1]), "".join(pieces[: count + 1])
        if not any(end <= len(seen) for end in ends):
            held = max(
                (size for stop in stops for size in range(1, len(stop)) if seen.endswith(stop[:size])), default=0
            )
            assert out == seen[: len(seen) - held]


def test_empty_and_huge_stop_strings_are_refused() -> None:
    with pytest.raises(RequestError, match="empty string") as error:
        StopAutomaton(["a", ""])
    assert error.value.details["param"] == "stop"
    with pytest.raises(RequestError, match="characters in all"):
        StopAutomaton(["a" * MAX_CHARACTERS, "b"])


def test_many_stop_strings_cost_no_more_than_few() -> None:
    stops = [f"{index:04}" for index in range(4000)]
    pieces, stopped = run(stops, ["0", "x"] * 10_000 + ["3", "9", "9", "9"])
    assert stopped
    assert "".join(pieces) == "0x" * 10_000
