"""An answer: one request's output on its way from the engine's thread to the event loop of the caller."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping
from threading import Lock

from nearfar.compiler.runtime.batch import FloatArray, IntArray
from nearfar.compiler.runtime.runner import Output

from .adapters import Adapter
from .images import ImageName
from .item_queue import Item
from .mask_task import MaskTask
from .request import AnswerEnd, GeneratedToken, TokenLogprob, TokenRequest
from .resolved_sampling import ResolvedSampling
from .sequence import ContextShift, Sequence, SequenceParams
from .stats import RequestRecord
from .step import Event


class Answer:
    """Made on the event loop, which calls ``put`` with its items; all else belongs to the engine's thread. ``id`` is
    its position in the order of arrival, ``image_bytes`` the memory of its images by their names.
    """

    def __init__(
        self,
        id: int,
        request: TokenRequest,
        sampling: ResolvedSampling,
        put: Callable[[Item], None],
        *,
        image_bytes: Mapping[ImageName, int] | None = None,
    ) -> None:
        self.id, self.request, self.sampling, self.put = id, request, sampling, put
        self.image_bytes = image_bytes or {}
        self.loop = asyncio.get_running_loop()
        # Set by the engine's thread when it queues the request.
        self.sequence: Sequence | None = None
        self.adapter: Adapter | None = None
        # What the tower made of its images.
        self.features: dict[ImageName, FloatArray] = {}
        self.mask_task = None if request.constraint is None else MaskTask(self, request.constraint)
        # All tokens of the answer so far, the prompt's with log-probabilities, and the token that ended the answer.
        self.token_ids: list[int] = []
        self.prompt_logprobs: list[GeneratedToken] = []
        self.end_token: GeneratedToken | None = None
        # The mask of its first ``min_tokens`` tokens, made when it is first needed.
        self.no_end: IntArray | None = None
        self.ended = False
        # Its rows have no mask, and of its tokens only the ids are needed.
        self.is_plain = self.mask_task is None and request.min_tokens == 0 and request.logprobs is None
        self._arrived = time.monotonic()
        self._started: float | None = None
        self._first_token: float | None = None

    @property
    def num_prompt_logprobs(self) -> int:
        """How many tokens of the prompt get a log-probability: the first token has none."""
        return min(self.request.prompt_logprobs, len(self.request.prompt_ids) - 1)

    def sequence_params(self, end_token_ids: frozenset[int], *, speculates: bool) -> SequenceParams:
        request = self.request
        return SequenceParams(
            max_tokens=request.max_tokens,
            stop_token_ids=request.stop_token_ids if request.ignore_eos else end_token_ids | request.stop_token_ids,
            last_token_ids=request.last_token_ids,
            context_shift=None if request.when_full == "stop" else ContextShift(request.when_full),
            lockstep=request.constraint is not None or request.drafts is not None or speculates,
            verifies=request.drafts is not None,
            partial_page=request.arrival is not None,
            prompt_logprobs=request.prompt_logprobs,
            adapter=self.adapter.key if self.adapter else None,
            adapter_slot=self.adapter.slot if self.adapter else -1,
            prefill_end=None if request.export is None else request.export.stop,
        )

    def start(self) -> None:
        """Record that a part of it is submitted to the device, for the first time or again."""
        if self._started is None:
            self._started = time.monotonic()

    def add(self, token_id: int) -> None:
        if not self.token_ids:
            self._first_token = time.monotonic()
        self.token_ids.append(token_id)

    def record(self, requests: RequestRecord) -> None:
        """Count it when it ends, however that is: a stop string ends an answer from outside. It counts if it has a
        token.
        """
        if self._started is not None and self._first_token is not None:
            prefill, decode = self._first_token - self._started, time.monotonic() - self._first_token
            requests.ended(len(self.request.prompt_ids), len(self.token_ids), prefill, decode)

    def completion(self) -> AnswerEnd:
        """Its finish reason, once its sequence has ended."""
        sequence, now = self.sequence, time.monotonic()
        assert sequence is not None
        assert sequence.finish_reason is not None
        return AnswerEnd(
            finish_reason=sequence.finish_reason,
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=len(self.token_ids),
            cached_tokens=sequence.cached_tokens,
            queue_seconds=(self._started or now) - self._arrived,
            time_to_first_token_seconds=(self._first_token or now) - self._arrived,
            total_seconds=now - self._arrived,
            end_token=self.end_token,
            drafted_tokens=sequence.drafted,
            accepted_tokens=sequence.accepted,
            passes=sequence.passes,
        )


class Outbox:
    """The items of a step, delivered with one call for each event loop, however many answers they belong to."""

    def __init__(self) -> None:
        self._parcels: dict[asyncio.AbstractEventLoop, list[tuple[Answer, Item]]] = {}
        self._lock = Lock()
        self._lost: list[Answer] = []
        # Processor time spent on delivery, on this thread and on those of the event loops.
        self.delivery_seconds = 0.0

    def add(self, answer: Answer, item: Item) -> None:
        parcel = self._parcels.get(answer.loop)
        if parcel is None:
            parcel = self._parcels[answer.loop] = []
        parcel.append((answer, item))

    def send(self) -> list[Answer]:
        """Deliver what was added. Returns the answers whose event loop is closed, so that nobody waits for them."""
        lost, self._lost = self._lost, []
        if not self._parcels:
            return lost
        started = time.thread_time()
        for loop, parcel in self._parcels.items():
            try:
                loop.call_soon_threadsafe(self._deliver, parcel)
            except RuntimeError:
                lost += [answer for answer, _ in parcel]
        self._parcels = {}
        self._count(started)
        return lost

    def send_now(self, answer: Answer, item: Item) -> None:
        """Deliver an item at once, from any thread, before what is added later."""
        try:
            answer.loop.call_soon_threadsafe(self._deliver, [(answer, item)])
        except RuntimeError:
            self._lost.append(answer)

    def _deliver(self, parcel: list[tuple[Answer, Item]]) -> None:
        """Runs on the event loop."""
        started = time.thread_time()
        for answer, item in parcel:
            answer.put(item)
        self._count(started)

    def _count(self, started: float) -> None:
        with self._lock:
            self.delivery_seconds += time.thread_time() - started


class Deadlines:
    """The deadlines of unfinished answers, earliest first. An answer that has ended is not kept."""

    def __init__(self) -> None:
        # Deadlines with the ids of their answers; those of answers that have ended are dropped later.
        self._heap: list[tuple[float, int]] = []
        self._answers: dict[int, Answer] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, deadline: float, answer: Answer) -> None:
        """``deadline`` is a time of `time.monotonic`."""
        self._answers[answer.id] = answer
        heapq.heappush(self._heap, (deadline, answer.id))
        if len(self._heap) > 2 * len(self._answers) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._answers]
            heapq.heapify(self._heap)

    def remove(self, answer: Answer) -> None:
        """Forget an answer that has ended, if it had a deadline."""
        self._answers.pop(answer.id, None)

    def expired(self, now: float) -> Answer | None:
        """Remove and return an answer whose deadline has passed; None if no deadline has."""
        while self._heap and self._heap[0][0] <= now:
            answer = self._answers.pop(heapq.heappop(self._heap)[1], None)
            if answer is not None:
                return answer
        return None


def generated_token(event: Event, output: Output, logprobs: int | None) -> GeneratedToken:
    """A token with the log-probabilities that were requested. A token's value is the same as that of the alternative
    with its id, though another kernel may have rounded it differently.
    """
    if logprobs is None:
        return GeneratedToken(event.token_id)
    logprob = float(output.token_logprobs[event.sample])
    alternatives: tuple[TokenLogprob, ...] = ()
    if logprobs > 0:
        pairs = zip(
            output.top_token_ids[event.sample].tolist(), output.top_logprobs[event.sample].tolist(), strict=True
        )
        # A small vocabulary has fewer tokens than can be requested.
        alternatives = tuple(TokenLogprob(token_id, value) for token_id, value in list(pairs)[:logprobs])
        logprob = next((each.logprob for each in alternatives if each.token_id == event.token_id), logprob)
    return GeneratedToken(event.token_id, logprob, alternatives)
