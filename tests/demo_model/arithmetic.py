"""Sums and differences. The answer restates the problem (``27 + 58 = 85``), so that the model copies it out before it
computes.

Operands of one and two digits are one task, and three digits another. Differences may be negative.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from .example import Example, Split
from .phrasing import Phrasings, phrase
from .words import THINGS, word

Draw = Callable[[random.Random], tuple[int, int]]
ASK = "(what is|what's|what is|how much is|calculate|compute|work out|solve|tell me|give me|do)"
SUMS = Phrasings(
    training=(
        "~{a}+{b}",
        "~{a} + {b}",
        "~{a} + {b} =",
        "~{a}+{b}=",
        "~{a} + {b} = ?",
        "~{a}+{b}=?",
        "~{a} plus {b}",
        "~{a}+{b}?",
        "~{a} +{b}",
        f"~{ASK} {{a}} + {{b}}",
        f"~{ASK} {{a}}+{{b}}",
        f"~{ASK} {{a}} plus {{b}}",
        f"~{ASK} {{a}} and {{b}}( added| together)",
        f"~{ASK} the (sum|total) of {{a}} and {{b}}",
        "~(the |)(sum|total) of {a} and {b}",
        "(add|sum|add up|total) {a} and {b}",
        "add {a} to {b}",
        "add the numbers {a} and {b}",
        "add (these|the two): {a}, {b}",
        "calculate {a} (+|plus) {b}",
        "~i need the (sum|total) of {a} and {b}",
        "~what do (you|i|we) get (if|when) (you|i|we) add {a} (and|to) {b}",
        "~how much (do|are) {a} and {b}( make|)( together|)",
        "~(what is|what's) the (result|answer|value)( of|:| to) {a} (+|plus) {b}",
        "~if i have {a} {thing}s and (get|buy|find) {b} more, how many (do i have|are there|is that)",
        "~i have {a} {thing}s and {b} {thing}s, how many (in total|do i have|altogether)",
        "~{a} {thing}s plus {b} {thing}s",
        "~do you know( what|) {a} + {b}( is|)",
        "~(sum|addition|plus): {a} {b}",
    ),
    held_out=(
        "~{a} and {b} added together",
        "put {a} and {b} together",
        "~what does {a} plus {b} equal",
        "~quick math: {a} + {b}",
        "increase {a} by {b}",
        "find {a} + {b}",
        "~{a} + {b} is what",
        "~what is {b} more than {a}",
        "~what is {a} if you add {b} to it",
        "~{a} {thing}s are here and {b} more come, how many now",
    ),
)
DIFFERENCES = Phrasings(
    training=(
        "~{a}-{b}",
        "~{a} - {b}",
        "~{a} - {b} =",
        "~{a}-{b}=",
        "~{a} - {b} = ?",
        "~{a}-{b}=?",
        "~{a} minus {b}",
        "~{a}-{b}?",
        "~{a} -{b}",
        f"~{ASK} {{a}} - {{b}}",
        f"~{ASK} {{a}}-{{b}}",
        f"~{ASK} {{a}} minus {{b}}",
        f"~{ASK} {{a}} (less|take away) {{b}}",
        f"~{ASK} the difference (of|between) {{a}} and {{b}}",
        "~(the |)difference (of|between) {a} and {b}",
        "subtract {b} from {a}",
        "take {b} (away |off |)from {a}",
        "calculate {a} (-|minus) {b}",
        "~{a} (less|take away) {b}",
        "deduct {b} from {a}",
        "~i need {a} minus {b}",
        "~what do (you|i|we) get (if|when) (you|i|we) (subtract|take|remove) {b} from {a}",
        "~what is left (if|when) (you|i|we) (subtract|take|remove) {b} from {a}",
        "~(what is|what's) the (result|answer|value)( of|:| to) {a} (-|minus) {b}",
        "remove {b} from {a}",
        "~if i have {a} {thing}s and (eat|lose|give away|sell|use) {b}, how many (do i have left|are left|remain)",
        "~i had {a} {thing}s and (ate|lost|gave away|sold|used) {b}, how many (do i have left|are left|remain)",
        "~do you know( what|) {a} - {b}( is|)",
        "~(difference|subtraction|minus): {a} {b}",
    ),
    held_out=(
        "~what does {a} minus {b} equal",
        "~quick math: {a} - {b}",
        "decrease {a} by {b}",
        "find {a} - {b}",
        "~{a} - {b} is what",
        "~if you subtract {b} from {a}, what remains",
        "~what is {b} less than {a}",
        "~{a} with {b} taken away",
        "~what is {a} if you take {b} from it",
        "~there were {a} {thing}s and {b} are gone, how many now",
    ),
)


def short_sum(rng: random.Random, split: Split) -> Example:
    return _sum(rng, split, "sum", *_operands(rng, split, "+", _one_or_two_digits))


def long_sum(rng: random.Random, split: Split) -> Example:
    return _sum(rng, split, "sum_3_digits", *_operands(rng, split, "+", _up_to_three_digits))


def short_difference(rng: random.Random, split: Split) -> Example:
    return _difference(rng, split, "difference", *_operands(rng, split, "-", _one_or_two_digits))


def long_difference(rng: random.Random, split: Split) -> Example:
    return _difference(rng, split, "difference_3_digits", *_operands(rng, split, "-", _up_to_three_digits))


def _sum(rng: random.Random, split: Split, task: str, a: int, b: int) -> Example:
    prompt, template = phrase(rng, SUMS, split, a=a, b=b, thing=word(rng, THINGS, split))
    return Example(task, prompt, f"{a} + {b} = {a + b}", template)


def _difference(rng: random.Random, split: Split, task: str, a: int, b: int) -> Example:
    prompt, template = phrase(rng, DIFFERENCES, split, a=a, b=b, thing=word(rng, THINGS, split))
    return Example(task, prompt, f"{a} - {b} = {a - b}", template)


def _operands(rng: random.Random, split: Split, operator: str, draw: Draw) -> tuple[int, int]:
    """A pair from this side of the split. A sum and its mirror image count as one value; otherwise the mirror image
    would reveal the answer.
    """
    while True:
        a, b = draw(rng)
        low, high = (min(a, b), max(a, b)) if operator == "+" else (a, b)
        if split.allows(f"{low}{operator}{high}"):
            return a, b


def _one_or_two_digits(rng: random.Random) -> tuple[int, int]:
    limits = (9, 99, 99, 99)
    return rng.randint(0, rng.choice(limits)), rng.randint(0, rng.choice(limits))


def _up_to_three_digits(rng: random.Random) -> tuple[int, int]:
    """At least one operand of three digits."""
    long = rng.randint(100, 999)
    other = rng.randint(0, rng.choice((9, 99, 999, 999)))
    return (long, other) if rng.random() < 0.6 else (other, long)
