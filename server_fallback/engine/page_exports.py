"""Page exports: what running prompts have computed so far, read from the device block by block for another server.

    step is submitted -> the blocks that it completes are read, in the device's order, before the next step
    step is committed -> they are delivered, so no block of a step that failed is complete

So a block is on its way while the device computes the next chunk of the prompt. If the runner reads layers while it
computes later ones, all parts of a block but the last are on their way as soon as they are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

from .answer import Answer
from .page_blocks import LAYERED_BLOCKS, PageBlock, ReadParts, block_tokens
from .page_imports import first_position, units_of
from .scheduler import Scheduler
from .sequence import RUNNING, Sequence
from .step import Step

# A prompt is computed at most this many steps beyond what the other server has taken. With one step fewer,
# the device would wait for the network.
OPEN_STEPS = 2


@dataclass(eq=False, slots=True)
class Export:
    """Pages were read up to the position ``read``, delivered up to ``delivered``, and taken up to ``taken``.
    ``untaken`` are the ends of the blocks between the last two. ``coming`` are the parts that were not delivered, in
    order; ``lock`` protects it.
    """

    answer: Answer
    sequence: Sequence
    end: int
    read: int
    delivered: int
    taken: int
    untaken: deque[int] = field(default_factory=deque)
    coming: deque[tuple[Read, int]] = field(default_factory=deque)
    lock: Lock = field(default_factory=Lock)

    def stop(self) -> None:
        """Deliver nothing of what has been read."""
        with self.lock:
            self.coming.clear()


@dataclass(slots=True)
class Read:
    """``step`` is the last one that was submitted before it; None if there was none that was not committed.
    ``committed``: it is done.
    """

    export: Export
    step: Step | None
    start: int
    end: int
    parts: Items[Future[bytes]]
    committed: bool = False


class PageExports:
    """Belongs to the engine's thread. ``read`` is the runner's, and ``deliver`` passes a part of a block to its answer,
    on any thread. ``tokens`` and ``bytes`` count what was delivered. ``layered``: the runner reads parts while it
    computes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        read: ReadParts,
        deliver: Callable[[Answer, PageBlock], None],
        *,
        layered: bool = False,
    ) -> None:
        self._scheduler, self._read_parts = scheduler, read
        self._deliver, self._blocks = deliver, LAYERED_BLOCKS if layered else 1
        self._most_open = OPEN_STEPS * scheduler.config.max_tokens
        self._exports: dict[Answer, Export] = {}
        self._reads = deque[Read]()
        self.tokens = self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._exports)

    @property
    def answers(self) -> list[Answer]:
        return list(self._exports)

    def begin(self, answer: Answer, sequence: Sequence) -> None:
        """Export the pages of a sequence that is being queued."""
        wanted = answer.request.export
        assert wanted is not None
        first = first_position(self._scheduler.kv, wanted.start, wanted.stop)
        self._exports[answer] = Export(answer, sequence, wanted.stop, first, first, first)

    def taken(self, answer: Answer) -> None:
        """The other server has taken a block."""
        export = self._exports.get(answer)
        if export is not None:
            export.taken = export.untaken.popleft()

    def forget(self, answer: Answer) -> None:
        """The answer has ended."""
        if (export := self._exports.pop(answer, None)) is not None:
            export.stop()
            self._reads = deque(read for read in self._reads if read.export.answer is not answer)

    def submitted(self, step: Step | None) -> None:
        """Read the blocks that are complete once a step is done, ``step`` being the last one that was submitted; None
        if all steps have been committed. Raises the runner's errors.
        """
        for export in self._exports.values():
            if export.sequence.state == RUNNING:
                self._read(export, step)
            self._hold(export)

    def committed(self, open_steps: Collection[Step], end: Callable[[Answer], None]) -> bool:
        """Deliver the blocks of steps that are done, and ``end`` the answers that have all of theirs. Whether there
        were any. Raises the runner's errors.
        """
        before, waiting = self.tokens, {id(step) for step in open_steps}
        while self._reads and id(self._reads[0].step) not in waiting:
            read = self._reads.popleft()
            sizes, export = [len(part.result()) for part in read.parts], read.export
            export.delivered = read.end
            export.untaken.append(read.end)
            self.tokens += read.end - read.start
            self.bytes += sum(sizes)
            read.committed = True
            self._deliver_ready(export)
        ended = [export for export in self._exports.values() if export.delivered == export.end]
        for export in ended:
            self._scheduler.finish(export.sequence, "length")
            end(export.answer)
        return self.tokens > before or bool(ended)

    def reset(self) -> None:
        """The contents of all pages are lost, and the sequences start again. What was delivered remains."""
        for export in self._exports.values():
            export.stop()
            export.read = export.delivered
        self._reads.clear()

    def _read(self, export: Export, step: Step | None) -> None:
        kv, sequence = self._scheduler.kv, export.sequence
        while export.read < export.end and export.read - export.taken < self._most_open:
            start, size = export.read, block_tokens(export.end)
            whole = start + max(0, sequence.computed - start) // size * size
            end = min(start + self._blocks * size, export.end if sequence.computed >= export.end else whole)
            if end <= start:
                return
            parts = self._read_parts(units_of(kv, sequence, start, end, export.end))
            read = Read(export, step, start, end, parts)
            self._reads.append(read)
            with export.lock:
                export.coming.extend((read, index) for index in range(len(parts)))
            for part in parts[:-1]:
                part.add_done_callback(lambda _: self._deliver_ready(export))
            export.read = end

    def _deliver_ready(self, export: Export) -> None:
        """Deliver the parts that are there and all before which are, on the thread that has read one of them. The last
        one of a block waits until its step is committed.
        """
        with export.lock:
            while export.coming:
                read, index = export.coming[0]
                part, count = read.parts[index], len(read.parts)
                if not part.done() or part.exception() or (index == count - 1 and not read.committed):
                    return
                export.coming.popleft()
                self._deliver(export.answer, PageBlock(read.start, read.end, part.result(), index, count))

    def _hold(self, export: Export) -> None:
        """Compute no more of a prompt whose blocks nobody takes, or that is computed."""
        sequence = export.sequence
        holds = sequence.computed >= export.end or export.read - export.taken >= self._most_open
        if holds and not sequence.is_held:
            self._scheduler.hold(sequence)
        elif sequence.is_held and not holds:
            self._scheduler.release(sequence)
