"""Searches for a short text that completes the answer so far.

The search leaves the matcher as it was. The browser searches in the same order (web/src/grammar/completion.ts), so that
both find the same text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .matcher import Matcher, allowed_ids

# Characters that close something, then those that keep a text short. For JSON, this order finds nearly the shortest
# text.
_FIRST = '}]",:0123456789ntf-{['
_CLOSERS = (*_FIRST, *(chr(code) for code in range(0x7E, 0x1F, -1) if chr(code) not in _FIRST), "\n", "\t")
# The maximum length of a text, and the number of texts that may be tried for it, for one round after another. JSON
# needs no backtracking; other grammars may.
_ROUNDS = ((2, 250), (8, 500), (64, 1500), (512, 4000))
# Limits of the search without backtracking. A character that repeats more often than _LONGEST_RUN is a loop.
_STRAIGHT_TRIALS = 10_000
_LONGEST_RUN = 60
_LONGEST_TEXT = 4096
# The number of preceding characters that identify where two completions become equal.
_LONGEST_SAME = 8
# The number of texts of the vocabulary that are tried if no ASCII character continues the text.
_MOST_FROM_MASK = 16


@dataclass(frozen=True, slots=True)
class Ending:
    """A completion of an answer: tokens that end its last character, then a text."""

    head: tuple[int, ...]
    text: str


def find_completion(
    matcher: Matcher, pending: int, endings: Sequence[str], most_trials: float = math.inf, known: str = ""
) -> Ending | None:
    """A completion that is short, but not necessarily the shortest; None if none is found.

    ``pending`` is the number of bytes that the answer's last character lacks. ``endings`` are texts that may end a part
    that could continue for ever. ``known`` completed the answer before its last token; the new completion often ends in
    the same way.
    """
    if pending == 0:
        text = _find_text(matcher, endings, most_trials, known)
        return None if text is None else Ending((), text)
    for token_id in matcher.shapes.continuing:
        token = matcher.shapes.tokens[token_id]
        if len(token) > pending or not matcher.accept_token(token_id):
            continue
        rest = find_completion(matcher, pending - len(token), endings, most_trials, known)
        matcher.rollback(1)
        return None if rest is None else Ending((token_id, *rest.head), rest.text)
    return None


def completes(matcher: Matcher, text: str) -> bool:
    if text == "":
        return matcher.complete
    if not matcher.accept_text(text):
        return False
    complete = matcher.complete
    matcher.rollback(1)
    return complete


def pending_bytes(pending: int, token: bytes) -> int:
    """The number of bytes that the last character lacks after ``token``, if it lacked ``pending`` before."""
    for byte in token:
        pending = (
            0 if byte < 0x80 else max(pending - 1, 0) if byte < 0xC0 else 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        )
    return pending


def _find_text(matcher: Matcher, endings: Sequence[str], most_trials: float, known: str) -> str | None:
    if matcher.complete:
        return ""
    trials = min(_STRAIGHT_TRIALS, most_trials)
    # A string in which any text is allowed ends with a quote, once its required characters are there. An ending with
    # its quote is tried first, because one format's ending may be accepted again and again in another format's string.
    ends = ('"', *(f'{ending}"' for ending in endings), *endings, *_CLOSERS)
    for texts in (_CLOSERS, ends):
        straight = _go_straight(matcher, texts, trials, known)
        if straight is not None:
            return straight
    for length, most in _ROUNDS:
        if most > most_trials:
            return None
        text = _Search(matcher, ends, most, length).found()
        if text is not None:
            return text
    return None


def _go_straight(matcher: Matcher, texts: Sequence[str], trials: float, known: str) -> str | None:
    """Always use the first text that is accepted, without backtracking."""
    text, steps = "", 0
    while not matcher.complete:
        rest = next((rest for rest in _rests(known, text) if completes(matcher, rest)), None)
        if rest is not None:
            text += rest
            break
        following = matcher.forced
        if following is not None and len(text) + len(following) > _LONGEST_TEXT:
            following = None
        elif following == "":
            trials, following = (
                _first_accepted(matcher, texts, trials) if _run_length(text) <= _LONGEST_RUN else (trials, None)
            )
        elif following is not None and not matcher.accept_text(following):
            following = None
        if following is None:
            matcher.rollback(steps)
            return None
        text, steps = text + following, steps + 1
    matcher.rollback(steps)
    return text


def _rests(known: str, text: str) -> Sequence[str]:
    """The continuations of ``text`` to try, given that another completion was ``known``."""
    if known == "":
        return ()
    if text == "":
        return known, f'"{known}'
    same = text[-_LONGEST_SAME:]
    at = known.find(same)
    return (known,) if at < 0 else (known[at + len(same) :], known)


def _first_accepted(matcher: Matcher, texts: Sequence[str], trials: float) -> tuple[float, str | None]:
    for candidates in (texts, _texts_of_mask(matcher)):
        for candidate in candidates:
            trials -= 1
            if trials < 0:
                return trials, None
            if matcher.accept_text(candidate):
                return trials, candidate
    return trials, None


class _Search:
    """Depth first, with ``trials`` in all, for texts of at most about ``most`` characters."""

    def __init__(self, matcher: Matcher, texts: Sequence[str], trials: float, most: int) -> None:
        self._matcher = matcher
        self._texts = texts
        self._trials = trials
        self._most = most

    def found(self) -> str | None:
        matcher, text = self._matcher, ""
        # Texts after which others may follow; each is one step of the matcher.
        opened: list[tuple[str, Iterator[str]]] = []
        while not matcher.complete:
            opened.append((text, self._accepted_after(text)))
            following = None
            while following is None and opened:
                text, followings = opened[-1]
                following = next(followings, None)
                if following is None:
                    opened.pop()
                    matcher.rollback(min(1, len(opened)))
            if following is None:
                return None
            text += following
        matcher.rollback(len(opened))
        return text

    def _accepted_after(self, text: str) -> Iterator[str]:
        """Each text that the matcher accepts; the matcher is in the state after it."""
        matcher = self._matcher
        forced = matcher.forced
        if forced != "":
            if forced is not None and len(text) + len(forced) <= self._most and matcher.accept_text(forced):
                yield forced
            return
        if len(text) >= self._most:
            return
        for candidates in (self._texts, _texts_of_mask(matcher)):
            met = False
            for candidate in candidates:
                self._trials -= 1
                if self._trials < 0:
                    return
                if matcher.accept_text(candidate):
                    met = True
                    yield candidate
            if met:
                return


def _texts_of_mask(matcher: Matcher) -> Iterator[str]:
    """The first texts of the vocabulary that continue the answer, used if no ASCII character does."""
    count = 0
    tokens = matcher.shapes.tokens
    for token_id in allowed_ids(matcher.mask(), len(tokens)).tolist():
        try:
            text = tokens[token_id].decode()
        except UnicodeDecodeError:
            # An incomplete character is not a text.
            continue
        if text:
            yield text
            count += 1
            if count == _MOST_FROM_MASK:
                return


def _run_length(text: str) -> int:
    return len(text) - len(text.rstrip(text[-1:]))
