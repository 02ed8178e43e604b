"""Reads an example back from its texts, for tests: the slot values that decide its side of the split, and whether its
answer is right.
"""

from __future__ import annotations

import json
import re
import zlib
from itertools import permutations
from types import ModuleType
from typing import Any

from . import arithmetic, command_lists, extraction, lists, long_arithmetic, passages, talk
from . import home_phrasings as say
from .example import Example
from .phrasing import Phrasings
from .words import COMMON

MODULES = (arithmetic, command_lists, extraction, say, lists, long_arithmetic, passages, talk)
# How a list of items may be written.
JOINTS = (" ", ", ", ",")
LIGHT_LEVELS = ((say.ON, 100), (say.ALL_ON, 100), (say.OFF, 0), (say.ALL_OFF, 0), (say.DIM, 30))
STATES = ((say.OPEN, "open"), (say.CLOSE, "closed"), (say.LOCK, "locked"), (say.UNLOCK, "unlocked"))


def is_held_out(value: str) -> bool:
    """One value in ten, by a hash that the committed models were trained with: it must never change."""
    return zlib.crc32(value.encode()) % 10 == 0


def slot_values(example: Example) -> list[str]:
    """The values that decide on which side of the split an example is, as far as its texts show them."""
    task, answer = example.task, example.answer
    numbers = re.findall(r"\d+", answer)
    if task in ("sum", "sum_3_digits", "sum_5_digits"):
        return ["+".join(sorted(numbers[:2], key=int))]
    if task in ("difference", "difference_3_digits"):
        return ["-".join(numbers[:2])]
    if task == "sum_of_several":
        return ["+".join(sorted(re.findall(r"\d+", answer.split(" = ")[0]), key=int))]
    if task == "story_problem":
        return [answer.split(" = ")[0].replace(" ", "")]
    if task in ("sort_numbers", "sort_many_numbers"):
        return [" ".join(sorted(numbers, key=int))]
    if task == "numbers" and len(numbers) > 1:
        return [" ".join(numbers[:2])]
    if task == "email":
        return [answer]
    if task in ("spell", "reverse"):
        return [answer.split(" -> ")[0].replace(" ", "")]
    if task == "refusal" and "{a}" in example.phrasing and "{b}" in example.phrasing:
        return ["*".join(re.findall(r"\d+", example.prompt))]
    return [value for call in calls_of(example) for value in values_of_call(call)]


def values_of_call(call: dict[str, Any]) -> list[str]:
    if call["tool"] == "set_timer":
        return [f"{amount} {unit}" for unit, amount in call.items() if unit != "tool"]
    return str(call.get("item", "")).split()


def is_trained(value: str) -> bool:
    """Whether training may use a value: a word of the prompts themselves is never held out."""
    return value in COMMON or not is_held_out(value)


def calls_of(example: Example) -> list[dict[str, Any]]:
    calls = json.loads(example.answer) if example.task in ("home", "command_list") else []
    return calls if isinstance(calls, list) else [calls]


def phrasings_of(module: ModuleType) -> list[Phrasings]:
    found = [value for value in vars(module).values() if isinstance(value, Phrasings)]
    if module is talk:
        found += [phrasings for _, phrasings in talk.INTENTS]
    if module is long_arithmetic:
        found += long_arithmetic.STORIES.values()
    if module is passages:
        found += [phrasings for relation in passages.RELATIONS for phrasings in (relation.stated, relation.asked)]
    return found


def held_out_templates() -> set[str]:
    return {template for module in MODULES for phrasings in phrasings_of(module) for template in phrasings.held_out}


def require_true(example: Example) -> None:
    """Fails unless the answer of a training example is the right one."""
    prompt, answer, template = example.prompt.lower(), example.answer, example.phrasing
    match example.task:
        case "home":
            [call] = calls_of(example)
            require_call(prompt, call, template)
        case "command_list":
            require_calls_in_order(prompt, calls_of(example), template)
        case "sort_words":
            words = answer.split(", ")
            assert words == sorted(words)
            assert len(words) in (3, 4)
            # Usually the order of their first letters in the prompt is that of the words.
            likely = sorted(map(str.lower, words), key=prompt.find)
            assert any(is_listed(order, prompt) for order in permutations(likely)), example
        case "sort_numbers" | "sort_many_numbers":
            numbers = [int(number) for number in answer.split(", ")]
            assert numbers == sorted(numbers, reverse=template in lists.DESCENDING.training), example
            assert sorted(numbers) == sorted(map(int, re.findall(r"\d+", prompt)))
        case "numbers":
            assert answer.split(", ") == re.findall(r"\d+", prompt)
        case "email":
            assert [address.strip(".") for address in re.findall(r"[\w.-]+@[\w.-]+", prompt)] == [answer], example
        case "spell":
            assert is_word(answer.replace(" ", ""), prompt), example
        case "reverse":
            forward, backward = answer.split(" -> ")
            assert forward == backward[::-1]
            assert is_word(forward.replace(" ", ""), prompt), example
        case "story":
            assert re.fullmatch(example.accepted, answer)
        case "small_talk":
            answers = [said for said, phrasings in talk.INTENTS if template in phrasings.training]
            assert answer in [*answers, *map(talk.FAR_ANSWERS.get, answers)], example
        case "refusal" if template in talk.UNKNOWN.training:
            assert answer == talk.UNKNOWN_ANSWER
        case "refusal":
            assert answer in (talk.TOO_HARD_ANSWER, talk.FAR_TOO_HARD_ANSWER)
        case "reading":
            # Which sentence answers the question is for a test of its own.
            assert all(named.lower() in prompt for named in re.findall(r"\d+|[A-Z]\w+", answer))
        case _:
            require_arithmetic(example)


def require_call(prompt: str, call: dict[str, Any], template: str) -> None:
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    match call:
        case {"tool": "set_light", "room": room, "level": level}:
            assert room == "all" or room in prompt
            assert "{room}" in template or room == "all"
            assert [level] == (numbers or [level for kinds, level in LIGHT_LEVELS if is_of(template, kinds)])
        case {"tool": "set_thermostat", "temperature": temperature, **rest}:
            assert [temperature] == numbers
            assert rest.get("room", "") in prompt
            assert ("room" in rest) == ("{room}" in template)
        case {"tool": "set_blinds", "room": place, "state": state} | {
            "tool": "set_lock",
            "door": place,
            "state": state,
        }:
            assert place in prompt
            assert [state] == [name for kinds, name in STATES if is_of(template, kinds)]
        case {"tool": "set_timer", **duration}:
            [(unit, amount)] = duration.items()
            assert [amount] == numbers
            # "Min" is short for minutes.
            assert re.search(rf"\d[ -]*{unit[:3]}", prompt), (prompt, unit)
        case {"tool": "play_music", "genre": genre, **rest}:
            assert genre in prompt
            assert rest.get("room", "") in prompt.replace(genre, "", 1)
            assert ("room" in rest) == ("{room}" in template)
        case {"tool": "stop_music"}:
            assert is_of(template, say.STOP)
        case {"tool": "add_to_list", "item": item}:
            assert item in prompt
        case _:
            raise AssertionError(f"{call} is not a call that the model learns")


def require_calls_in_order(prompt: str, calls: list[dict[str, Any]], template: str) -> None:
    """The values of the calls stand in the prompt in the calls' order."""
    assert len(calls) == (2 if is_of(template, command_lists.TWO) else 3)
    end = 0
    for call in calls:
        given = [str(value) for key, value in call.items() if key not in ("tool", "state")]
        # A light is on at 100 percent, and all rooms need not be named.
        places = [prompt.find(value, end) for value in given if value not in ("100", "0", "30", "all")]
        assert all(place >= 0 for place in places), (prompt, calls)
        end = max([end, *(place + 1 for place in places)])


def require_arithmetic(example: Example) -> None:
    """Every expression of the answer has the value of its last number, and its operands are those of the prompt."""
    expressions = re.split(r" = | -> ", example.answer)
    if example.task == "sum_5_digits":
        assert expressions.pop(1) == expressions[-1][::-1]
    result = int(expressions[-1])
    for expression in expressions:
        assert sum(int(sign + number) for sign, number in re.findall(r"(?:(-|\+) ?)?(\d+)", expression)) == result
    assert sorted(re.findall(r"\d+", expressions[0])) == sorted(re.findall(r"\d+", example.prompt))


def is_of(template: str, phrasings: Phrasings) -> bool:
    return template in phrasings.training


def is_word(word: str, text: str) -> bool:
    return re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", text) is not None


def is_listed(items: tuple[str, ...], text: str) -> bool:
    return any(is_word(joint.join(items), text) for joint in JOINTS) or is_word(
        ", ".join(items[:-1]) + " and " + items[-1], text
    )
