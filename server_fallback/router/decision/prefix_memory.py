"""PrefixMemory: the conversations that a side answered lately. What flows in are messages with their answer, what flows out is how much of
new ones the side has likely computed before. Pure, and in memory alone; `tests/conformance/router_prefix.json` holds the browser's to the
same shares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .situation import Message

CONVERSATIONS = 64
# Engines drop what nobody asked for in a while, and do not tell.
REMEMBERED_SECONDS = 300.0


class PrefixMemory:
    """Of the last 64 conversations. ``now`` is in seconds, of any clock that does not go back."""

    def __init__(self) -> None:
        self._answered: deque[tuple[float, list[tuple[str, str]]]] = deque(maxlen=CONVERSATIONS)

    def remember(self, messages: Sequence[Message], answer: str, now: float) -> None:
        self._answered.append((now, [*map(_written, messages), ("assistant", answer)]))

    def cached_share(self, messages: Sequence[Message], now: float) -> float:
        """Of the characters of ``messages``, those of the longest run of leading messages that one conversation of the last 300 s has too;
        from 0 to 1. Contents count as code points, roles must be the same, labels need not."""
        asked = [_written(message) for message in messages]
        lately = [conversation for then, conversation in self._answered if now - then <= REMEMBERED_SECONDS]
        shared = max((_shared_characters(asked, conversation) for conversation in lately), default=0)
        return shared / max(1, sum(len(content) for _, content in asked))


def _written(message: Message) -> tuple[str, str]:
    return message.role, message.content


def _shared_characters(asked: Sequence[tuple[str, str]], conversation: Sequence[tuple[str, str]]) -> int:
    characters = 0
    for ours, theirs in zip(asked, conversation, strict=False):
        if ours != theirs:
            break
        characters += len(ours[1])
    return characters
