"""Training rows: complete turns packed into rows of fixed length. They depend only on the seed and the step, so that a
resumed run uses exactly the same data.

In every second row the positions jump between turns. The model is thus trained on distances up to its context length
although rows are shorter, and learns to ignore earlier turns at any distance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from nearfar.compiler.runtime.errors import RequestError

from .corpus import NEAR, Corpus, training_examples
from .example import Example
from .tokenizer import BOS, PAD, encode_turn

# The target of a token without a loss: prompts, <bos> and padding (the default of torch's cross entropy).
NO_TARGET = -100


@dataclass(frozen=True, slots=True)
class Rows:
    """The data of one step, each (rows, row_tokens) int64: inputs, the next token of each (or NO_TARGET), and
    positions.
    """

    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]


def training_rows(
    tokenizer: Tokenizer, seed: int, step: int, rows: int, row_tokens: int, context_length: int, corpus: Corpus = NEAR
) -> Rows:
    """The rows of one step. Raises RequestError for an example that does not fit into a row."""
    rng = random.Random(f"{seed}/{step}")
    packed = pack_rows(tokenizer, training_examples(rng, corpus), rng, rows, row_tokens, context_length)
    return Rows(*(np.array(part, np.int64) for part in zip(*packed, strict=True)))


def pack_rows(
    tokenizer: Tokenizer,
    examples: Iterator[Example],
    rng: random.Random,
    rows: int,
    row_tokens: int,
    context_length: int,
) -> list[tuple[list[int], list[int], list[int]]]:
    """Fill the rows with turns in order; a turn that does not fit opens the next row. -> (tokens, targets, positions)
    of each row.
    """
    packed = []
    turn, prompt_length = _next_turn(tokenizer, examples, row_tokens)
    for row in range(rows):
        tokens, targets, starts = [BOS], [NO_TARGET], []
        while len(tokens) + len(turn) <= row_tokens:
            starts.append(len(tokens))
            tokens += turn
            targets += [NO_TARGET] * prompt_length + turn[prompt_length:]
            turn, prompt_length = _next_turn(tokenizer, examples, row_tokens)
        positions = _positions(rng, starts if row % 2 else [], row_tokens, context_length)
        padding = row_tokens - len(tokens)
        # The target of a token is its successor.
        packed.append((tokens + [PAD] * padding, [*targets[1:], *[NO_TARGET] * (padding + 1)], positions))
    return packed


def _next_turn(tokenizer: Tokenizer, examples: Iterator[Example], row_tokens: int) -> tuple[list[int], int]:
    example = next(examples)
    turn, prompt_length = encode_turn(tokenizer, example)
    if len(turn) + 1 > row_tokens:
        raise RequestError(
            f"an example of task {example.task} has {len(turn)} tokens, more than a row of {row_tokens} holds beside "
            f"<bos>: "
            f"{example.prompt!r}; make rows longer or the example shorter"
        )
    return turn, prompt_length


def _positions(rng: random.Random, starts: list[int], row_tokens: int, context_length: int) -> list[int]:
    """Positions 0, 1, 2, ... with jumps at the given starts, whose sum stays within the context length."""
    jumps = dict.fromkeys(range(row_tokens), 0)
    left = context_length - row_tokens
    for start in rng.sample(starts, min(len(starts), 2)):
        jumps[start] = rng.randint(0, left)
        left -= jumps[start]
    positions, skipped = [], 0
    for index in range(row_tokens):
        skipped += jumps[index]
        positions.append(index + skipped)
    return positions
