"""The prefix cache: a radix tree over full pages of tokens, which finds what the cache kinds hold of the longest known
prefix of some tokens.

So a second turn, or a second conversation with the same system prompt, computes only its new tokens. Zheng et al. 2024
(SGLang's RadixAttention). An adapter changes keys and values, so each adapter has a tree of its own.

A node has a snapshot of each kind. Those of a kind that is no chain are evicted on their own, and a prefix is usable if
that kind still has the snapshots that are read after its end. If a kind is exact, a prefix ends only at its snapshots.

Partly filled pages are cached in two cases. If a page holds a whole sequence, few pages are ever full. With smaller
pages, only requests that together make one answer or one conversation cache and find the last page. Both start from the
first tokens of any page that has them, in a copy.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from operator import itemgetter
from typing import Protocol

from .cache_kind import CacheKind, Holder, Key, Node, Prefix


class Cached(Holder, Protocol):
    """A sequence that the cache knows. ``keys`` are its tokens, except that placeholders of different images differ.
    ``path``: the nodes of its first full pages.
    """

    keys: list[int]
    path: list[Node]

    @property
    def adapter(self) -> str | None: ...


class PrefixCache:
    """The cache is a user of each snapshot. ``partial_pages``: partly filled pages of every sequence are found."""

    def __init__(self, kinds: Items[CacheKind], page_size: int, *, partial_pages: bool = False) -> None:
        self._kinds, self._page_size, self.partial_pages = kinds, page_size, partial_pages
        self._is_exact = any(kind.is_exact for kind in kinds)
        self._roots: dict[str | None, dict[Key, Node]] = {}

    def find(self, keys: Items[int], limit: int, adapter: str | None = None, *, partial_page: bool = False) -> Prefix:
        """The longest usable prefix of at most ``limit`` tokens with these keys. ``partial_page``: it may end within a
        page.
        """
        path: list[Node] = []
        level = self._roots.get(adapter, {})
        usable = 0
        # By kind, the number of nodes up to the last one without a snapshot.
        incomplete = [0] * len(self._kinds)
        while (len(path) + 1) * self._page_size <= limit and (node := level.get(self._key(keys, len(path)))):
            path.append(node)
            level = node.children
            if self._is_usable(path, len(path) * self._page_size, incomplete):
                usable = len(path)
        length, known = usable * self._page_size, len(path) * self._page_size
        if self.partial_pages or partial_page:
            rest = keys[known:limit]
            # A page that a sequence fills in the same step cannot be copied before it.
            settled = (node for node in level.values() if len(node.key) < self._page_size or self._is_idle(node))
            ends = ((common_length(node.key, rest), node) for node in settled)
            common, last = max(
                (end for end in ends if not self._is_exact or end[0] == len(end[1].key)),
                key=itemgetter(0),
                default=(0, None),
            )
            if last is not None and common > 0 and self._is_usable([*path, last], known + common, incomplete):
                path.append(last)
                usable, length = len(path), known + common
        del path[usable:]
        self._touch(path, length)
        return Prefix(length, path, known=known)

    def nodes(self, keys: Items[int], limit: int, adapter: str | None = None) -> list[Node]:
        """Those of the full pages of the first ``limit`` tokens, whatever they have of each kind."""
        path: list[Node] = []
        level = self._roots.get(adapter, {})
        while (len(path) + 1) * self._page_size <= limit and (node := level.get(self._key(keys, len(path)))):
            path.append(node)
            level = node.children
        return path

    def insert(self, sequence: Cached, count: int) -> None:
        """Cache the first ``count`` pages of a sequence, all full.

        If the same tokens are cached already, the sequence uses the cached pages. Therefore a user of a page in the
        tree also uses the pages of its ancestors that are still read.
        """
        path = sequence.path
        # A node is removed when all of its pages have been evicted, which lie behind the sequence's window then.
        if path and path[-1].is_removed:
            path.clear()
        while len(path) < count:
            self._add(sequence, self._key(sequence.keys, len(path)))

    def insert_partial(self, sequence: Cached, length: int) -> None:
        """Cache the partly filled last page of a sequence, and remove those that hold a prefix of its tokens."""
        index, level = len(sequence.path), self._level(sequence)
        key = tuple(sequence.keys[index * self._page_size : length])
        # An exact kind may have a snapshot for a node that has none.
        least = len(key) + self._is_exact
        if not key or any(node.key[: len(key)] == key and len(node.key) >= least for node in level.values()):
            return
        for node in list(level.values()):
            is_shorter = len(node.key) < len(key) and key[: len(node.key)] == node.key
            if is_shorter and not node.children and self._is_idle(node):
                self.remove(node)
        self._add(sequence, key)

    def leave(self, sequence: Cached) -> None:
        """Release what a sequence holds, whether it is in the tree or not."""
        for kind in self._kinds:
            kind.drop(sequence)
        if sequence.path:
            self._prune(sequence.path[-1])
            sequence.path.clear()

    def discard(self, sequence: Cached) -> None:
        """`leave` with pages whose contents are wrong: those that nobody else uses are removed from the cache."""
        path = list(sequence.path)
        self.leave(sequence)
        while path and not path[-1].children and self._is_idle(path[-1]):
            self.remove(path.pop())

    def evict(self, kind: CacheKind) -> None:
        """Free the unit of a kind that has been idle for longest. In a chain it is the last one of a prefix, which
        becomes shorter for all kinds.
        """
        node = next(iter(kind.idle.values()))
        if kind.is_chain:
            self.remove(node)
        else:
            for own in self._kinds:
                # No prefix can end at an exact snapshot without the others.
                if own is kind or own.is_exact:
                    own.forget(node)
            self._prune(node)

    def remove(self, node: Node) -> None:
        """Remove a node without children."""
        assert not node.children, "the pages after it would be lost"
        for kind in self._kinds:
            kind.forget(node)
        self._prune(node)

    def clear(self) -> None:
        """Remove everything, as after the loss of the device. No sequence is in the cache."""
        for kind in self._kinds:
            for node in list(kind.idle.values()):
                kind.forget(node)
        self._roots.clear()

    def reset(self) -> None:
        """Let nothing of what is cached now be found again. Pages that sequences use stay theirs."""
        for kind in self._kinds:
            while kind.idle:
                self.evict(kind)
        self._roots.clear()

    def _is_usable(self, path: Items[Node], length: int, incomplete: list[int]) -> bool:
        """Whether no snapshot is missing that is read after a prefix. Updates ``incomplete`` for its last node."""
        usable = True
        for index, kind in enumerate(self._kinds):
            if path[-1].snapshots[index] is None:
                incomplete[index] = len(path)
            usable = usable and incomplete[index] <= kind.unread(length)
        return usable

    def _touch(self, path: Items[Node], length: int) -> None:
        """A prefix is used now. In a chain, the last page is evicted first."""
        for index, kind in enumerate(self._kinds):
            read = path[kind.unread(length) :]
            for node in reversed(read) if kind.is_chain else read:
                if (snapshot := node.snapshots[index]) is not None and snapshot in kind.idle:
                    kind.idle.move_to_end(snapshot)

    def _is_idle(self, node: Node) -> bool:
        """Whether only the cache uses its snapshots."""
        pairs = zip(self._kinds, node.snapshots, strict=True)
        return all(snapshot is None or snapshot in kind.idle for kind, snapshot in pairs)

    def _add(self, sequence: Cached, key: Key) -> None:
        """Put a sequence's next page into the tree, and into its path if it is full."""
        level, index = self._level(sequence), len(sequence.path)
        parent = sequence.path[-1] if sequence.path else None
        node = level.get(key) or Node(key, parent, level, len(self._kinds))
        for kind in self._kinds:
            kind.snapshot(sequence, node, index)
        if len(key) == self._page_size:
            sequence.path.append(node)

    def _level(self, sequence: Cached) -> dict[Key, Node]:
        """The nodes that follow a sequence's path."""
        return sequence.path[-1].children if sequence.path else self._roots.setdefault(sequence.adapter, {})

    def _prune(self, node: Node | None) -> None:
        """Remove a node without snapshots and children, and then its ancestors if the same is true of them."""
        while node and not node.is_removed and not node.children and all(own is None for own in node.snapshots):
            del node.siblings[node.key]
            node = node.parent

    def _key(self, keys: Items[int], index: int) -> Key:
        return tuple(keys[index * self._page_size : (index + 1) * self._page_size])


def common_length(first: Items[int], second: Items[int]) -> int:
    """The length of the longest common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))
