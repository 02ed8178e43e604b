"""One example of the demo corpus, and the split that separates evaluation from training.

A task is a function ``(rng, split) -> Example``. Two kinds of data are held out of training: slot values (a number
pair, a word, an e-mail address), chosen by a hash of the value, and entire phrasings, chosen by the list that contains
them.
"""

from __future__ import annotations

import enum
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

# One value in ten is held out for evaluation.
HELD_OUT_ONE_IN = 10


class Split(enum.Enum):
    """The source of an example's slots and phrasing. The last kind holds out both, so it is the hardest."""

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
    """A prompt and its answer. ``phrasing`` is the template that made the prompt. ``accepted`` is a regular expression
    of all correct answers if there are several (stories), and empty if only ``answer`` is correct.
    """

    task: str
    prompt: str
    answer: str
    phrasing: str
    accepted: str = ""


Task = Callable[[random.Random, Split], Example]
