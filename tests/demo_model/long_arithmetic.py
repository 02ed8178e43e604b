"""Arithmetic that takes more than one step: sums of several numbers, story problems, and sums of four and five digits.

Several numbers are added up from the left (``12 + 30 + 7 = 42 + 7 = 49``). A long sum is written twice, first from its
last digit to its first, which is the direction of carries: ``48217 + 9345 -> 26575 -> 57562``.
"""

from __future__ import annotations

import random

from .arithmetic import ASK
from .example import Example, Split
from .phrasing import Phrasings, phrase
from .words import NAMES, THINGS, word

SUMS = Phrasings(
    training=(
        "~{sum}",
        "~{sum} =",
        "~{sum} = ?",
        "~{sum}?",
        f"~{ASK} {{sum}}",
        f"~{ASK} the (sum|total) of {{list}}",
        "~(the |)(sum|total) of {list}",
        "(add|sum|add up|total) {list}",
        "add (these|these numbers|the numbers): {list}",
        "~what do (you|i|we) get (if|when) (you|i|we) add {list}",
        "~(what is|what's) the (result|answer|value)( of|:| to) {sum}",
        "~how much (do|are) {list}( make|)( together|)",
        "~i need the (sum|total) of {list}",
        "~do you know( what|) {sum}( is|)",
    ),
    held_out=(
        "~quick math: {sum}",
        "find {sum}",
        "~what does {sum} equal",
        "put {list} together",
        "~{sum} is what",
    ),
)
HOW_MANY = "how many( {thing}s|) (does {name} have|are left|are there)( now|)(?|?|)"
DO_I_HAVE = "how many( {thing}s|) do i have( now| left|)(?|?|)"
IN_THE_BOX = "how many( {thing}s|) are (there|in the box)( now|)(?|?|)"
ON_THE_BUS = "how many( people|) are on the bus( now|)(?|?|)"
GAINS = "(gets|buys|finds|picks|makes)"
LOSES = "(eats|loses|sells|gives away|breaks)"
# The templates by the signs of the two steps.
STORIES = {
    "+-": Phrasings(
        training=(
            f"~{{name}} has {{a}} {{thing}}s, {GAINS} {{b}} more and {LOSES} {{c}}. {HOW_MANY}",
            f"~{{name}} has {{a}} {{thing}}s. {{name}} {GAINS} {{b}} more, then {LOSES} {{c}}. {HOW_MANY}",
            f"~i had {{a}} {{thing}}s, (bought|found|got) {{b}} more and (sold|lost|gave away) {{c}}. {DO_I_HAVE}",
            f"~there (are|were) {{a}} {{thing}}s in the box. i put in {{b}} and take out {{c}}. {IN_THE_BOX}",
            f"~a bus has {{a}} people. {{b}} get on and {{c}} get off. {ON_THE_BUS}",
        ),
        held_out=(
            "~{name} owns {a} {thing}s, is given {b} more and throws {c} away. how many remain(?|?|)",
            "~we had {a} {thing}s, then {b} more came, then {c} went. how many are here(?|?|)",
        ),
    ),
    "-+": Phrasings(
        training=(
            f"~{{name}} has {{a}} {{thing}}s, {LOSES} {{b}} and {GAINS} {{c}}( more|). {HOW_MANY}",
            f"~{{name}} has {{a}} {{thing}}s. {{name}} {LOSES} {{b}}, then {GAINS} {{c}}( more|). {HOW_MANY}",
            f"~i had {{a}} {{thing}}s, (sold|lost|gave away) {{b}} and (bought|found|got) {{c}}( more|). {DO_I_HAVE}",
            f"~there (are|were) {{a}} {{thing}}s in the box. i take out {{b}} and put in {{c}}. {IN_THE_BOX}",
            f"~a bus has {{a}} people. {{b}} get off and {{c}} get on. {ON_THE_BUS}",
        ),
        held_out=(
            "~{name} owns {a} {thing}s, throws {b} away and is given {c} more. how many remain(?|?|)",
            "~we had {a} {thing}s, then {b} went, then {c} more came. how many are here(?|?|)",
        ),
    ),
    "++": Phrasings(
        training=(
            f"~{{name}} has {{a}} {{thing}}s, {GAINS} {{b}} (more |)and {GAINS} {{c}}( more|). {HOW_MANY}",
            f"~{{name}} has {{a}} {{thing}}s. {{name}} {GAINS} {{b}}, then {GAINS} {{c}}( more|). {HOW_MANY}",
            f"~there (are|were) {{a}} {{thing}}s in the box. i put in {{b}} and then {{c}}( more|). {IN_THE_BOX}",
            f"~a bus has {{a}} people. {{b}} get on and then {{c}} get on. {ON_THE_BUS}",
        ),
        held_out=("~{name} owns {a} {thing}s, is given {b} and is given {c} more. how many in total(?|?|)",),
    ),
    "--": Phrasings(
        training=(
            f"~{{name}} has {{a}} {{thing}}s, {LOSES} {{b}} and {LOSES} {{c}}( more|). {HOW_MANY}",
            f"~{{name}} has {{a}} {{thing}}s. {{name}} {LOSES} {{b}}, then {LOSES} {{c}}( more|). {HOW_MANY}",
            f"~there (are|were) {{a}} {{thing}}s in the box. i take out {{b}} and then {{c}}( more|). {IN_THE_BOX}",
            f"~a bus has {{a}} people. {{b}} get off and then {{c}} get off. {ON_THE_BUS}",
        ),
        held_out=("~{name} owns {a} {thing}s, throws {b} away and gives {c} away. how many remain(?|?|)",),
    ),
}


def sum_of_several(rng: random.Random, split: Split) -> Example:
    """Three or four numbers of one to three digits."""
    while True:
        numbers = [rng.randint(0, rng.choice((9, 99, 99, 99, 99, 999))) for _ in range(rng.choice((3, 3, 4)))]
        if split.allows("+".join(map(str, sorted(numbers)))):
            break
    spoken = rng.choice((" + ", " + ", " + ", "+", " plus ")).join(map(str, numbers))
    listed = ", ".join(map(str, numbers[:-1])) + rng.choice((" and ", ", ", " and ")) + str(numbers[-1])
    prompt, template = phrase(rng, SUMS, split, sum=spoken, list=listed)
    return Example("sum_of_several", prompt, _steps(numbers, "+" * (len(numbers) - 1)), template)


def sum_5_digits(rng: random.Random, split: Split) -> Example:
    """Two numbers of which at least one has four or five digits."""
    a, b = _long_operands(rng, split)
    plus = rng.choice((" + ", " + ", "+", " plus "))
    prompt, template = phrase(rng, SUMS, split, sum=f"{a}{plus}{b}", list=f"{a} and {b}")
    return Example("sum_5_digits", prompt, f"{a} + {b} -> {str(a + b)[::-1]} -> {a + b}", template)


def story_problem(rng: random.Random, split: Split) -> Example:
    """Two additions or subtractions of numbers below 100, without negative intermediate results."""
    signs = rng.choice(("+-", "+-", "-+", "-+", "++", "--"))
    while True:
        a, b, c = rng.randint(2, 99), rng.randint(1, rng.choice((9, 99))), rng.randint(1, rng.choice((9, 99)))
        first = a + b if signs[0] == "+" else a - b
        if first >= 0 and (signs[1] == "+" or first >= c) and split.allows(f"{a}{signs[0]}{b}{signs[1]}{c}"):
            break
    slots = {"thing": word(rng, THINGS, split), "name": word(rng, NAMES, split).capitalize()}
    prompt, template = phrase(rng, STORIES[signs], split, a=a, b=b, c=c, **slots)
    return Example("story_problem", prompt, _steps([a, b, c], signs), template)


def _steps(numbers: list[int], signs: str) -> str:
    """``12 + 5 - 3 = 17 - 3 = 14``: the remaining expression after each step."""
    total, lines = numbers[0], []
    for done, following in enumerate(numbers[1:]):
        lines.append(
            " ".join(
                [
                    str(total),
                    *(f"{sign} {number}" for sign, number in zip(signs[done:], numbers[done + 1 :], strict=True)),
                ]
            )
        )
        total += following if signs[done] == "+" else -following
    return " = ".join([*lines, str(total)])


def _long_operands(rng: random.Random, split: Split) -> tuple[int, int]:
    while True:
        long = rng.randint(1000, rng.choice((9999, 99999, 99999)))
        digits = rng.choice((2, 3, 4, 5, 5))
        other = rng.randint(10 ** (digits - 1), 10**digits - 1)
        if split.allows(f"{min(long, other)}+{max(long, other)}"):
            return (long, other) if rng.random() < 0.5 else (other, long)
