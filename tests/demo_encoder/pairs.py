"""Pairs of texts that belong together: a query and the text that it should find.

Pairs with the same label must not be negatives of each other: the same passage, or prompts of the same task.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from demo_model.corpus import FAR
from demo_model.example import Split
from demo_model.passages import reading

from .lexicon import groups, in_other_words
from .questions import passage_of, questions
from .repository_text import Described, Passage, described_names, markdown_passages, sentences, spoken

# The reading task's questions stand among the sentences of a text.
QUESTION = re.compile(r"[^.?:]*\?")
# Prompts of the demo models' tasks, and facts about people, that are generated for training.
GENERATED = 6000
# Batches of these; the others are about the repository. In a mixed batch, negatives would be too easy.
GENERATED_SHARE = 0.1
# The share of a query's words that are replaced by others of the lexicon.
OTHER_WORDS = (0.0, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class Pair:
    """``dropped``: the share of the query's tokens that training leaves out."""

    label: str
    query: str
    text: str
    dropped: float = 0.0


@dataclass(frozen=True)
class Sources:
    """Everything that pairs are drawn from."""

    passages: Sequence[Passage]
    described: Sequence[Described]
    # (question, index of its passage)
    asked: Sequence[tuple[str, int]]
    # Two prompts of one task, or a question about a person and the text that answers it.
    generated: Sequence[Pair]

    def written(self) -> list[str]:
        """The texts of the repository."""
        return [
            *(titled(passage, passage.text) for passage in self.passages),
            *(f"{spoken(one.name)} {one.text}" for one in self.described),
            *(question for question, _ in self.asked),
            *(" ".join(group) for group in groups()),
        ]

    def texts(self) -> list[str]:
        """All texts, for the tokenizer. The lexicon counts twice, so that each of its words is one token."""
        generated = [f"{pair.query} {pair.text}" for pair in self.generated]
        return [*self.written(), *(" ".join(group) for group in groups()), *generated]


def read_sources(rng: random.Random) -> Sources:
    passages = markdown_passages()
    places = [(passage.document, passage.text) for passage in passages]
    found = [(question.text, passage_of(question, places)) for question in questions("training")]
    asked = [(text, place) for text, place in found if place is not None]
    generated = [_task(rng) if index % 2 else _fact(rng) for index in range(GENERATED)]
    return Sources(passages, list(described_names()), asked, generated)


def draw_batch(sources: Sources, rng: random.Random, count: int) -> list[Pair]:
    if rng.random() < GENERATED_SHARE:
        return rng.sample(sources.generated, count)
    return [make(sources, rng) for make in rng.choices(list(SHARES), list(SHARES.values()), k=count)]


def titled(passage: Passage, text: str) -> str:
    """With the headings, as the browser's index embeds passages."""
    return "\n".join([" > ".join(passage.headings), text]) if passage.headings else text


def _passage(sources: Sources, rng: random.Random) -> Pair:
    """A sentence of a passage, and the rest of the passage (the inverse cloze task of Lee et al. 2019). The sentence
    sometimes stays in the passage, so that equal words count.
    """
    index = rng.randrange(len(sources.passages))
    passage = sources.passages[index]
    parts = sentences(passage.text)
    if len(parts) < 2:
        return Pair(f"passage {index}", _reworded(passage.text, rng), _maybe_titled(passage, passage.text, rng), 0.6)
    chosen = rng.randrange(len(parts))
    rest = parts if rng.random() < 0.4 else parts[:chosen] + parts[chosen + 1 :]
    return Pair(f"passage {index}", _reworded(parts[chosen], rng), _maybe_titled(passage, " ".join(rest), rng), 0.4)


def _section(sources: Sources, rng: random.Random) -> Pair:
    """The headings of a passage, and the passage."""
    index = rng.randrange(len(sources.passages))
    passage = sources.passages[index]
    heading = " ".join(passage.headings[-2:]) or passage.document
    return Pair(f"passage {index}", _reworded(heading, rng), passage.text)


def _question(sources: Sources, rng: random.Random) -> Pair:
    question, index = rng.choice(sources.asked)
    passage = sources.passages[index]
    text = _maybe_titled(passage, passage.text, rng)
    return Pair(f"passage {index}", _reworded(question, rng), text, rng.choice((0.0, 0.2)))


def _described(sources: Sources, rng: random.Random) -> Pair:
    """A name in the code or a sentence of its docstring, and the rest of the docstring."""
    index = rng.randrange(len(sources.described))
    one = sources.described[index]
    name, parts = spoken(one.name), sentences(one.text)
    if len(parts) > 1 and rng.random() < 0.6:
        chosen = rng.randrange(len(parts))
        rest = " ".join([name, *parts[:chosen], *parts[chosen + 1 :]])
        return Pair(f"described {index}", _reworded(parts[chosen], rng), rest, 0.4)
    return Pair(f"described {index}", _reworded(name, rng), one.text)


SHARES: dict[Callable[[Sources, random.Random], Pair], float] = {
    _passage: 0.35, _section: 0.1, _question: 0.25, _described: 0.3,
}  # fmt: skip


def _reworded(query: str, rng: random.Random) -> str:
    return in_other_words(query, rng.choice(OTHER_WORDS), rng)


def _maybe_titled(passage: Passage, text: str, rng: random.Random) -> str:
    return titled(passage, text) if rng.random() < 0.67 else text


def _task(rng: random.Random) -> Pair:
    task = rng.choice(list(FAR))
    first, second = (FAR[task][0](rng, Split.TRAINING).prompt for _ in range(2))
    return Pair(f"task {task}", first, second)


def _fact(rng: random.Random) -> Pair:
    example = reading(rng, Split.TRAINING)
    question = QUESTION.search(example.prompt)
    if question is None:
        raise AssertionError(f"no question in {example.prompt!r}")
    text = example.prompt.replace(question[0], " ").strip(" ?:")
    return Pair(f"fact {example.answer}", question[0].strip(), text)
