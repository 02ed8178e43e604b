"""The corpora of the demo models: the tasks of each model with their shares, and an endless seeded stream of
examples.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from . import arithmetic, command_lists, commands, extraction, lists, long_arithmetic, passages, talk
from .example import Example, Split, Task

# Each task by name, with its share of the training turns.
Corpus = Mapping[str, tuple[Task, float]]

# Models learn sums late, so sums and differences have the largest shares after home commands.
NEAR: Corpus = MappingProxyType(
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
# First the tasks of the near model, then the others.
FAR: Corpus = MappingProxyType(
    {
        "home": (commands.command, 12),
        "sum": (arithmetic.short_sum, 4),
        "sum_3_digits": (arithmetic.long_sum, 5),
        "difference": (arithmetic.short_difference, 4),
        "difference_3_digits": (arithmetic.long_difference, 6),
        "sort_numbers": (lists.sort_numbers, 3),
        "sort_words": (lists.sort_words, 5),
        "spell": (lists.spell, 3),
        "reverse": (lists.reverse, 4),
        "numbers": (extraction.numbers, 2),
        "email": (extraction.email, 3),
        "story": (talk.story, 2),
        "small_talk": (talk.far_small_talk, 3),
        "refusal": (talk.far_refusal, 4),
        "command_list": (command_lists.command_list, 12),
        "sum_of_several": (long_arithmetic.sum_of_several, 12),
        "sum_5_digits": (long_arithmetic.sum_5_digits, 9),
        "story_problem": (long_arithmetic.story_problem, 11),
        "reading": (passages.reading, 14),
        "sort_many_numbers": (lists.sort_many_numbers, 8),
    }
)
CORPORA: Mapping[str, Corpus] = MappingProxyType({"near": NEAR, "far": FAR})
# The tasks of the far model alone.
HARD: Corpus = MappingProxyType({task: FAR[task] for task in FAR if task not in NEAR})
# Small talk has no slots, so nothing but its phrasing can be held out.
WITHOUT_SLOTS = frozenset({"small_talk"})


def training_examples(rng: random.Random, corpus: Corpus = NEAR) -> Iterator[Example]:
    """Yield training examples without end, in the shares above."""
    tasks = [task for task, _ in corpus.values()]
    shares = [share for _, share in corpus.values()]
    while True:
        yield rng.choices(tasks, shares)[0](rng, Split.TRAINING)


def held_out_examples(task: str, split: Split, count: int, seed: int, corpus: Corpus = NEAR) -> list[Example]:
    """Return ``count`` different examples of one task for evaluation, or fewer if the task has fewer."""
    rng = random.Random(f"{seed}/{task}/{split.value}")
    found: dict[str, Example] = {}
    for _ in range(50 * count):
        example = corpus[task][0](rng, split)
        found.setdefault(example.prompt, example)
        if len(found) == count:
            break
    return list(found.values())
