"""The router's demo traffic: prompts that users of the demo models might send, with their right answers.

``python -m demo_model.traffic fit|eval [--count N] [--seed N] -o FILE`` writes a file for ``nearfar router log
--prompts``.

The mix is an assumption: two thirds of the prompts are tasks that the near model knows, in the shares of its training;
one third are tasks that only the far model knows, in the shares of its own. A fifth of all prompts use phrasings and
values on which neither model was trained.

Both sides are graded alike: refusals and small talk count as right in the words of either model, and so does the right
result of a calculation that the near model was trained to refuse.

A predictor is fitted and evaluated on different prompts: a hash of the prompt assigns it to one part. In known
phrasings, moreover, the values (numbers, words, addresses) of ``fit`` are those of the models' training, and the values
of ``eval`` are held out of both. The group of a prompt is its phrasing, so that a fit can hold out whole phrasings.

handwritten.jsonl holds prompts that no template made: 312 about the tasks in the words of users, and 73 about anything
else. No predictor is fitted on them.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from nearfar.compiler.runtime.errors import NearfarError, RequestError
from nearfar.server_fallback.router.fitting.prompts import Prompt

from .corpus import HARD, NEAR
from .example import Example, Split
from .talk import FAR_ANSWERS, FAR_TOO_HARD_ANSWER, TOO_HARD_ANSWER

Part = Literal["fit", "eval"]
HARD_SHARE = 1 / 3
NEW_PHRASING_SHARE = 1 / 5
KNOWN_PHRASINGS: MappingProxyType[Part, Split] = MappingProxyType({"fit": Split.TRAINING, "eval": Split.HELD_OUT_SLOTS})
EVAL_ONE_IN = 3
# The generator draws this many examples per requested prompt before it gives up.
DRAWS = 50
HANDWRITTEN = Path(__file__).parent / "handwritten.jsonl"
WHOLE_CALCULATION = re.compile(r"(?<![0-9.])([0-9]+) ?(\+|-|plus|minus) ?([0-9]+)(?![0-9]|\.[0-9])")


def demo_prompts(part: Part, count: int, seed: int = 0) -> list[Prompt]:
    """Return ``count`` different prompts, decided by the arguments alone. Raises RequestError if the tasks have
    fewer.
    """
    found: dict[str, Prompt] = {}
    for _, example in zip(range(DRAWS * count), examples(part, random.Random(f"{seed}/{part}")), strict=False):
        if part_of(example.prompt) == part:
            found.setdefault(example.prompt, as_prompt(example))
        if len(found) == count:
            return list(found.values())
    raise RequestError(
        f"the demo's tasks gave {len(found)} different prompts in {DRAWS * count} draws; request fewer than {count}"
    )


def part_of(prompt: str) -> Part:
    return "eval" if zlib.crc32(prompt.encode()) % EVAL_ONE_IN == 0 else "fit"


def examples(part: Part, rng: random.Random) -> Iterator[Example]:
    """Yield examples without end, in the shares above."""
    while True:
        corpus = HARD if rng.random() < HARD_SHARE else NEAR
        split = Split.HELD_OUT_PARAPHRASES if rng.random() < NEW_PHRASING_SHARE else KNOWN_PHRASINGS[part]
        task = rng.choices([task for task, _ in corpus.values()], [share for _, share in corpus.values()])[0]
        yield task(rng, split)


def as_prompt(example: Example) -> Prompt:
    group = f"{example.task}: {example.phrasing}"
    answers = right_answers(example)
    if example.accepted or len(answers) > 1:
        accepted = example.accepted or "|".join(map(re.escape, answers))
        return Prompt(prompt=example.prompt, accepted=accepted, task=example.task, group=group)
    return Prompt(prompt=example.prompt, expected=example.answer, task=example.task, group=group)


def right_answers(example: Example) -> tuple[str, ...]:
    """The answers for which a side was trained. If a side refuses a sum or a difference, the result is also right."""
    if example.answer in FAR_ANSWERS:
        return example.answer, FAR_ANSWERS[example.answer]
    if example.answer == TOO_HARD_ANSWER:
        return TOO_HARD_ANSWER, FAR_TOO_HARD_ANSWER, *_results(example.prompt)
    return (example.answer,)


def _results(prompt: str) -> Iterator[str]:
    """The result of a whole sum or difference in a prompt, in the forms that the models are trained to write."""
    found = WHOLE_CALCULATION.search(prompt)
    if found is None:
        return
    a, b = int(found[1]), int(found[3])
    if found[2] in ("+", "plus"):
        yield f"{a} + {b} = {a + b}"
        yield f"{a} + {b} -> {str(a + b)[::-1]} -> {a + b}"
    else:
        yield f"{a} - {b} = {a - b}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m demo_model.traffic", description="Write prompts for 'nearfar router log'."
    )
    parser.add_argument("part", choices=tuple(KNOWN_PHRASINGS))
    parser.add_argument("--count", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON lines")
    options = parser.parse_args(arguments)
    try:
        prompts = demo_prompts(options.part, options.count, options.seed)
    except NearfarError as error:
        sys.exit(f"{error.code}: {error}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(
        "".join(prompt.model_dump_json(exclude_none=True) + "\n" for prompt in prompts), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
