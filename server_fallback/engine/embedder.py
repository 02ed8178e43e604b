"""The embedder: texts as token ids flow in, a vector for each flows out. It stands where the scheduler stands in a model that generates.

Nothing is kept from one text to the next. Texts of several jobs share batches, in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from nearfar.compiler.runtime.batch import Chunk, FloatArray, make_batch

from .step_runner import StepRunner


@dataclass(eq=False, slots=True)
class EmbedJob:
    """``result`` is (n, E), a row for each text. Whoever gives the job up sets ``abandoned``."""

    texts: Sequence[Sequence[int]]
    result: Future[FloatArray] = field(default_factory=Future)
    abandoned: bool = False
    vectors: dict[int, FloatArray] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Text:
    """One text on its way: ``done`` of its tokens are in its pages."""

    job: EmbedJob
    index: int
    pages: list[int] = field(default_factory=list)
    done: int = 0

    @property
    def ids(self) -> Sequence[int]:
        return self.job.texts[self.index]


class Embedder:
    def __init__(self, runner: StepRunner, page_size: int) -> None:
        self._runner, self._page_size = runner, page_size
        self._free = list(range(runner.num_pages))
        self._waiting: deque[Text] = deque()
        self._running: list[Text] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, job: EmbedJob) -> None:
        """Its texts must be of 1 token to as many as the pages hold."""
        self._waiting.extend(Text(job, index) for index in range(len(job.texts)))

    def step(self) -> list[EmbedJob]:
        """Compute one batch; the jobs that are done with it. Raises what the runner does, and `running` are the jobs that it was for."""
        self._admit()
        room, chunks, ended = self._runner.limits.tokens, [], []
        for text in self._running:
            part = text.ids[text.done : text.done + room]
            if not part:
                break
            room -= len(part)
            last = text.done + len(part) == len(text.ids)
            held = -(-(text.done + len(part)) // self._page_size)
            chunks.append(Chunk(part, text.done, text.pages[:held], [len(part) - 1] if last else []))
            text.done += len(part)
            if last:
                ended.append(text)
        if not chunks:
            return []
        rows = self._runner.embed(make_batch(chunks, self._page_size))
        for text, row in zip(ended, rows, strict=True):
            text.job.vectors[text.index] = row.copy()
        self._let_go(ended.__contains__)
        jobs = dict.fromkeys(text.job for text in ended)
        return [job for job in jobs if len(job.vectors) == len(job.texts)]

    def drop(self, gone: Callable[[EmbedJob], bool]) -> list[EmbedJob]:
        """Forget the jobs for which ``gone`` holds; those it was."""
        jobs = [job for job in dict.fromkeys(text.job for text in (*self._running, *self._waiting)) if gone(job)]
        self._let_go(lambda text: text.job in jobs)
        self._waiting = deque(text for text in self._waiting if text.job not in jobs)
        return jobs

    @property
    def running(self) -> list[EmbedJob]:
        """The jobs of which a text is being computed."""
        return list(dict.fromkeys(text.job for text in self._running))

    def _admit(self) -> None:
        limits = self._runner.limits
        while self._waiting and len(self._running) < min(limits.sequences, limits.rows):
            text = self._waiting[0]
            count = -(-len(text.ids) // self._page_size)
            if count > len(self._free):
                return
            text.pages = [self._free.pop() for _ in range(count)]
            self._running.append(self._waiting.popleft())

    def _let_go(self, gone: Callable[[Text], bool]) -> None:
        for text in self._running:
            if gone(text):
                self._free += text.pages
        self._running = [text for text in self._running if not gone(text)]


def matrix(job: EmbedJob) -> FloatArray:
    """The vectors (n, E) of a job that is done, in the order of its texts."""
    return np.stack([job.vectors[index] for index in range(len(job.texts))])
