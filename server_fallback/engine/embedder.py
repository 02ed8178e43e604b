"""The embedder: computes a vector for each list of token ids, or the scores of a classifier. It replaces the scheduler
for models that generate no text.

Nothing is cached from one text to the next. Texts of several jobs share batches, in the order in which they arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from nearfar.compiler.runtime.batch import Chunk, FloatArray, make_batch, make_text_batch

from .model import TokenModel
from .step_runner import StepRunner


@dataclass(eq=False, slots=True)
class EmbedJob:
    """``result`` is (n, E), one row per text, or one row for each token of all texts if tokens have scores.
    ``token_types`` are those of each text's tokens; () if all are of type 0. A caller that abandons the job sets
    ``abandoned``.
    """

    texts: Sequence[Sequence[int]]
    token_types: Sequence[Sequence[int]] = ()
    result: Future[FloatArray] = field(default_factory=Future)
    abandoned: bool = False
    vectors: dict[int, FloatArray] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Text:
    """One text in progress; ``done`` is the number of its tokens in its pages."""

    job: EmbedJob
    index: int
    pages: list[int] = field(default_factory=list)
    done: int = 0

    @property
    def ids(self) -> Sequence[int]:
        return self.job.texts[self.index]

    @property
    def types(self) -> Sequence[int]:
        return self.job.token_types[self.index] if self.job.token_types else ()


class Embedder:
    def __init__(self, runner: StepRunner, model: TokenModel) -> None:
        self._runner, self._model, self._page_size = runner, model, model.page_size
        self._free = list(range(runner.groups[0].pages))
        self._waiting: deque[Text] = deque()
        self._running: list[Text] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, job: EmbedJob) -> None:
        """Each of its texts must have a token, and must fit the pages."""
        self._waiting.extend(Text(job, index) for index in range(len(job.texts)))

    def step(self) -> list[EmbedJob]:
        """Compute one batch. Returns the jobs that it completes. If the runner raises an error, the jobs of the batch
        are in `running`.
        """
        self._admit()
        if not self._model.paged:
            return self._step_of_texts()
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
        return self._finish(ended, rows)

    def _step_of_texts(self) -> list[EmbedJob]:
        """A batch of complete texts, as many as fit. The others wait for the next."""
        most, tokens = self._runner.limits.tokens, 0
        batch: list[Text] = []
        for text in self._running:
            tokens += len(text.ids)
            if batch and tokens > most:
                break
            batch.append(text)
        if not batch:
            return []
        rows = self._runner.embed(make_text_batch([text.ids for text in batch], [text.types for text in batch]))
        if len(rows) == len(batch):
            return self._finish(batch, rows)
        return self._finish(batch, np.split(rows, np.cumsum([len(text.ids) for text in batch])[:-1]))

    def _finish(self, ended: Sequence[Text], rows: Sequence[FloatArray] | FloatArray) -> list[EmbedJob]:
        """Store the results of texts that are complete. Returns the jobs that are."""
        for text, row in zip(ended, rows, strict=True):
            text.job.vectors[text.index] = row.copy()
        self._release(ended.__contains__)
        jobs = dict.fromkeys(text.job for text in ended)
        return [job for job in jobs if len(job.vectors) == len(job.texts)]

    def drop(self, gone: Callable[[EmbedJob], bool]) -> list[EmbedJob]:
        """Remove the jobs for which ``gone`` is true, and return them."""
        jobs = [job for job in dict.fromkeys(text.job for text in (*self._running, *self._waiting)) if gone(job)]
        self._release(lambda text: text.job in jobs)
        self._waiting = deque(text for text in self._waiting if text.job not in jobs)
        return jobs

    @property
    def running(self) -> list[EmbedJob]:
        """The jobs with a text that is being computed."""
        return list(dict.fromkeys(text.job for text in self._running))

    def _admit(self) -> None:
        limits = self._runner.limits
        most = min(limits.sequences, limits.rows) if self._model.paged else limits.sequences
        while self._waiting and len(self._running) < most:
            text = self._waiting[0]
            count = -(-len(text.ids) // self._page_size) if self._model.paged else 0
            if count > len(self._free):
                return
            text.pages = [self._free.pop() for _ in range(count)]
            self._running.append(self._waiting.popleft())

    def _release(self, gone: Callable[[Text], bool]) -> None:
        for text in self._running:
            if gone(text):
                self._free += text.pages
        self._running = [text for text in self._running if not gone(text)]


def matrix(job: EmbedJob) -> FloatArray:
    """The rows of a completed job, in the order of its texts."""
    return np.concatenate([np.atleast_2d(job.vectors[index]) for index in range(len(job.texts))])
