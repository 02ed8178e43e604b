"""The engine's loop: the one thread that owns scheduler and runner. Answers flow in; their tokens flow out, step by step.

    step = scheduler.next(); future = runner.submit(batch of step)
    for event in scheduler.commit(step, future.result()): publish(event)

Steps are submitted some ahead of the one that is read, so the next batch is prepared while the device works, and no token waits for
the host.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict
from typing import TypeVar

from nearfar.compiler.errors import DeadlineExceeded, DeviceError, NearfarError, Unavailable
from nearfar.compiler.ir.sampling import BIAS, COUNTS, MASK
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray, Output

from .adapters import Adapter, Adapters
from .answer import Answer, News, Outbox, prompt_logprob_of, token_of
from .config import EngineConfig, SchedulerConfig
from .embedder import Embedder, EmbedJob, matrix
from .inbox import Inbox
from .model import TokenModel
from .request import PromptLogprobs
from .resolved_sampling import ResolvedSampling, token_counts
from .scheduler import Scheduler
from .sequence import FINISHED, Sequence
from .speculation import Drafter, Guess
from .stats import Counts, EngineStats
from .step import Event, Step
from .step_batch import step_batch
from .step_runner import StepRunner

T = TypeVar("T")
# A device that fails this often without a step in between that succeeds is given up.
MOST_FAILURES = 3
# Where more than one sequence in so many is stepwise, steps that hold all of them give more tokens than steps that are prepared early.
STEPWISE_SHARE = 8


class EngineLoop:
    def __init__(self, runner: StepRunner, model: TokenModel, config: EngineConfig, inbox: Inbox, drafter: Drafter | None) -> None:
        limits = runner.limits
        self._runner, self._model, self._config, self._inbox = runner, model, config, inbox
        self._embedder = Embedder(runner, model.page_size)
        self.adapters = Adapters(limits.adapters)
        self._drafter = drafter
        self.scheduler = Scheduler(
            SchedulerConfig(
                page_size=model.page_size,
                pages=runner.num_pages,
                max_tokens=limits.tokens,
                max_sequences=min(limits.sequences, limits.rows),
                context=model.context,
                max_rows=limits.rows,
                patience_steps=config.patience_steps,
            )
        )
        self._answers: dict[Sequence, Answer] = {}
        # By adapter and prompt, the sequence that others with the same prompt follow.
        self._leaders: dict[tuple[object, ...], Sequence] = {}
        # What expires at once leaves in the order in which it came here.
        self._deadlines: list[tuple[float, int, Answer]] = []
        self._num_deadlines = 0
        self._open: deque[tuple[Step, Future[Output]]] = deque()
        self._outbox = Outbox()
        self._failures = 0
        # The time that went to the runner in this turn.
        self._away_seconds = 0.0
        self._counts = Counts()

    def run(self) -> None:
        """Until it is told to stop, or the device is given up. What is unanswered then fails."""
        reason: NearfarError = Unavailable("the engine was closed before the answer was complete; try again later")
        try:
            while True:
                letters = self._inbox.take(wait=not self._answers and not self._embedder.busy and not self._open)
                # Calls first: a request that was made after an adapter was unloaded must not begin with it.
                for call in letters.calls:
                    call()
                for answer in letters.arrivals:
                    self._begin(answer)
                for answer in letters.abandoned:
                    self._end(answer, None)
                for job in letters.jobs:
                    self._embedder.add(job)
                if letters.stop:
                    break
                self._turn()
        except NearfarError as error:
            reason = error
        except BaseException as error:
            reason = Unavailable(f"the engine stopped for a fault of its own: {error!r}")
            raise
        finally:
            self._inbox.refuse(reason)
            wait([future for _, future in self._open])
            letters = self._inbox.take(wait=False)
            for answer in [*self._answers.values(), *letters.arrivals]:
                self._end(answer, reason)
            for job in [*self._embedder.drop(lambda _: True), *letters.jobs]:
                self._end_job(job, reason)
            for call in letters.calls:
                call()
            self._send()
            self._runner.close()
            if self._drafter is not None:
                self._drafter.close()

    def stats(self) -> EngineStats:
        """To be asked from any thread."""
        scheduler = self.scheduler
        used = scheduler.pool.size - scheduler.pool.free - scheduler.cache.evictable
        return EngineStats(
            running=self._inbox.num_unfinished if self._model.embeds else len(scheduler.running),
            waiting=scheduler.num_waiting + self._inbox.num_arrivals,
            kv_usage=used / scheduler.pool.size,
            kv_waste=scheduler.unfilled / (used * scheduler.config.page_size) if used > 0 else 0.0,
            preemptions=scheduler.preemptions,
            drafted_tokens=scheduler.drafted,
            accepted_tokens=scheduler.accepted,
            **asdict(self._counts),
        )

    # --- requests --------------------------------------------------------------------------------------------------------------

    def _begin(self, answer: Answer) -> None:
        """Queue a request's sequence."""
        request = answer.request
        if request.adapter is not None:
            try:
                answer.adapter = self.adapters.use(request.adapter)
            except NearfarError as error:
                self._end(answer, error)
                return
        sequence = answer.sequence = Sequence(
            id=answer.id,
            prompt=request.prompt_ids,
            max_tokens=request.max_tokens,
            stop_token_ids=self._model.end_token_ids | request.stop_token_ids,
            priority=request.priority,
            keep=None if request.when_full == "stop" else request.when_full,
            stepwise=request.constraint is not None or request.drafts is not None or self._speculates(answer),
            once=request.drafts is not None,
            untold=answer.num_told,
            part=request.arrival is not None,
            adapter=answer.adapter.key if answer.adapter else None,
            adapter_place=answer.adapter.place if answer.adapter else -1,
        )
        sequence.drafts = list(request.drafts or ())
        self._answers[sequence] = answer
        if sequence.keep is None and len(sequence.prompt) > 1:
            leader = self._leaders.setdefault((sequence.adapter, *request.prompt_ids), sequence)
            if leader is not sequence and leader.priority >= sequence.priority:
                sequence.leader = leader
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, self._num_deadlines, answer))
            self._num_deadlines += 1
            # Answers that ended in time are not to be held until their deadline.
            if len(self._deadlines) > 2 * len(self._answers) + 64:
                self._deadlines = [entry for entry in self._deadlines if not entry[2].ended]
                heapq.heapify(self._deadlines)
        self.scheduler.add(sequence)

    def _speculates(self, answer: Answer) -> bool:
        """See `speculation.py` for why not all do."""
        request = answer.request
        plain = request.constraint is None and request.drafts is None and request.when_full == "stop" and answer.sampling.flags == 0
        return self._drafter is not None and plain

    def _end(self, answer: Answer, news: News | None) -> None:
        """An answer is over, whether or not its sequence is; ``news`` None where nobody reads it any more."""
        if answer.ended:
            return
        answer.ended = True
        if news is not None:
            self._outbox.add(answer, news)
        sequence = answer.sequence
        if sequence is not None:
            del self._answers[sequence]
            if self._drafter is not None:
                self._drafter.forget(sequence)
            self.scheduler.finish(sequence, None)
            key = (sequence.adapter, *sequence.prompt)
            if self._leaders.get(key) is sequence:
                del self._leaders[key]
        if answer.adapter is not None:
            self.adapters.release(answer.adapter)
        self._inbox.finished()

    def _expire(self) -> None:
        while self._deadlines and (self._deadlines[0][2].ended or self._deadlines[0][0] <= time.monotonic()):
            answer = heapq.heappop(self._deadlines)[2]
            count = len(answer.token_ids)
            self._end(answer, DeadlineExceeded(f"the deadline passed after {count} tokens; allow more time, or ask for fewer"))

    # --- adapters --------------------------------------------------------------------------------------------------------------

    def load_adapter(self, name: str, states: Mapping[str, FloatArray], loaded: Future[None]) -> None:
        """Put an adapter's matrices into a free place. Raises nothing: what fails is the future's."""
        adapter: Adapter | None = None
        try:
            adapter = self.adapters.take_place(name)
            for state, values in states.items():
                self._write(state, adapter.place, values)
        except NearfarError as error:
            if adapter is not None:
                self.adapters.give_back(adapter)
            loaded.set_exception(error)
        else:
            self.adapters.add(adapter)
            loaded.set_result(None)

    def unload_adapter(self, name: str, left: Future[None]) -> None:
        """``left`` is done when no answer uses the adapter any more."""
        try:
            self.adapters.remove(name).add_done_callback(lambda _: left.set_result(None))
        except NearfarError as error:
            left.set_exception(error)

    # --- one turn --------------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Keep the device busy, and read the oldest of its steps."""
        started, self._away_seconds = time.perf_counter(), 0.0
        if self._embedder.busy:
            self._embed()
        self._expire()
        while len(self._open) < self._depth() and (step := self._next()) is not None:
            self._open.append((step, self._submit(step)))
        if self._open:
            step, future = self._open.popleft()
            try:
                output = self._away(future.result)
            except NearfarError as error:
                self._recover(step, error)
            else:
                self._failures = 0
                for event in self.scheduler.commit(step, output.next_token_ids.tolist()):
                    self._publish(event, output)
        else:
            assert not self._answers, "sequences wait and none can run"
        self._send()
        self._counts.overhead_seconds += time.perf_counter() - started - self._away_seconds

    def _depth(self) -> int:
        """How many steps may be on their way. A second one has no rows for sequences that must see their last token first."""
        running = self.scheduler.running
        # One that ends with its first sampled row has no token to see.
        stepwise = sum(sequence.stepwise and not sequence.once for sequence in running)
        return 1 if stepwise * STEPWISE_SHARE > len(running) else self._config.lookahead

    def _next(self) -> Step | None:
        """The scheduler's next step, with drafts for those who speculate."""
        if self._drafter is not None and (guesses := self._guesses()):
            started = time.perf_counter()
            try:
                self._drafter.draft(guesses)
            except NearfarError as failure:
                self._drafter.reset()
                self._count_failure(failure)
            self._away_seconds += time.perf_counter() - started
        return self.scheduler.next()

    def _guesses(self) -> list[Guess]:
        """The sequences that may be given drafts now, and how many tokens these could come to."""
        speculation, found = self._config.speculation, []
        assert speculation is not None
        for sequence in self.scheduler.running:
            answer = self._answers[sequence]
            if sequence.in_flight > 0 or sequence.missing > 1 or not self._speculates(answer):
                continue
            # One token comes without a guess.
            most = self._model.context - len(sequence.tokens)
            if sequence.max_tokens is not None:
                most = min(most, sequence.max_tokens - sequence.generated - 1)
            if most > 0:
                found.append(Guess(sequence, answer.sampling, min(most, speculation.tokens)))
        return found

    def _away(self, call: Callable[..., T], *arguments: object) -> T:
        """Call the runner, whose time is not the engine's. Whatever it raises is an error of ours then, mostly a DeviceError."""
        started = time.perf_counter()
        try:
            return call(*arguments)
        except NearfarError:
            raise
        except Exception as error:
            raise DeviceError(f"{self._runner.device} failed: {error!r}") from error
        finally:
            self._away_seconds += time.perf_counter() - started

    def _submit(self, step: Step) -> Future[Output]:
        """Hand a step to the device. What fails in that fails in the future."""
        try:
            for sequence in step.admitted:
                self._prepare_slot(sequence)
            if step.copies:
                self._away(self._runner.copy_pages, step.copies)
            batch = self._batch(step)
            self._counts.steps += 1
            self._counts.computed_tokens += len(batch.token_ids)
            return self._away(self._runner.submit, batch)
        except NearfarError as error:
            failed: Future[Output] = Future()
            failed.set_exception(error)
            return failed

    def _batch(self, step: Step) -> Batch:
        broken: list[tuple[Answer, Exception]] = []
        masked: set[Sequence] = set()
        alternatives = logprobs = False
        for row in step.rows:
            answer = self._answers[row.sequence]
            answer.start()
            if row.told > 0:
                alternatives = logprobs = True
            if not row.sample:
                continue
            alternatives = alternatives or bool(answer.request.logprobs)
            logprobs = logprobs or answer.request.logprobs is not None
            if answer.request.constraint is None:
                continue
            try:
                mask = answer.request.constraint.mask()
            except Exception as error:
                broken.append((answer, error))
            else:
                if mask is not None:
                    masked.add(row.sequence)
                    self._write("token_mask", row.sequence.slot, mask)

        def sampling_of(sequence: Sequence) -> tuple[ResolvedSampling, int]:
            sampling = self._answers[sequence].sampling
            return sampling, sampling.flags | (MASK if sequence in masked else 0)

        batch = step_batch(step, self._model.page_size, sampling_of, alternatives=alternatives, logprobs=logprobs)
        # A constraint that fails takes its own answer with it, and no other; its rows go with the step all the same.
        for answer, failure in broken:
            self._end(answer, failure)
        return batch

    def _prepare_slot(self, sequence: Sequence) -> None:
        """What the device keeps by slot, set for the sequence that comes into it."""
        answer = self._answers[sequence]
        if answer.sampling.flags & COUNTS:
            self._write("token_counts", sequence.slot, token_counts(self._model.vocab_size, answer.request.prompt_ids, answer.token_ids))
        if answer.sampling.flags & BIAS:
            assert answer.sampling.logit_bias is not None
            self._write("logit_bias", sequence.slot, answer.sampling.logit_bias)

    def _write(self, name: str, slot: int, values: Array) -> None:
        self._away(self._runner.write_state, name, slot, values)

    # --- what comes back -------------------------------------------------------------------------------------------------------

    def _publish(self, event: Event, output: Output) -> None:
        answer = self._answers.get(event.sequence)
        # A row that checked drafts may have more tokens than its answer, which a constraint or a failure has ended.
        if answer is None:
            return
        if event.kind == "prompt":
            answer.prompt_logprobs.append(prompt_logprob_of(event, output, self._model.vocab_size))
            if len(answer.prompt_logprobs) == answer.num_told:
                self._outbox.add(answer, PromptLogprobs(tuple(answer.prompt_logprobs)))
            return
        if not answer.token_ids:
            self._counts.prefix_queries += len(answer.request.prompt_ids)
            self._counts.prefix_hits += event.sequence.cached_tokens
        if event.kind == "finished":
            self._end(answer, answer.completion())
        elif event.kind == "failed":
            self._end(answer, DeviceError(f"{self._runner.device} computed logits that are not numbers; try another quantization"))
        else:
            answer.add(event.token_id)
            self._counts.generated_tokens += 1
            self._outbox.add(answer, token_of(event, output, answer.request.logprobs))
            if answer.request.constraint is not None:
                self._constrain(answer, event.token_id)

    def _constrain(self, answer: Answer, token_id: int) -> None:
        constraint, sequence = answer.request.constraint, answer.sequence
        assert constraint is not None
        assert sequence is not None
        try:
            constraint.accept(token_id)
            finished = constraint.finished
        except Exception as error:
            self._end(answer, error)
            return
        if finished and sequence.state != FINISHED:
            self.scheduler.finish(sequence, "stop")
            self._end(answer, answer.completion())

    def _send(self) -> None:
        for answer in self._outbox.send():
            self._end(answer, None)

    def _recover(self, failed: Step, failure: NearfarError) -> None:
        """A step failed: its answers do, and all others start again. Raises where the device fails again and again."""
        # What follows was computed on pages that nobody knows.
        self._away(wait, [future for _, future in self._open])
        self._open.clear()
        for row in failed.rows:
            if row.sequence in self._answers:
                self._end(self._answers[row.sequence], failure)
        self.scheduler.reset()
        self._count_failure(failure)

    def _count_failure(self, failure: NearfarError) -> None:
        self._failures += 1
        if self._failures > MOST_FAILURES:
            raise failure
        self._counts.recoveries += 1

    # --- embeddings ------------------------------------------------------------------------------------------------------------

    def _embed(self) -> None:
        for job in self._embedder.drop(lambda job: job.abandoned):
            self._end_job(job, None)
        try:
            for job in self._away(self._embedder.step):
                self._end_job(job, None)
            self._failures = 0
        except NearfarError as failure:
            affected = self._embedder.running
            for job in self._embedder.drop(affected.__contains__):
                self._end_job(job, failure)
            self._count_failure(failure)

    def _end_job(self, job: EmbedJob, error: NearfarError | None) -> None:
        if error is not None:
            job.result.set_exception(error)
        elif not job.abandoned:
            job.result.set_result(matrix(job))
        self._inbox.finished()
