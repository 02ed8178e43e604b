"""Demo traffic: prompts that users of the demo models might send, and their right answers; a function of part and seed alone.

What is assumed: two thirds of the prompts are tasks that the near model knows, in the shares of its training; one third are tasks that
only the far model knows, in the shares of its own. A fifth of all is in phrasings that neither model was trained on, with values of which
the same is true.

A predictor is fitted on other prompts than it is measured on: a hash of the prompt says which part it belongs to. And in phrasings that are
known, the fit's values (numbers, words, addresses) are those of the models' training, the evaluation's are held out of both.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

from nearfar.compiler.demo.corpus import HARD, NEAR
from nearfar.compiler.demo.example import Example, Split
from nearfar.compiler.errors import RequestError

from .prompts import Prompt

Part = Literal["fit", "eval"]
HARD_SHARE = 1 / 3
NEW_PHRASING_SHARE = 1 / 5
KNOWN_PHRASINGS = MappingProxyType({"fit": Split.TRAINING, "eval": Split.HELD_OUT_SLOTS})
EVAL_ONE_IN = 3
# So many draws for each prompt that is wanted; past them the tasks have no more to say.
DRAWS = 50


def demo_prompts(part: Part, count: int, seed: int = 0) -> list[Prompt]:
    """``count`` different prompts. Raises RequestError for more than the tasks can say."""
    found: dict[str, Prompt] = {}
    for _, example in zip(range(DRAWS * count), examples(part, random.Random(f"{seed}/{part}")), strict=False):
        if part_of(example.prompt) == part:
            found.setdefault(example.prompt, as_prompt(example))
        if len(found) == count:
            return list(found.values())
    raise RequestError(f"the demo's tasks gave {len(found)} different prompts in {DRAWS * count} draws; ask for fewer than {count}")


def part_of(prompt: str) -> Part:
    return "eval" if zlib.crc32(prompt.encode()) % EVAL_ONE_IN == 0 else "fit"


def examples(part: Part, rng: random.Random) -> Iterator[Example]:
    """Without end, in the shares above."""
    while True:
        corpus = HARD if rng.random() < HARD_SHARE else NEAR
        split = Split.HELD_OUT_PARAPHRASES if rng.random() < NEW_PHRASING_SHARE else KNOWN_PHRASINGS[part]
        task = rng.choices([task for task, _ in corpus.values()], [share for _, share in corpus.values()])[0]
        yield task(rng, split)


def as_prompt(example: Example) -> Prompt:
    if example.accepted:
        return Prompt(prompt=example.prompt, accepted=example.accepted, task=example.task)
    return Prompt(prompt=example.prompt, expected=example.answer, task=example.task)
