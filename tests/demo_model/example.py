"""One exchange of the demo's language, and the split that keeps what is measured apart from what is trained.

A task is a function ``(rng, split) -> Example``. Two things are kept out of training: slot values (a number pair, a word, an
e-mail address), decided by a hash of the value, and whole phrasings, decided by the list in which they are written down.
"""

from __future__ import annotations

import enum
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

# One value in ten is kept for measuring.
HELD_OUT_ONE_IN = 10


class Split(enum.Enum):
    """Where an example's slots and phrasing come from. The last kind holds out both at once, so it is the hardest."""

    TRAINING = "training"
    HELD_OUT_SLOTS = "held_out_slots"
    HELD_OUT_PARAPHRASES = "held_out_paraphrases"

    @property
    def slots_are_held_out(self) -> bool:
        return self is not Split.TRAINING

    @property
    def phrasing_is_held_out(self) -> bool:
        return self is Split.HELD_OUT_PARAPHRASES

    def allows(self, value: str) -> bool:
        """Whether a slot value belongs to this side of the split."""
        return (zlib.crc32(value.encode()) % HELD_OUT_ONE_IN == 0) == self.slots_are_held_out


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its answer. ``phrasing`` is the template that made the prompt; ``accepted`` is a regular expression of all
    right answers where there are several (stories), and empty where only ``answer`` is right."""

    task: str
    prompt: str
    answer: str
    phrasing: str
    accepted: str = ""


Task = Callable[[random.Random, Split], Example]
