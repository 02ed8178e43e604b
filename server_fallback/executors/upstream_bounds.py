"""Cuts an upstream's answer at the limits of the request.

The server may not stop at these limits. Choices that were not requested, text after a choice's end and tokens beyond
``max_tokens`` are removed. Tokens are counted exactly if they are listed with their log-probabilities. Otherwise a
piece of text counts as one token, which is the least that it can be; servers of the dialects openai and sglang may send
a token in pieces, which are not counted. Whatever a server reports about its tokens, text with more words or characters
than ``max_tokens`` tokens can hold is cut too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..schema.chat import ChatCompletionRequest
from ..schema.common import GenerationRequest
from ..schema.completions import CompletionRequest
from .dialect import Dialect

# Tokenizers split text at spaces, except a few whose tokens hold up to 4 words.
WORDS_PER_TOKEN = 4
# The longest tokens of published vocabularies are runs of spaces.
CHARACTERS_PER_TOKEN = 256
WORD_START = re.compile(r"[ \n\t][^ \n\t]")


@dataclass(frozen=True, slots=True)
class Bounds:
    """``tokens`` is the limit of each choice, None for no limit that can be counted."""

    choices: int = 1
    tokens: int | None = None
    counts_pieces: bool = False


def bounds_of(request: GenerationRequest, dialect: Dialect) -> Bounds:
    # SGLang sends the reasoning and the content of a token apart.
    choices, counts_pieces = request.n or 1, dialect in ("vllm", "nearfar")
    if isinstance(request, ChatCompletionRequest):
        limits = [limit for limit in (request.max_tokens, request.max_completion_tokens) if limit is not None]
        return Bounds(choices, min(limits, default=None), counts_pieces)
    assert isinstance(request, CompletionRequest)
    prompt = request.prompt
    several = isinstance(prompt, list) and not all(isinstance(part, int) for part in prompt)
    # An echo is not part of the answer.
    return Bounds(
        choices * len(prompt) if several else choices, None if request.echo else request.max_tokens, counts_pieces
    )


class BoundedChoices:
    """The choices of one answer."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._tokens = Counter[int]()
        self._texts = defaultdict[int, TextLength](TextLength)
        self._ended = set[int]()
        # One piece beyond the limit, with the end if that came: it may be text of earlier tokens that the server had
        # held back.
        self._late: dict[int, list[dict[str, Any]]] = {}

    @property
    def ended(self) -> bool:
        return len(self._ended) == self._bounds.choices

    @property
    def is_cut_off(self) -> bool:
        """Whether a choice has begun, and has not ended."""
        return not self._texts.keys() <= self._ended

    def bounded(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """Return the part of the choice that belongs to the answer; None if no part does, or if this is not known
        yet.
        """
        index, limit = choice["index"], self._bounds.tokens
        if not 0 <= index < self._bounds.choices or index in self._ended:
            return None
        listed = listed_tokens(choice)
        size = listed or int(self._bounds.counts_pieces and says_text(choice))
        self._tokens[index] += size
        is_over = bool(size) and limit is not None and self._tokens[index] > limit
        self._texts[index] = self._texts[index].plus(text_of(choice))
        is_too_long = limit is not None and self._texts[index].exceeds(limit)
        if is_too_long or (is_over and (listed or index in self._late)):
            self._late.pop(index, None)
            self._ended.add(index)
            return cut(index)
        if choice["finish_reason"] is not None:
            self._ended.add(index)
        if index in self._late or is_over:
            self._late.setdefault(index, []).append(choice)
            return None
        return choice

    def admits(self, index: int, pieces: int, text: str) -> bool:
        """Count ``pieces`` of text, without an end, if all of them belong to the answer. Otherwise, or if this is not
        certain, count nothing: then `bounded` must check each piece.
        """
        if not 0 <= index < self._bounds.choices or index in self._ended or index in self._late:
            return False
        limit = self._bounds.tokens
        if limit is not None:
            tokens = self._tokens[index] + (pieces if self._bounds.counts_pieces else 0)
            length = self._texts[index].plus(text)
            if tokens > limit or length.exceeds(limit):
                return False
            self._tokens[index], self._texts[index] = tokens, length
        return True

    def rest(self, completion_tokens: int | None) -> Iterator[dict[str, Any]]:
        """Return, at the end, the rest of the answer, from the server's count of its tokens (None if it sent no
        count).
        """
        limit = self._bounds.tokens
        is_complete = (
            completion_tokens is not None and limit is not None and completion_tokens <= limit * self._bounds.choices
        )
        for index, choices in self._late.items():
            yield from choices if is_complete else [cut(index)] if index in self._ended else []


def cut(index: int) -> dict[str, Any]:
    """The end of a chat's or a completion's choice at its limit."""
    return {"index": index, "delta": {}, "text": "", "finish_reason": "length"}


class TextLength:
    """The numbers of words and characters of a text that arrives in pieces."""

    def __init__(self, words: int = 0, characters: int = 0, last: str = " ") -> None:
        self._words, self._characters, self._last = words, characters, last

    def plus(self, piece: str) -> TextLength:
        """The numbers for the text with one more piece."""
        words = self._words + len(WORD_START.findall(self._last + piece))
        return TextLength(words, self._characters + len(piece), piece[-1:] or self._last)

    def exceeds(self, tokens: int) -> bool:
        """Return whether the text is longer than any text of ``tokens`` tokens."""
        return self._words > tokens * WORDS_PER_TOKEN or self._characters > tokens * CHARACTERS_PER_TOKEN


def says_text(choice: Mapping[str, Any]) -> bool:
    return bool(text_of(choice))


def text_of(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    texts = (delta.get(key) for key in ("content", "reasoning_content", "reasoning")) if isinstance(delta, dict) else ()
    return "".join(text for text in (choice.get("text"), *texts) if isinstance(text, str))


def listed_tokens(choice: Mapping[str, Any]) -> int:
    """The number of tokens that the choice lists, in the form of chats or of completions."""
    logprobs = choice.get("logprobs")
    listed = (logprobs.get("content") or logprobs.get("tokens")) if isinstance(logprobs, dict) else None
    return len(listed) if isinstance(listed, list) else 0
