"""The messages between the server and the grammar compiler's process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from .completion import Ending
from .source import GrammarSource

# The replies to a `Setup`, and to a `Job` whose vocabulary the process does not have (any more).
READY = "ready"
UNKNOWN_VOCABULARY = "unknown vocabulary"


@dataclass(frozen=True, slots=True)
class Setup:
    """A vocabulary.

    ``tokens`` are the bytes that each id writes, empty for special tokens; ``key`` is a hash of all.
    """

    key: str
    tokens: Sequence[bytes]
    eos_token_ids: Sequence[int]

    @classmethod
    def of(cls, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> Setup:
        digest = sha256(repr(tuple(eos_token_ids)).encode())
        for token in tokens:
            digest.update(len(token).to_bytes(4, "little") + token)
        return cls(digest.hexdigest(), tokens, eos_token_ids)


@dataclass(frozen=True, slots=True)
class Job:
    """A source to compile for the vocabulary of a `Setup`, named by its key."""

    vocabulary: str
    source: GrammarSource


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled grammar in xgrammar's text form, for the same vocabulary.

    For ``endings`` and ``reserve`` see `rules.Rules`. ``first`` completes an answer that has not begun; it is None if
    no completion was found. ``closes``: whether completions are found in time.
    """

    text: str
    endings: tuple[str, ...]
    reserve: int
    first: Ending | None
    closes: bool
