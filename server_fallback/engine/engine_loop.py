"""The engine's loop: the one thread that owns the scheduler and the runner.

    step = scheduler.next(); future = runner.submit(batch of step)
    for event in scheduler.commit(step, future.result()): publish(event)

Some steps are submitted before the oldest one is read, so the next batch is prepared while the device works, and the
device never waits for the host to read a token.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, wait
from dataclasses import replace

from nearfar.compiler.runtime.errors import DeadlineExceeded, DeviceError, NearfarError
from nearfar.compiler.runtime.runner import Output

from .adapters import Adapters
from .answer import Answer, Deadlines, Outbox, generated_token
from .config import EngineConfig, scheduler_config
from .drafting import Drafting
from .image_encoder import ImageEncoder, Tower, placed_images
from .inbox import Inbox
from .item_queue import Item
from .mask_task import MaskTask
from .masks import Masks
from .model import TokenModel
from .page_blocks import LayeredRunner
from .page_exports import PageExports
from .prefix_traffic import PrefixTraffic
from .request import GeneratedToken, PromptLogprobs
from .runner_calls import RunnerCalls
from .scheduler import Scheduler
from .sequence import FINISHED, Sequence
from .speculation import Drafter
from .stats import EngineStats, RequestRecord
from .step import Event, Step
from .step_inputs import StepInputs
from .step_runner import StepRunner

# The engine gives up a device that fails more often than this without a successful step in between.
MAX_FAILURES = 3
# If more than one running sequence in this many is in lockstep, steps that hold all sequences give more tokens than
# early steps do.
LOCKSTEP_SHARE = 8
# If only slow masks are being computed, the loop checks for new requests at this interval.
POLL_SECONDS = 0.005


class EngineLoop:
    def __init__(
        self,
        runner: StepRunner,
        model: TokenModel,
        config: EngineConfig,
        inbox: Inbox,
        drafter: Drafter | None,
        masks: Masks,
        tower: Tower | None = None,
    ) -> None:
        limits = runner.limits
        self._runner, self._model, self._config, self._inbox = runner, model, config, inbox
        self.adapters = Adapters(limits.adapters)
        self._drafting = Drafting(drafter, config.speculation, model.context)
        self.scheduler = Scheduler(scheduler_config(limits, runner.groups, model, config.patience_steps))
        self.call = RunnerCalls(runner)
        self._inputs = StepInputs(limits, model, self.call.write_state)
        self._answers: dict[Sequence, Answer] = {}
        # By adapter and prompt: the sequence from whose pages later sequences with the same prompt start.
        self._leaders: dict[tuple[object, ...], Sequence] = {}
        self._deadlines = Deadlines()
        self._masks = masks
        self._images = ImageEncoder(tower, config.image_cache_bytes)
        self._open: deque[tuple[Step, Future[Output]]] = deque()
        self.prefixes = PrefixTraffic(
            self.scheduler.kv,
            self.adapters,
            runner,
            model,
            config.kv_tiers,
            self.call,
            self._open.__len__,
            inbox.resume,
        )
        self._tiers = self.prefixes.tiers
        self._outbox = Outbox()
        self.exports = PageExports(
            self.scheduler,
            self.prefixes.read_parts,
            self._outbox.send_now,
            layered=isinstance(runner, LayeredRunner),
        )
        self._failures = 0
        # Whether the runner computes a step before `submit` returns.
        self._submit_waits = True
        self._counts, self._requests = EngineStats(), RequestRecord()

    def run(self) -> None:
        while True:
            is_idle = not (self._answers or self._open or self._masks.pending or self._images.waiting)
            is_idle = is_idle and not self._tiers.is_due
            if is_idle:
                self._send()
            messages = self._inbox.receive(wait=is_idle)
            # Calls first: a request that arrived after an adapter was unloaded must not start with it.
            for call in messages.calls:
                call()
            for answer in messages.arrivals:
                self._begin(answer)
            for answer in messages.abandoned:
                self._end(answer, None)
            if messages.stop:
                break
            self._turn()

    def end(self, reason: NearfarError, *, failed: bool) -> None:
        wait([future for _, future in self._open])
        messages = self._inbox.receive(wait=False)
        waiting = [*(task.owner for task in self._masks.pending), *self._images.waiting, *messages.arrivals]
        for answer in [*self._answers.values(), *waiting, *self.prefixes.fetching]:
            self._end(answer, reason)
        for call in messages.calls:
            call()
        self._send()
        self._tiers.close(stores=not failed)
        self._runner.close()
        self._drafting.close()
        self._masks.close()

    def stats(self) -> EngineStats:
        """Callable from any thread."""
        scheduler, kv = self.scheduler, self.scheduler.kv
        used = [pool.size - pool.free - len(pool.idle) for pool in kv.pages]
        return replace(
            self._counts,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting)
            + self._inbox.num_arrivals
            + self._masks.num_first
            + len(self._images.waiting)
            + len(self.prefixes.fetching),
            kv_usage=max(count / pool.size for count, pool in zip(used, kv.pages, strict=True)),
            kv_waste=kv.unfilled(list(scheduler.running)) / (used[0] * kv.page_size) if used[0] > 0 else 0.0,
            state_snapshots=len(kv.states.nodes) if kv.states is not None else 0,
            state_hits=kv.states.hits if kv.states is not None else 0,
            image_cache_bytes=self._images.retained_bytes,
            image_queries=self._images.queries,
            image_hits=self._images.hits,
            preemptions=scheduler.preemptions,
            tiers=self._tiers.stats(),
            drafted_tokens=scheduler.drafted,
            accepted_tokens=scheduler.accepted,
            overhead_seconds=self._counts.overhead_seconds + self._outbox.delivery_seconds,
            imported_tokens=self.prefixes.imported_tokens,
            imported_bytes=self.prefixes.imported_bytes,
            exported_tokens=self.exports.tokens,
            exported_bytes=self.exports.bytes,
            requests=self._requests.snapshot(),
            page_size=kv.page_size,
            num_pages=kv.pages[0].size,
            max_adapters=self.adapters.num_slots,
            running_adapters=self.adapters.of(list(scheduler.running)),
            waiting_adapters=self.adapters.of(list(scheduler.waiting)),
        )

    # --- requests ---

    def _begin(self, answer: Answer) -> None:
        """Start an answer. Its sequence waits for the features of its images, then for the first mask of its
        constraint, before it is queued.
        """
        request = answer.request
        if request.adapter is not None:
            try:
                answer.adapter = self.adapters.use(request.adapter)
            except NearfarError as error:
                self._end(answer, error)
                return
        if request.deadline is not None:
            self._deadlines.add(request.deadline, answer)
        if not request.images or self._images.begin(answer):
            self._begin_text(answer)

    def _begin_text(self, answer: Answer) -> None:
        if answer.mask_task is None:
            self._queue(answer)
        else:
            self._masks.post([answer.mask_task])

    def _queue(self, answer: Answer) -> None:
        """Queue an answer's sequence, once what the tiers have of its prompt is in the prefix cache."""
        if answer.request.images:
            # From here on, features replace the pixels.
            answer.request = replace(answer.request, images=placed_images(answer))
        self.prefixes.fetch(answer, lambda: self._begin_sequence(answer))

    def _begin_sequence(self, answer: Answer) -> None:
        request = answer.request
        params = answer.sequence_params(self._model.end_token_ids, speculates=self._drafting.speculates(answer))
        sequence = answer.sequence = Sequence(
            answer.id,
            request.prompt_ids,
            params,
            request.priority,
            client=request.client,
            resumes=request.answered > 0,
            images=request.images,
        )
        sequence.drafts = list(request.drafts or ())
        self._answers[sequence] = answer
        if params.context_shift is None and params.prefill_end is None and len(sequence.prompt) > 1:
            leader = self._leaders.setdefault((params.adapter, *sequence.prompt_keys), sequence)
            if leader is not sequence and leader.priority >= sequence.priority:
                sequence.leader = leader
        self.scheduler.add(sequence)
        if request.export is not None:
            self.exports.begin(answer, sequence)

    def _end(self, answer: Answer, item: Item | None) -> None:
        """End an answer with a last item, and its sequence if that is not finished; ``item`` None if nobody reads the
        answer.
        """
        if answer.ended:
            return
        answer.ended = True
        answer.record(self._requests)
        self._deadlines.remove(answer)
        if item is not None:
            self._outbox.add(answer, item)
        if answer.mask_task is not None:
            self._masks.cancel(answer.mask_task)
            # They refer to each other, so they would both be kept until the garbage collector runs, with the parser's
            # states.
            answer.mask_task = None
        self._images.cancel(answer)
        self.exports.forget(answer)
        self.prefixes.fetching.discard(answer)
        sequence = answer.sequence
        if sequence is not None:
            if not isinstance(item, NearfarError):
                self.prefixes.store(answer, ends=True)
            self._tiers.forget(sequence)
            del self._answers[sequence]
            self._drafting.forget(sequence)
            self.scheduler.finish(sequence, None)
            key = (sequence.params.adapter, *sequence.prompt_keys)
            if self._leaders.get(key) is sequence:
                del self._leaders[key]
        if answer.adapter is not None:
            self.adapters.release(answer.adapter)
        self._inbox.finished(answer)

    def _expire(self) -> None:
        while (answer := self._deadlines.expired(time.monotonic())) is not None:
            count = len(answer.token_ids)
            self._end(
                answer,
                DeadlineExceeded(f"the deadline passed after {count} tokens; allow more time, or request fewer tokens"),
            )

    # --- one turn ---

    def _turn(self) -> None:
        """Submit steps ahead, deliver what the last turn read, then read the oldest step."""
        started, self.call.other_seconds = time.perf_counter(), 0.0
        self._expire()
        if self._masks.pending:
            self._collect_masks()
        while len(self._open) < self._depth() and (step := self._next()) is not None:
            self._open.append((step, self._submit(step)))
        self._tiers.drain(len(self._open))
        self._send()
        if self._open:
            step, future = self._open.popleft()
            try:
                output = self.call(future.result)
            except NearfarError as error:
                answers = (self._answers.get(row.sequence) for row in step.rows)
                self._recover([answer for answer in answers if answer is not None], error)
            else:
                self._failures = 0
                self._tiers.step_succeeded()
                self._publish(self.scheduler.commit(step, output.next_token_ids.tolist()), output)
        elif self._masks.pending:
            self._collect_masks(POLL_SECONDS)
        else:
            assert self.exports or not self._answers, "sequences wait and none can run"
        if self.exports and not self._export() and not self._open:
            # All of them wait until their blocks are taken.
            self._send()
            self._inbox.wait(POLL_SECONDS)
        if self._images.is_due(others_run=bool(self.scheduler.running)):
            self._encode_images()
        self._counts.overhead_seconds += time.perf_counter() - started - self.call.other_seconds

    def _depth(self) -> int:
        """How many steps may be open. A second one has no rows for sequences in lockstep."""
        running = self.scheduler.running
        # A round of verification ends with its first sampled row and has no further one to wait for.
        lockstep = sum(
            sequence.params.lockstep and not sequence.params.verifies and not sequence.is_held for sequence in running
        )
        alone = self._model.gathers or lockstep * LOCKSTEP_SHARE > len(running)
        return 1 if alone else self._config.lookahead

    def _next(self) -> Step | None:
        """The scheduler's next step, with drafts for speculating answers."""
        if guesses := self._drafting.guesses(self.scheduler.running, self._answers):
            self._send()
            started = time.perf_counter()
            if not self._drafting.draft(guesses):
                self._counts.recoveries += 1
            self.call.other_seconds += time.perf_counter() - started
        return self.scheduler.next()

    def _submit(self, step: Step) -> Future[Output]:
        """Submit a step to the device. Errors go to the future."""
        self._tiers.flush_evicted(len(self._open))
        try:
            for group, pairs in enumerate(step.copies):
                if pairs:
                    self.call(self._runner.copy_pages, pairs, group)
            batch = self._inputs.batch(step, self._answers)
            self._counts.steps += 1
            self._counts.computed_tokens += len(batch.token_ids)
            self._requests.step(len(batch.token_ids))
            if self._submit_waits:
                self._send()
            future: Future[Output] = self.call(self._runner.submit, batch)
            self._submit_waits = future.done()
            self.exports.submitted(step)
            return future
        except NearfarError as error:
            failed: Future[Output] = Future()
            failed.set_exception(error)
            return failed

    # --- pages for other servers ---

    def _export(self) -> bool:
        """Read pages of the prompts that are exported, and deliver those of steps that are done. False if there are
        none.
        """
        steps = [step for step, _ in self._open]
        try:
            self.exports.submitted(steps[-1] if steps else None)
            return self.exports.committed(steps, self._exported)
        except NearfarError as error:
            self._recover(self.exports.answers, error)
            return True

    def _exported(self, answer: Answer) -> None:
        self._count_prefix(answer)
        self._end(answer, answer.completion())

    def _count_prefix(self, answer: Answer) -> None:
        """Count what an answer has used of the prefix cache."""
        assert answer.sequence is not None
        self._counts.prefix_queries += len(answer.request.prompt_ids)
        self._counts.prefix_hits += answer.sequence.cached_tokens

    # --- reading a step ---

    def _publish(self, events: list[Event], output: Output) -> None:
        tasks: list[MaskTask[Answer]] = []
        for event in events:
            answer = self._answers.get(event.sequence)
            # A row with drafts may return more tokens than its answer needs, because a constraint or a failure has
            # ended the answer.
            if answer is None:
                continue
            if event.kind == "token" and answer.token_ids and answer.is_plain:
                # As below, for nearly all tokens.
                answer.token_ids.append(event.token_id)
                self._counts.generated_tokens += 1
                self._outbox.add(answer, GeneratedToken(event.token_id))
                continue
            if event.kind == "prompt_logprob":
                answer.prompt_logprobs.append(generated_token(event, output, answer.request.prompt_alternatives))
                if len(answer.prompt_logprobs) == answer.num_prompt_logprobs:
                    self._outbox.add(answer, PromptLogprobs(tuple(answer.prompt_logprobs)))
                continue
            if not answer.token_ids:
                self._count_prefix(answer)
            if event.kind == "token":
                is_first = not answer.token_ids
                answer.add(event.token_id)
                if is_first:
                    self.prefixes.store(answer, ends=False)
                self._counts.generated_tokens += 1
                self._outbox.add(answer, generated_token(event, output, answer.request.logprobs))
                if answer.mask_task is not None:
                    answer.mask_task.advance(event.token_id, is_last=event.sequence.state == FINISHED)
                    self.scheduler.hold(event.sequence)
                    tasks.append(answer.mask_task)
            elif event.kind == "finished":
                if event.token_id >= 0:
                    answer.end_token = generated_token(event, output, answer.request.logprobs)
                # If its last token is in this step too, it ends once its constraint has accepted that.
                if not event.sequence.is_held:
                    self._end(answer, answer.completion())
            else:
                self._end(
                    answer,
                    DeviceError(
                        f"{self._runner.device} computed logits that are not numbers; try another quantization"
                    ),
                )
        if tasks:
            self._masks.post(tasks)

    def _collect_masks(self, wait_seconds: float | None = None) -> None:
        """Let the answers continue whose masks are ready; see `MaskPool.collect`. A constraint that fails ends its own
        answer only.
        """
        done, over_budget = self._masks.collect(wait_seconds)
        for task in done:
            answer, sequence = task.owner, task.owner.sequence
            if task.error is not None:
                self._end(answer, task.error)
            elif sequence is not None and (task.finished or sequence.state == FINISHED):
                if task.is_complete and sequence.finish_reason == "length":
                    sequence.finish_reason = "stop"
                self.scheduler.finish(sequence, "stop")
                self._end(answer, answer.completion())
            elif task.is_over_budget():
                self._end(answer, task.over_budget())
            elif sequence is None:
                self._queue(answer)
            else:
                self.scheduler.release(sequence)
        for task in over_budget:
            self._end(task.owner, task.over_budget())

    def _send(self) -> None:
        """Deliver the published items. Waking an event loop lets it run, so the outbox measures processor time."""
        started = time.perf_counter()
        for answer in self._outbox.send():
            self._end(answer, None)
        self.call.other_seconds += time.perf_counter() - started

    def _encode_images(self) -> None:
        """Compute the features of a few images, after the steps that are open."""
        self._send()
        images = self._images.next()
        for answer in self._images.waiting_for(images):
            answer.start()
        try:
            rows = self.call(self._images.encode, images)
        except NearfarError as error:
            self._recover(self._images.waiting_for(images), error)
        else:
            for answer in self._images.add(images, rows):
                self._begin_text(answer)

    def _recover(self, failed: list[Answer], failure: NearfarError) -> None:
        """Work of the device failed: its answers fail with it, and all others start again. Raises if the device fails
        again and again.
        """
        # The steps that follow were computed on pages with unknown contents.
        self.call(wait, [future for _, future in self._open])
        self._open.clear()
        self._tiers.drop()
        for answer in failed:
            self._end(answer, failure)
        self.scheduler.reset()
        self.exports.reset()
        self._failures += 1
        if self._failures > MAX_FAILURES:
            raise failure
        self._counts.recoveries += 1
