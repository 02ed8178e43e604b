"""The cache of sequences: what they hold of each cache kind, what they share, and what is evicted for them."""

from __future__ import annotations

from collections.abc import Iterable

from .cache_kind import CacheKind, Copies, Prefix
from .config import SchedulerConfig
from .pages import Pages
from .prefix_cache import PrefixCache
from .sequence import RUNNING, Sequence
from .states import States


class KvCache:
    """The cache kinds of a model, and a prefix cache of all of them: ``pages`` of each page group, and the ``states``
    if it has any. ``keeps_states``: there is room for snapshots of them.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.page_size = config.page_size
        self.pages = [
            Pages(index, group, config.page_size, config.context, config.max_tokens)
            for index, group in enumerate(config.groups)
        ]
        self.states: States | None = None
        if config.states > 0:
            self.states = States(len(self.pages), config.states, config.max_sequences, config.page_size)
        self.keeps_states = config.states > config.max_sequences
        self.kinds: list[CacheKind] = [*self.pages, *([] if self.states is None else [self.states])]
        self.prefixes = PrefixCache(self.kinds, config.page_size, partial_pages=config.page_size >= config.context)

    def unfilled(self, running: Iterable[Sequence]) -> int:
        """Positions in the running sequences' pages that hold no token."""
        return sum(
            max(0, len(table.pages) * self.page_size - sequence.computed)
            for sequence in running
            for table in sequence.tables[:1]
        )

    def find_prefix(self, sequence: Sequence) -> Prefix:
        """The longest prefix of a waiting sequence's tokens that is computed already."""
        found, leader = self._find(sequence), sequence.leader
        if (
            leader is not None
            and leader.state == RUNNING
            and leader.params.context_shift is None
            and sequence.generated == 0
        ):
            # The leader's rows in the step being built all follow its prompt, so what is shared was computed in earlier
            # steps.
            shared = min(leader.computed, sequence.max_cached)
            if shared > found.length and all(kind.can_fork(leader, shared) for kind in self.kinds):
                return Prefix(shared, leader.path[: shared // self.page_size], leader)
        return found

    def fits(self, sequence: Sequence, prefix: Prefix, running: Iterable[Sequence]) -> bool:
        """Whether there is room for a sequence's known tokens and one more, beside that of running ones for the
        same.
        """
        others = list(running)
        return all(
            sum(kind.growth(other, other.length + 1) for other in others)
            + kind.admission(prefix, len(sequence.tokens) + 1)
            <= kind.free + len(kind.idle)
            for kind in self.kinds
        )

    def start(self, sequence: Sequence, prefix: Prefix) -> None:
        """Let a sequence start from a prefix."""
        sequence.tables = [kind.table() for kind in self.kinds]
        self._continue(sequence, prefix)
        if sequence.last_step < 0:
            sequence.cached_tokens = prefix.length

    def can_write(self, sequence: Sequence, position: int) -> bool:
        """Whether neither `prepare` nor `reserve` of a position would change anything."""
        known = len(sequence.tokens)
        # Once for each row: a generator would take longer than the check.
        for kind in self.kinds:  # noqa: SIM110
            if not kind.is_writable(sequence, position, known):
                return False
        return True

    def prepare(self, sequence: Sequence) -> None:
        """Call before a row is scheduled: releases what is no longer read, and uses pages that other sequences have
        filled meanwhile.
        """
        sequence.rewound = None
        for kind in self.kinds:
            # After a stop token or a wrong draft, the sequence continues from its known tokens.
            kind.trim(sequence, min(sequence.computed, len(sequence.tokens)))
        if sequence.missing > 1 and sequence.computed % self.page_size == 0:
            prefix = self._find(sequence)
            sequence.branch, more = prefix.known, prefix.length - sequence.computed
            if more > 0:
                self._continue(sequence, prefix)
                if sequence.generated == 0:
                    sequence.cached_tokens += more

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Let a sequence write its positions up to ``length``, evicting what is cached. False, and the sequence is
        unchanged, if there is too little room.
        """
        start, known = sequence.computed, sequence.length
        if sequence.params.partial_page:
            # The last page of the previous request is continued, not copied.
            self._detach(sequence, start)
        while any(kind.missing(sequence, start, length, known) > kind.free + len(kind.idle) for kind in self.kinds):
            if not self._detach(sequence, start, evicts=True):
                return False
        for kind in self.kinds:
            # Each eviction frees one unit of the kind, and none of the sequence's.
            for _ in range(kind.missing(sequence, start, length, known) - kind.free):
                self.prefixes.evict(kind)
            kind.reserve(sequence, start, length, known)
        if self.keeps_states and known == len(sequence.prompt) and start in (sequence.branch, self._border(known - 1)):
            self._share_state(sequence, start)
        return True

    def make_snapshot_room(self) -> bool:
        """Let the prefix cache keep one more snapshot of states, if the model has any. False without room."""
        if self.states is None:
            return True
        while self.states.free <= 0 and self.states.idle:
            self.prefixes.evict(self.states)
        return self.states.free > 0

    def row_end(self, sequence: Sequence, end: int) -> int:
        """Where a row of several tokens that starts in the prompt ends instead of at ``end``, so that its state can be
        kept: where the tokens leave those of other sequences in the cache, at the last page border of its pictures,
        from which another question about them continues, or at the last page border before the next token is sampled.
        """
        start, border = sequence.computed, self._border(end - (end == sequence.length))
        if start >= len(sequence.prompt):
            return end
        earlier = [each for each in (sequence.branch, self._picture_border(sequence)) if start < each < border]
        return min([border if border > start else end, *earlier])

    def _detach(self, sequence: Sequence, position: int, *, evicts: bool = False) -> bool:
        """Remove the page of a position from the cache, so that the sequence can write to it without a copy; if others
        follow it, nothing, or with ``evicts`` only what has been idle for longest. False if nothing was removed.
        """
        index = position // self.page_size
        node = next((node for kind in self.kinds if (node := kind.node_of(sequence, index)) is not None), None)
        idle = next((kind for kind in self.pages if evicts and kind.idle), None)
        if node is not None and not node.children:
            self.prefixes.remove(node)
        elif node is not None and idle is not None:
            self.prefixes.evict(idle)
        else:
            return False
        return True

    def take_copies(self) -> list[Copies]:
        """By kind, what the next step must copy first."""
        copies = [kind.copies for kind in self.kinds]
        for kind in self.kinds:
            kind.copies = []
        return copies

    def cache_pages(self, sequence: Sequence) -> None:
        """Let other sequences find the full pages of known tokens."""
        known, computed = len(sequence.tokens), sequence.computed
        full = (computed if computed < known else known) // self.page_size
        if full > len(sequence.path):
            self.prefixes.insert(sequence, full)

    def rewind(self, sequence: Sequence, length: int) -> None:
        """Take back the refused drafts that follow the first ``length`` tokens."""
        if length < sequence.computed:
            sequence.computed = min(kind.rewind(sequence, length) for kind in self.kinds)
            held = self.pages[0].held(sequence)
            for pool in self.pages:
                pool.rewind(sequence, sequence.computed)
            if sequence.computed < length:
                sequence.rewound = held[len(self.pages[0].held(sequence)) :]
            # A page that is computed again is inserted again.
            del sequence.path[sequence.computed // self.page_size :]

    def release(self, sequence: Sequence) -> None:
        """Give up what a sequence holds; the cache keeps what it can use."""
        sequence.rewound = None
        end, is_partial = sequence.computed, self.prefixes.partial_pages or sequence.params.partial_page
        if self.states is not None:
            self._share_state(sequence, self.states.kept(sequence))
            # A state that has read more than the known tokens is of no use.
            is_partial = is_partial and end <= len(sequence.tokens)
            if is_partial or end == self._border(len(sequence.tokens)):
                while not self.states.settle(sequence, end) and self.states.idle:
                    self.prefixes.evict(self.states)
                self._share_state(sequence, end)
        if is_partial:
            self.prefixes.insert_partial(sequence, end)
        self.prefixes.leave(sequence)

    def restart(self, sequence: Sequence) -> None:
        """Give up what a sequence holds, so that it is computed from its start."""
        if sequence.tables:
            self.prefixes.leave(sequence)
        sequence.computed, sequence.rewound = 0, None
        if sequence.generated == 0:
            sequence.cached_tokens = 0

    def _find(self, sequence: Sequence) -> Prefix:
        params = sequence.params
        return self.prefixes.find(sequence.keys, sequence.max_cached, params.adapter, partial_page=params.partial_page)

    def _continue(self, sequence: Sequence, prefix: Prefix) -> None:
        for kind in self.kinds:
            kind.restore(sequence, prefix)
        sequence.path = prefix.path[: prefix.length // self.page_size]
        sequence.computed, sequence.branch = prefix.length, prefix.known

    def _share_state(self, sequence: Sequence, end: int) -> None:
        """Let other sequences find the snapshot that a sequence has of the state at a page border of known tokens."""
        index = end // self.page_size - 1
        if self.states is not None and end % self.page_size == 0 and 0 <= index < len(sequence.path):
            self.states.share(sequence, sequence.path[index], end)

    def _picture_border(self, sequence: Sequence) -> int:
        """The last page border up to the end of the last picture; 0 without any."""
        return self._border(sequence.images[-1].end) if sequence.images else 0

    def _border(self, position: int) -> int:
        """The last page border up to a position."""
        return position // self.page_size * self.page_size
