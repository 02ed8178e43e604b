"""Batches of texts on a runner: of whole texts for models without pages, and in chunks for models with pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from nearfar.compiler.runtime.batch import Chunk, FloatArray, make_batch
from nearfar.compiler.runtime.encoder_batch import make_text_batch
from nearfar.compiler.runtime.errors import RequestError

from .encode_job import EncodeJob, Text
from .encoder_model import EncoderModel
from .step_runner import EncoderRunner
from .text_queue import TextQueue


class TextBatches(Protocol):
    """``running`` are the texts in progress: those of the failed batch after an error. ``max_texts`` and ``max_tokens``
    bound one batch.
    """

    running: list[Text]
    max_texts: int
    max_tokens: int

    def admit(self, queue: TextQueue) -> list[Text]:
        """Take texts from the queue for the next batch, and return them."""

    def compute(self) -> tuple[int, list[tuple[Text, FloatArray]]]:
        """Compute one batch. Returns its number of tokens, and the texts that it completes with their rows."""

    def drop(self, jobs: Collection[EncodeJob]) -> None:
        """Forget the texts of some jobs."""


def open_batches(
    runner: EncoderRunner, model: EncoderModel, max_tokens: int | None, max_texts: int | None
) -> TextBatches:
    """``max_tokens`` and ``max_texts``: None for the runner's limits. A batch of whole texts holds at least the longest
    one. Raises RequestError for a model that scores tokens and has pages.
    """
    limits = runner.limits
    texts = min(limits.sequences, limits.rows, max_texts or limits.sequences)
    tokens = min(limits.tokens, max_tokens or limits.tokens)
    if model.page_size is None:
        return WholeTexts(runner, model, max(tokens, min(model.context, limits.tokens)), texts)
    if model.per_token:
        raise RequestError("this model scores tokens and has pages, which is not supported; use an encoder")
    return ChunkedTexts(runner, model.page_size, tokens, texts)


class WholeTexts:
    """For models in which tokens see later ones, so that a batch holds whole texts. It has no padding."""

    def __init__(self, runner: EncoderRunner, model: EncoderModel, max_tokens: int, max_texts: int) -> None:
        self._runner, self._model = runner, model
        self.max_tokens, self.max_texts = max_tokens, max_texts
        self.running: list[Text] = []

    def admit(self, queue: TextQueue) -> list[Text]:
        tokens = sum(len(text.ids) for text in self.running)
        count = len(self.running)

        def fits(text: Text) -> bool:
            nonlocal tokens, count
            if count == self.max_texts or tokens + len(text.ids) > self.max_tokens:
                return False
            tokens += len(text.ids)
            count += 1
            return True

        taken = queue.take(fits)
        self.running += taken
        return taken

    def compute(self) -> tuple[int, list[tuple[Text, FloatArray]]]:
        texts = self.running
        batch = make_text_batch([text.ids for text in texts], [text.token_types or () for text in texts])
        rows = self._runner.embed(batch)
        self.running = []
        counts = [len(text.ids) if self._model.per_token else 1 for text in texts]
        parts = np.split(rows, np.cumsum(counts)[:-1])
        return sum(len(text.ids) for text in texts), [
            (text, part.copy()) for text, part in zip(texts, parts, strict=True)
        ]

    def drop(self, jobs: Collection[EncodeJob]) -> None:
        self.running = [text for text in self.running if text.job not in jobs]


class ChunkedTexts:
    """For decoders that pool the last token: a long text is computed in several batches, its keys and values are in
    pages, and its recurrent states in a slot. Nothing is cached from one text to the next.
    """

    def __init__(self, runner: EncoderRunner, page_size: int, max_tokens: int, max_texts: int) -> None:
        self._runner, self._page_size = runner, page_size
        self.max_tokens, self.max_texts = max_tokens, max_texts
        self._free = list(range(runner.groups[0].pages))
        self._free_states = list(range(max_texts))
        self.running: list[Text] = []

    def admit(self, queue: TextQueue) -> list[Text]:
        count, pages = len(self.running), len(self._free)

        def fits(text: Text) -> bool:
            nonlocal count, pages
            needed = self._num_pages(len(text.ids))
            if count == self.max_texts or needed > pages:
                return False
            count, pages = count + 1, pages - needed
            return True

        taken = queue.take(fits)
        for text in taken:
            text.pages = [self._free.pop() for _ in range(self._num_pages(len(text.ids)))]
            text.state = self._free_states.pop()
        self.running += taken
        return taken

    def compute(self) -> tuple[int, list[tuple[Text, FloatArray]]]:
        room, chunks, ended = self.max_tokens, list[Chunk](), list[Text]()
        for text in self.running:
            part: Sequence[int] = text.ids[text.computed : text.computed + room]
            if not part:
                break
            room -= len(part)
            is_last = text.computed + len(part) == len(text.ids)
            held = self._num_pages(text.computed + len(part))
            sample, state = [len(part) - 1] if is_last else [], (text.state, text.state)
            chunks.append(Chunk(part, text.computed, text.pages[:held], sample, state=state))
            text.computed += len(part)
            if is_last:
                ended.append(text)
        rows = self._runner.embed(make_batch(chunks, self._page_size))
        self._release(ended)
        return self.max_tokens - room, [(text, row[None].copy()) for text, row in zip(ended, rows, strict=True)]

    def drop(self, jobs: Collection[EncodeJob]) -> None:
        self._release([text for text in self.running if text.job in jobs])

    def _release(self, texts: Collection[Text]) -> None:
        for text in texts:
            self._free += text.pages
            self._free_states.append(text.state)
        self.running = [text for text in self.running if text not in texts]

    def _num_pages(self, tokens: int) -> int:
        return -(-tokens // self._page_size)
