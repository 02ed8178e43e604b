"""A model that is a hash: the next token follows from all tokens before it, so a page that holds the wrong token gives
a wrong answer.

tests/conformance/scheduler.json is made with it.
"""

from __future__ import annotations

from collections.abc import Sequence

VOCAB = 16
STOP = 0


def next_token(tokens: Sequence[int]) -> int:
    return fold(0, tokens) % VOCAB


def fold(value: int, tokens: Sequence[int]) -> int:
    """The hash of the tokens whose hash is ``value``, and of those that follow."""
    for token in tokens:
        value = (value * 31 + token + 1) % 65_521
    return value


def answer_of(prompt: Sequence[int], max_tokens: int, context: int) -> tuple[list[int], str]:
    """The answer to a request that runs alone, and its finish reason."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and len(tokens) <= context:
        token = next_token(tokens)
        if token == STOP:
            return tokens[len(prompt) :], "stop"
        tokens.append(token)
    return tokens[len(prompt) :], "length"
