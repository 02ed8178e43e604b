"""PrefixMemory: the last conversations that a side answered, to estimate how much of a new one the side has computed
before.

Pure, and only in memory; `tests/conformance/router_prefix.json` requires the same shares of the browser's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .situation import Message

CONVERSATIONS = 64
# Engines evict what was not requested for a while, without reporting it.
REMEMBERED_SECONDS = 300.0


class PrefixMemory:
    """The last 64 conversations. ``now`` is in seconds, of any clock that does not go back."""

    def __init__(self) -> None:
        self._conversations: deque[tuple[float, list[tuple[str, str]]]] = deque(maxlen=CONVERSATIONS)

    def remember(self, messages: Sequence[Message], answer: str, now: float) -> None:
        self._conversations.append((now, [*map(_role_and_content, messages), ("assistant", answer)]))

    def cached_share(self, messages: Sequence[Message], now: float) -> float:
        """The share of the characters of ``messages`` that are in the longest run of leading messages in common with
        one conversation of the last 300 s; from 0 to 1.

        Contents count in code points. Roles must be the same, labels need not.
        """
        requested = [_role_and_content(message) for message in messages]
        lately = [conversation for then, conversation in self._conversations if now - then <= REMEMBERED_SECONDS]
        shared = max((_shared_characters(requested, conversation) for conversation in lately), default=0)
        return shared / max(1, sum(len(content) for _, content in requested))


def _role_and_content(message: Message) -> tuple[str, str]:
    return message.role, message.content


def _shared_characters(requested: Sequence[tuple[str, str]], conversation: Sequence[tuple[str, str]]) -> int:
    characters = 0
    for ours, theirs in zip(requested, conversation, strict=False):
        if ours != theirs:
            break
        characters += len(ours[1])
    return characters
