"""EBNF that is refused before it is compiled."""

from __future__ import annotations

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.text.grammar.ebnf_check import check_ebnf


@pytest.mark.parametrize(
    ("grammar", "cycle"),
    [
        ('root ::= root "a" | "a"', "root -> root"),
        ('root ::= "a" | root', "root -> root"),
        ('root ::= a "x"\na ::= "b"* c\nc ::= root | "z"', "root -> a -> c -> root"),
        ('root ::= "" root "a" | "b"', "root -> root"),
        ('root ::= x root "a" | "b"\nx ::= y y\ny ::= "c" | z?\nz ::= "d"', "root -> root"),
        ('root ::= ("b"? root) "a"', "root -> root"),
        ('root ::= (("b" | (c?)) root)\nc ::= "d"', "root -> root"),
        ("root ::= root{0,90}", "root -> root"),
        ('root ::= "q" (= "x") e\ne ::= (= "y") e', "e -> e"),
        ('root ::= expr\nexpr ::= expr "+" term | term # a comment with "quotes\nterm ::= [0-9]+', "expr -> expr"),
        ('root ::= "a"\nunused ::= unused', "unused -> unused"),
    ],
)
def test_left_recursion_is_refused_and_the_cycle_named(grammar: str, cycle: str) -> None:
    with pytest.raises(RequestError, match=f"the grammar is left-recursive: {cycle}; write the repetition with"):
        check_ebnf(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a" root | ""',
        'root ::= item+ "."\nitem ::= "(" item* ")"',
        'root ::= [^\\]a] root | "root" # root ::= root',
        'root ::= "\\"" root | "b"\n',
        'root ::= "x"{2,90}\nb-1.x ::= "y" b-1.x',
        'root ::= TagDispatch(("a", root), loop_after_dispatch=true)',
        'root ::= (("a"{1,90}){1,90}){1,90}',
        "not a grammar at all ::= (((",
    ],
)
def test_grammars_without_left_recursion_reach_the_compiler(grammar: str) -> None:
    check_ebnf(grammar)


def test_repetitions_count_through_groups() -> None:
    with pytest.raises(
        RequestError, match="repeats up to 8,000,000 times, counted through nested repetitions; the limit is 1,000,000"
    ):
        check_ebnf('root ::= (("a"{1,200} "b"){200} "c"){0,200}')
    with pytest.raises(RequestError, match="repeats up to 2,000,000 times"):
        check_ebnf('root ::= "a"{2000000,}')


def test_large_grammars_are_refused_and_deep_ones_are_read() -> None:
    """Without a memo of each rule, the second one would never end."""
    with pytest.raises(RequestError, match="has 400,001 characters; at most 400,000"):
        check_ebnf("#" * 400_001)
    check_ebnf("root ::= " + "(" * 20_000)
    check_ebnf("\n".join(f"r{index} ::= r{index + 1}? r{index + 1}?" for index in range(5000)))


@pytest.mark.parametrize(
    "item", [r'"\U00110000"', r'"a" [b\U0010ffff-\U00110010]', r'"\ud800"', r'"\\\uDFFF"', r'"\u{110000}"']
)
def test_an_escape_that_is_not_a_character_is_refused(item: str) -> None:
    with pytest.raises(RequestError, match="which is not a Unicode character"):
        check_ebnf(f"root ::= {item}")


def test_escapes_of_characters_are_left_to_the_compiler() -> None:
    check_ebnf(r'root ::= "\U0010ffff\ud7ff\ue000" [\x00-\u{1F600}] "\\ud800" # "\ud800"')
