"""Two or three home commands in one sentence, which become a JSON list of tool calls in the same order.

turn off the hall light and lock the front door  ->  [{"tool": "set_light", ...}, {"tool": "set_lock", ...}]
"""

from __future__ import annotations

import json
import random

from .commands import command
from .example import Example, Split
from .phrasing import Phrasings, phrase

TWO = Phrasings(
    training=(
        "~{a} and {b}",
        "~{a}, {b}",
        "~{a} and then {b}",
        "~{a}, then {b}",
        "~first {a}, then {b}",
        "~{a} and also {b}",
        "~{a}, and {b}",
        "~{a}. {b}",
        "~{a}. then {b}",
    ),
    held_out=("~{a}; {b}", "~{a}, and after that {b}", "~two things: {a}, {b}", "~{a}, and do not forget: {b}"),
)
THREE = Phrasings(
    training=(
        "~{a}, {b} and {c}",
        "~{a}, {b}, {c}",
        "~{a}, {b}, and {c}",
        "~{a} and {b} and {c}",
        "~{a}, then {b}, then {c}",
        "~first {a}, then {b}, and then {c}",
        "~{a}. {b}. {c}",
    ),
    held_out=("~{a}; {b}; {c}", "~three things: {a}, {b}, {c}", "~{a}, after that {b}, and after that {c}"),
)


def command_list(rng: random.Random, split: Split) -> Example:
    steps = [command(rng, split) for _ in range(rng.choice((2, 2, 3)))]
    spoken = dict(zip("abc", (_clause(step.prompt) for step in steps), strict=False))
    prompt, template = phrase(rng, TWO if len(steps) == 2 else THREE, split, **spoken)
    return Example("command_list", prompt, json.dumps([json.loads(step.answer) for step in steps]), template)


def _clause(command: str) -> str:
    """A command as a part of a longer sentence."""
    return command[0].lower() + command[1:].rstrip(".!?")
