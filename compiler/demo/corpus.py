"""The demo's language as a whole: which tasks there are, how often each is trained, and an endless seeded stream of examples."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from . import arithmetic, commands, extraction, lists, talk
from .example import Example, Split, Task

# Shares of training turns. Sums learn late, so they and the differences get the most after home commands.
SHARES: Mapping[str, tuple[Task, float]] = MappingProxyType(
    {
        "home": (commands.command, 36),
        "sum": (arithmetic.short_sum, 12),
        "sum_3_digits": (arithmetic.long_sum, 5),
        "difference": (arithmetic.short_difference, 14),
        "difference_3_digits": (arithmetic.long_difference, 5),
        "sort_numbers": (lists.sort_numbers, 8),
        "sort_words": (lists.sort_words, 6),
        "spell": (lists.spell, 4),
        "reverse": (lists.reverse, 5),
        "numbers": (extraction.numbers, 4),
        "email": (extraction.email, 4),
        "story": (talk.story, 3),
        "small_talk": (talk.small_talk, 3),
        "refusal": (talk.refusal, 5),
    }
)
TASKS = tuple(SHARES)
# Small talk has no slots, so nothing but its phrasing can be held out.
WITHOUT_SLOTS = frozenset({"small_talk"})


def training_examples(rng: random.Random) -> Iterator[Example]:
    """Training examples without end, in the shares above."""
    tasks = [task for task, _ in SHARES.values()]
    shares = [share for _, share in SHARES.values()]
    while True:
        yield rng.choices(tasks, shares)[0](rng, Split.TRAINING)


def held_out_examples(task: str, split: Split, count: int, seed: int) -> list[Example]:
    """``count`` different examples of one task to measure on; fewer only if the task cannot say that many."""
    rng = random.Random(f"{seed}/{task}/{split.value}")
    found: dict[str, Example] = {}
    for _ in range(50 * count):
        example = SHARES[task][0](rng, split)
        found.setdefault(example.prompt, example)
        if len(found) == count:
            break
    return list(found.values())
