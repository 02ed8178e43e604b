"""What is said to the demo model that hears: commands for a home that the demo's language model also understands.

``spoken`` is what a voice reads, ``written`` what a transcript has: numbers in digits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ROOMS = ("kitchen", "bedroom", "bathroom", "hallway", "office", "garage")
DOORS = ("front", "back", "garage")
TENS = {
    10: "ten", 20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy", 80: "eighty",
    90: "ninety",
}  # fmt: skip
DEGREES = {
    16: "sixteen", 17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty", 21: "twenty one", 22: "twenty two",
    23: "twenty three", 24: "twenty four",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    spoken: str
    written: str


def any_command(generator: random.Random) -> Command:
    kind = generator.random()
    room = generator.choice(ROOMS)
    if kind < 0.35:
        return _same(f"turn {generator.choice(('on', 'off'))} the {room} light")
    if kind < 0.6:
        level = generator.choice(sorted(TENS))
        return _number(f"dim the {room} lights to {{}} percent", level, TENS[level])
    if kind < 0.8:
        degrees = generator.choice(sorted(DEGREES))
        return _number("set the thermostat to {} degrees", degrees, DEGREES[degrees])
    return _same(f"{generator.choice(('lock', 'unlock'))} the {generator.choice(DOORS)} door")


def _same(text: str) -> Command:
    return Command(text, text)


def _number(text: str, number: int, word: str) -> Command:
    return Command(text.format(word), text.format(number))
