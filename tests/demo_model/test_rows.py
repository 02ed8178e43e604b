"""Packing: rows depend only on seed and step, hold complete turns, and have targets only for answers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from tokenizers import Tokenizer

from demo_model.corpus import CORPORA, training_examples
from demo_model.example import Example
from demo_model.rows import NO_TARGET, pack_rows, training_rows
from demo_model.tokenizer import ASSISTANT, BOS, END, PAD, USER, encode_turn
from demo_model.train import PLANS
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.runtime.errors import RequestError


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def test_two_runs_with_one_seed_and_step_see_the_same_rows(tokenizer: Tokenizer) -> None:
    first, second = (training_rows(tokenizer, 1, 17, 8, 192, 512) for _ in range(2))
    for name in ("tokens", "targets", "positions"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize(("seed", "step"), [(1, 18), (2, 17)])
def test_another_seed_or_step_sees_other_rows(tokenizer: Tokenizer, seed: int, step: int) -> None:
    rows = training_rows(tokenizer, 1, 17, 8, 192, 512)
    assert not np.array_equal(rows.tokens, training_rows(tokenizer, seed, step, 8, 192, 512).tokens)


def test_targets_are_the_answers_and_their_ends_and_nothing_else(tokenizer: Tokenizer) -> None:
    rows = training_rows(tokenizer, 1, 3, 4, 192, 512)
    for tokens, targets in zip(rows.tokens, rows.targets, strict=True):
        assert tokens[0] == BOS
        expected = []
        for index in range(len(tokens) - 1):
            written = tokens[: index + 1]
            answering = np.flatnonzero(written == ASSISTANT).max(initial=-1) > np.flatnonzero(
                (written == USER) | (written == END)
            )[-1:].max(initial=-1)
            expected.append(tokens[index + 1] if answering else NO_TARGET)
        np.testing.assert_array_equal(targets[:-1], expected)
        assert targets[-1] == NO_TARGET


def test_a_row_holds_complete_turns_and_then_padding(tokenizer: Tokenizer) -> None:
    rows = training_rows(tokenizer, 1, 3, 8, 192, 512)
    for tokens in rows.tokens:
        filled = tokens[tokens != PAD]
        assert filled[-1] == END
        assert (filled == USER).sum() == (filled == ASSISTANT).sum() == (filled == END).sum() / 2
        assert (tokens[len(filled) :] == PAD).all()


def test_positions_rise_within_the_context_and_jump_only_before_a_turn(tokenizer: Tokenizer) -> None:
    rows = training_rows(tokenizer, 1, 5, 20, 192, 512)
    steps = np.diff(rows.positions, axis=1)
    assert (steps >= 1).all()
    assert rows.positions.max() < 512
    assert (rows.tokens[:, 1:][steps > 1] == USER).all()
    assert (steps[1::2] > 1).any()
    assert (steps[::2] == 1).all()


def test_an_example_longer_than_a_row_is_refused(tokenizer: Tokenizer) -> None:
    def endless() -> Iterator[Example]:
        while True:
            yield Example("spell", "spell " + "a b " * 40, "a", "spell")

    with pytest.raises(RequestError, match=r"spell has \d+ tokens, more than a row of 32"):
        pack_rows(tokenizer, endless(), random.Random(1), 2, 32, 64)


@pytest.mark.parametrize("name", CORPORA)
def test_the_longest_of_many_examples_fits_into_the_row_of_its_plan(tokenizer: Tokenizer, name: str) -> None:
    examples = training_examples(random.Random("longest"), CORPORA[name])
    assert max(len(encode_turn(tokenizer, next(examples))[0]) for _ in range(8_000)) < PLANS[name].row_tokens - 1
