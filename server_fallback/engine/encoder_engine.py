"""The encoder engine: computes embeddings and scores of texts, given as token ids, for any number of event loops.

The first half of this file runs on the event loops. `EncoderLoop` is the engine's one thread, which owns the runner:

    texts = batches.admit(queue)          # when a batch is due
    for text, rows in batches.compute(): the job of the text gets its rows
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, NearfarError, RequestError

from .check_request import check_ids, check_token_types
from .config import EngineConfig
from .encode_job import EncodeJob, EncodeRequest, Text
from .encoder_model import EncoderModel
from .engine_thread import EngineThread
from .inbox import Inbox
from .stats import BatchRecord, EngineStats
from .step_runner import EncoderRunner, device_errors
from .text_batches import open_batches
from .text_queue import TextQueue

# The engine gives up a device that fails more often than this without a successful batch in between.
MAX_FAILURES = 3


class EncoderEngine(EngineThread["EncoderLoop"]):
    """It alone calls the runner, and closes it in the end. It has the methods of `TokenEngine` that do not generate."""

    def __init__(self, runner: EncoderRunner, model: EncoderModel, config: EngineConfig | None = None) -> None:
        config = config or EngineConfig()
        limits = runner.limits
        # What a batch of whole texts or the pages hold.
        held = limits.tokens if model.page_size is None else runner.groups[0].pages * model.page_size
        model = replace(model, context=min(model.context, held))
        self.model = model
        self.device = runner.device
        self.activation: str | None = getattr(runner, "activation", None)
        self.max_drafts = 0
        inbox = Inbox(min(limits.sequences, limits.rows) + config.max_waiting)
        super().__init__(EncoderLoop(runner, model, config, inbox), inbox, "nearfar-encoder")

    @property
    def context(self) -> int:
        """The longest text in tokens."""
        return self.model.context

    async def encode(self, request: EncodeRequest) -> FloatArray:
        """The rows of all texts, in their order: (n, E) embeddings, which are not scaled to length 1, or (n, labels)
        scores before their activation; for a model that scores tokens, a row for each token of each text.

        Texts of all callers share batches. A caller that is cancelled leaves the batches at once. Raises RequestError
        for no text, an empty or too long one, or ids outside the vocabulary; QueueFull; DeadlineExceeded; Unavailable;
        DeviceError.
        """
        self._check(request)
        job = EncodeJob(request, time.monotonic())
        # From here on only the engine completes the future; a cancelled caller abandons the job.
        job.result.set_running_or_notify_cancel()
        self._inbox.add(job)
        try:
            return await asyncio.wrap_future(job.result)
        except asyncio.CancelledError:
            job.abandoned = True
            raise

    def _check(self, request: EncodeRequest) -> None:
        model, types = self.model, request.token_types
        if len(request.texts) == 0:
            raise RequestError("there is no input; give at least one text", param="input")
        for index, ids in enumerate(request.texts):
            check_ids(f"input {index}", ids, model.vocab_size, param="input")
            if len(ids) > model.context:
                raise RequestError(
                    f"This model's maximum context length is {model.context} tokens. However, input {index} has "
                    f"{len(ids)} tokens; shorten it",
                    param="input",
                    code="context_length_exceeded",
                )
        check_token_types(request.texts, types or (), model.num_token_types)


class EncoderLoop:
    def __init__(self, runner: EncoderRunner, model: EncoderModel, config: EngineConfig, inbox: Inbox) -> None:
        self._runner, self._inbox, self._batching = runner, inbox, config.batching
        self._batches = open_batches(runner, model, config.batching.max_tokens, config.batching.max_texts)
        self._queue = TextQueue()
        self._record = BatchRecord()
        self._failures = 0

    def run(self) -> None:
        while True:
            wait = self._wait_seconds()
            messages = self._inbox.receive(wait=wait != 0.0, timeout_seconds=wait)
            for job in messages.jobs:
                self._queue.add(job)
            if messages.stop:
                break
            self._turn()

    def end(self, reason: NearfarError, *, failed: bool) -> None:  # noqa: ARG002
        late = self._inbox.receive(wait=False).jobs
        for job in [*self._jobs(), *late]:
            self._end(job, reason)
        self._runner.close()

    def stats(self) -> EngineStats:
        """Callable from any thread."""
        batches = self._record.snapshot()
        unfinished = self._inbox.num_unfinished
        running = len({text.job for text in list(self._batches.running)})
        return EngineStats(
            running=running,
            waiting=max(0, unfinished - running),
            computed_tokens=round(batches.tokens.total),
            steps=batches.tokens.count,
            recoveries=self._record.recoveries,
            batches=batches,
        )

    def _wait_seconds(self) -> float | None:
        """The time until the next batch is due; None until a request comes."""
        if self._batches.running:
            return 0.0
        now = time.monotonic()
        due = self._queue.due(
            now, self._batching, max_tokens=self._batches.max_tokens, max_texts=self._batches.max_texts
        )
        return None if due is None else due - now

    def _turn(self) -> None:
        """End the jobs that nobody awaits or whose deadline has passed, and compute a batch if one is due."""
        now = time.monotonic()
        self._drop([job for job in self._jobs() if job.abandoned], None)
        late = DeadlineExceeded(
            "the deadline passed before all texts were computed; allow more time, or send fewer texts"
        )
        self._drop([job for job in self._jobs() if job.is_late(now)], late)
        if self._wait_seconds() != 0.0:
            return
        texts: list[Text] = []
        try:
            texts = self._batches.admit(self._queue)
            started = time.monotonic()
            self._record.admitted(started - text.job.arrived for text in texts)
            count = len(self._batches.running)
            tokens, done = self._compute()
            self._record.computed(count, tokens, time.monotonic() - started)
            self._failures = 0
        except NearfarError as failure:
            self._drop({text.job for text in self._batches.running}, failure)
            self._failures += 1
            if self._failures > MAX_FAILURES:
                raise
            self._record.recoveries += 1
            return
        wrong = {text.job for text, rows in done if not np.isfinite(rows).all()}
        self._drop(
            wrong, DeviceError(f"{self._runner.device} computed results that are not numbers; try another quantization")
        )
        for text, rows in done:
            text.job.rows[text.index] = rows
            if text.job.done and text.job not in wrong:
                self._end(text.job, None)

    def _compute(self) -> tuple[int, list[tuple[Text, FloatArray]]]:
        with device_errors(self._runner.device):
            return self._batches.compute()

    def _jobs(self) -> list[EncodeJob]:
        """The unfinished ones."""
        return list(dict.fromkeys([*(text.job for text in self._batches.running), *self._queue.jobs]))

    def _drop(self, jobs: Collection[EncodeJob], error: NearfarError | None) -> None:
        if jobs:
            self._batches.drop(jobs)
            self._queue.drop(jobs)
        for job in jobs:
            self._end(job, error)

    def _end(self, job: EncodeJob, error: NearfarError | None) -> None:
        # First, so that a caller who has its result finds the request finished.
        self._inbox.finished()
        if error is not None:
            job.result.set_exception(error)
        elif job.done and not job.abandoned:
            job.result.set_result(job.matrix())
