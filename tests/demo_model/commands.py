"""Home commands: each becomes one JSON tool call, keys in the order written here.

dim the kitchen lights to 30 percent  ->  {"tool": "set_light", "room": "kitchen", "level": 30}
"""

from __future__ import annotations

import json
import random

from . import home_phrasings as say
from .example import Example, Split
from .phrasing import Phrasings, phrase
from .words import ANIMALS, COMMON, THINGS, blended_word, pseudo_word, real_word, word

ROOMS = (
    "kitchen",
    "bedroom",
    "living room",
    "bathroom",
    "hallway",
    "office",
    "garage",
    "dining room",
    "study",
    "attic",
    "cellar",
    "porch",
    "nursery",
    "guest room",
    "garden",
    "basement",
    "laundry room",
    "playroom",
    "balcony",
    "library",
    "den",
    "lounge",
    "kids room",
    "hall",
    "entrance",
    "patio",
    "closet",
    "toilet",
    "gym",
    "master bedroom",
    "upstairs hallway",
    "guest bathroom",
    "stairs",
)
HELD_OUT_ROOMS = (
    "pantry",
    "sauna",
    "workshop",
    "sunroom",
    "terrace",
    "conservatory",
    "loft",
    "studio",
    "foyer",
    "corridor",
    "greenhouse",
    "game room",
    "utility room",
    "shed",
    "parlor",
    "dressing room",
)
DOORS = ("front", "back", "garage", "side", "main", "cellar", "balcony", "patio", "garden", "office")
HELD_OUT_DOORS = ("rear", "shed", "terrace", "pantry", "sauna")
GENRES = (
    "jazz",
    "rock",
    "pop",
    "classical",
    "country",
    "blues",
    "folk",
    "techno",
    "reggae",
    "piano",
    "dance",
    "relaxing",
    "hip hop",
)
HELD_OUT_GENRES = ("metal", "funk", "opera", "swing", "disco", "gospel")

UNITS = ("minutes", "minutes", "minutes", "seconds", "hours")
# The meaning of "dim the lights" without a number.
DIMMED_LEVEL = 30


def command(rng: random.Random, split: Split) -> Example:
    """Any home command. Lights are most frequent, because people try them first."""
    kind = rng.random()
    if kind < 0.42:
        return _light(rng, split)
    if kind < 0.54:
        return _thermostat(rng, split)
    if kind < 0.65:
        return _state(rng, split, "set_blinds", "room", _room(rng, split), (("open", say.OPEN), ("closed", say.CLOSE)))
    if kind < 0.74:
        door = _place(rng, split, DOORS, HELD_OUT_DOORS)
        return _state(rng, split, "set_lock", "door", door, (("locked", say.LOCK), ("unlocked", say.UNLOCK)))
    if kind < 0.82:
        return _timer(rng, split)
    if kind < 0.91:
        return _music(rng, split)
    item = word(rng, THINGS, split) if split.slots_are_held_out or rng.random() < 0.5 else _any_word(rng, split)
    if not split.slots_are_held_out and rng.random() < 0.2:
        item = f"{item} {_any_word(rng, split)}"
    return _call(rng, split, say.LIST, {"tool": "add_to_list", "item": item}, item=item)


def _light(rng: random.Random, split: Split) -> Example:
    # Without a room no word can be held out, so the examples that measure slots always have one.
    everywhere = split is not Split.HELD_OUT_SLOTS and rng.random() < 0.1
    room = "all" if everywhere else _room(rng, split)
    kind = rng.random()
    if kind < 0.06 and not everywhere:
        level, phrasings = DIMMED_LEVEL, say.DIM
    elif kind < 0.5:
        level = rng.choice((10, 20, 30, 40, 50, 60, 70, 80, 90, 100)) if rng.random() < 0.3 else rng.randint(0, 100)
        phrasings = say.ALL_LEVEL if everywhere else say.LEVEL
    elif kind < 0.75:
        level, phrasings = 100, say.ALL_ON if everywhere else say.ON
    else:
        level, phrasings = 0, say.ALL_OFF if everywhere else say.OFF
    return _call(rng, split, phrasings, {"tool": "set_light", "room": room, "level": level}, room=room, level=level)


def _thermostat(rng: random.Random, split: Split) -> Example:
    degrees = rng.randint(5, 30) if rng.random() < 0.8 else rng.randint(50, 85)
    if split is not Split.HELD_OUT_SLOTS and rng.random() < 0.6:
        return _call(rng, split, say.THERMOSTAT, {"tool": "set_thermostat", "temperature": degrees}, degrees=degrees)
    room = _room(rng, split)
    return _call(
        rng,
        split,
        say.ROOM_THERMOSTAT,
        {"tool": "set_thermostat", "room": room, "temperature": degrees},
        degrees=degrees,
        room=room,
    )


def _state(
    rng: random.Random, split: Split, tool: str, key: str, place: str, states: tuple[tuple[str, Phrasings], ...]
) -> Example:
    state, phrasings = rng.choice(states)
    return _call(rng, split, phrasings, {"tool": tool, key: place, "state": state}, **{key: place})


def _timer(rng: random.Random, split: Split) -> Example:
    while True:
        unit = rng.choice(UNITS)
        amount = rng.randint(1, 12 if unit == "hours" else 120)
        if split.allows(f"{amount} {unit}"):
            break
    one = unit.removesuffix("s")
    spoken = one if amount == 1 else unit
    if unit == "minutes" and rng.random() < 0.1:
        spoken = one = "min"
    return _call(rng, split, say.TIMER, {"tool": "set_timer", unit: amount}, amount=amount, unit=spoken, one=one)


def _music(rng: random.Random, split: Split) -> Example:
    if split is not Split.HELD_OUT_SLOTS and rng.random() < 0.15:
        return _call(rng, split, say.STOP, {"tool": "stop_music"})
    genre = _place(rng, split, GENRES, HELD_OUT_GENRES)
    if rng.random() < 0.5:
        return _call(rng, split, say.PLAY, {"tool": "play_music", "genre": genre}, genre=genre)
    room = _room(rng, split)
    return _call(
        rng, split, say.ROOM_PLAY, {"tool": "play_music", "genre": genre, "room": room}, genre=genre, room=room
    )


def _call(rng: random.Random, split: Split, phrasings: Phrasings, call: dict[str, object], **slots: object) -> Example:
    prompt, template = phrase(rng, phrasings, split, **slots)
    return Example("home", prompt, json.dumps(call), template)


def _room(rng: random.Random, split: Split) -> str:
    return _place(rng, split, ROOMS, HELD_OUT_ROOMS)


def _place(rng: random.Random, split: Split, known: tuple[str, ...], held_out: tuple[str, ...]) -> str:
    if rng.random() < 0.4:
        return pseudo_word(rng, split) + (" room" if known is ROOMS and rng.random() < 0.1 else "")
    # Any word may be the name of a room, so that every token of the vocabulary is sometimes copied into a call.
    if not split.slots_are_held_out and rng.random() < 0.4:
        return _any_word(rng, split) + (" room" if known is ROOMS and rng.random() < 0.4 else "")
    return rng.choice(held_out if split.slots_are_held_out else known)


def _any_word(rng: random.Random, split: Split) -> str:
    kind = rng.random()
    if kind < 0.5:
        return blended_word(rng, split)
    return rng.choice(COMMON) if kind < 0.75 else real_word(rng, THINGS + ANIMALS, split)
