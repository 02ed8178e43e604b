"""Stop strings: receive an answer's text piece by piece, and return the text up to the first stop string.

Text that may be the beginning of a stop string is held back. All stop strings share one automaton, so the cost per
character does not depend on their number (Aho and Corasick 1975).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..errors import RequestError

# The automaton has a node for each character.
MAX_CHARACTERS = 16_384


class StopAutomaton:
    """The stop strings of a request, shared by its answers. Node 0 means that no stop string has begun.

    Raises RequestError for an empty stop string, and for more than 16,384 characters in total.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise RequestError("stop holds an empty string, which every answer begins with; leave it out", param="stop")
        if sum(map(len, stops)) > MAX_CHARACTERS:
            raise RequestError(
                f"stop has more than {MAX_CHARACTERS:,} characters in all; give fewer or shorter stop strings",
                param="stop",
            )
        self.children: list[dict[str, int]] = [{}]
        self.depths = [0]
        # The length of the longest stop string that ends at a node; 0 if none ends there.
        self.stop_lengths = [0]
        self.fallbacks = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, node: int, character: str) -> int:
        while node and character not in self.children[node]:
            node = self.fallbacks[node]
        return self.children[node].get(character, 0)

    def _insert(self, stop: str) -> None:
        node = 0
        for character in stop:
            following = self.children[node].get(character)
            if following is None:
                following = len(self.children)
                self.children[node][character] = following
                self.children.append({})
                self.depths.append(self.depths[node] + 1)
                self.stop_lengths.append(0)
                self.fallbacks.append(0)
            node = following
        self.stop_lengths[node] = len(stop)

    def _link(self) -> None:
        """Link each node to the node of its longest proper suffix. Shorter strings are linked first."""
        pending = deque(self.children[0].values())
        while pending:
            node = pending.popleft()
            for character, child in self.children[node].items():
                self.fallbacks[child] = self.step(self.fallbacks[node], character)
                pending.append(child)
            self.stop_lengths[node] = self.stop_lengths[node] or self.stop_lengths[self.fallbacks[node]]


class StopStrings:
    """Searches one answer's text for stop strings. The answer ends before the stop string that is complete first, or
    the longest; with ``include``, it ends after it.
    """

    def __init__(self, automaton: StopAutomaton, *, include: bool = False) -> None:
        self._automaton, self._include = automaton, include
        self._node = 0
        self._held = ""
        # The stop string that was found. No text is returned after that.
        self.found: str | None = None

    @property
    def any(self) -> bool:
        """Whether there are any. Without them, `feed` returns its text."""
        return len(self._automaton.children) > 1

    @property
    def stopped(self) -> bool:
        return self.found is not None

    def feed(self, text: str, may_stop: bool = True) -> str:
        """Add text; return the text that can no longer be part of a stop string.

        Without ``may_stop``, a stop string that ends in ``text`` has no effect.
        """
        if self.found is not None:
            return ""
        automaton = self._automaton
        if not self.any:
            return text
        pending = self._held + text
        for position, character in enumerate(text, len(self._held) + 1):
            self._node = automaton.step(self._node, character)
            length = automaton.stop_lengths[self._node]
            if length and may_stop:
                self.found, self._held = pending[position - length : position], ""
                return pending[: position if self._include else position - length]
        settled = len(pending) - automaton.depths[self._node]
        self._held = pending[settled:]
        return pending[:settled]

    def finish(self) -> str:
        """The text that is still held back, at the end of the answer."""
        held, self._held = self._held, ""
        return held
