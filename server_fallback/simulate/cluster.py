"""Cluster: workers, and which of them gets a request.

Whole workers compute prompts and answers. With prefill apart, a prefill worker computes most of a long prompt, and its
keys and values go to the decode worker that answers, while it computes the rest. `Replicas` and `PrefillWorker` choose,
as in a gateway of `nearfar serve` before several workers. In a mixed pool, `Pools` chooses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

from ..executors.apart import TRANSFERS_AT_ONCE
from ..executors.circuit import Circuit
from ..executors.prefill_workers import BLOCK_TOKENS, PrefillWorker
from ..executors.replicas import MOST_BLOCKS, Replicas
from .events import Clock
from .layout import Layout, Store
from .mixed_pool import Member, Pair, Pools
from .network import Link
from .prefixes import BlockImport, PrefixStore
from .request import NEVER, Segment, SimulatedRequest
from .worker import Worker

Action = Callable[[], None]


@dataclass(eq=False)
class Backend:
    """A worker as `Replicas` sees it. ``outstanding`` counts the requests that were sent to it and not answered,
    ``transfers`` those of prompts that are under way to it, and ``held`` those that wait for one of them to end.
    """

    worker: Worker
    link: Link | None = None
    store: PrefixStore | None = None
    reader: Link | None = None
    outstanding: int = 0
    transfers: int = 0
    held: deque[Action] = field(default_factory=deque)
    circuit: Circuit = field(default_factory=Circuit)

    @property
    def url(self) -> str:
        return f"worker {self.worker.number}"


class Cluster:
    """``done`` is called with each answered request, and with each refused one. ``leaps``: see `Worker`.
    ``stored_tokens`` of prompts came from a store.
    """

    def __init__(
        self, clock: Clock, layout: Layout, done: Callable[[SimulatedRequest], None], *, leaps: bool = True
    ) -> None:
        self.layout, self._clock, self._done = layout, clock, done
        self.stored_tokens = 0
        answering = [layout.device] * layout.whole + [layout.decode_device or layout.device] * layout.decode
        devices = [layout.device] * layout.prefill + answering
        self.backends = [Backend(Worker(clock, device, number, leaps=leaps)) for number, device in enumerate(devices)]
        self._context = min(device.context for device in devices)
        prefill, answer = self.backends[: layout.prefill], self.backends[layout.prefill :]
        self._prefill = [PrefillWorker(backend) for backend in prefill]
        self._answer = Replicas(answer)
        self._choices = count(1)
        self.pools: Pools | None = None
        if layout.mixed_pool is not None:
            members = [
                Member(number, "prefill" if number < layout.prefill else "decode", device.cache_tokens)
                for number, device in enumerate(devices)
            ]
            self.pools = Pools(layout.mixed_pool, members)
        for backend in prefill if self.pools is None else self.backends:
            assert layout.link is not None
            backend.link = Link(clock, layout.link)
        # Prompts are computed by these.
        if layout.store is not None:
            self._place_stores(layout.store, prefill or answer)

    def _place_stores(self, store: Store, backends: Sequence[Backend]) -> None:
        page_size = self.layout.device.page_size
        together = PrefixStore(store.tokens * len(backends), page_size) if store.shared else None
        for backend in backends:
            backend.store = together or PrefixStore(store.tokens, page_size)
            backend.reader = Link(self._clock, store.speed)

    @property
    def waiting(self) -> int:
        """Requests that wait for a device."""
        return sum(backend.worker.queue for backend in self.backends)

    def send(self, request: SimulatedRequest) -> None:
        """A request arrives now. As the server does, it refuses a prompt that fills the context, and ends an answer
        that does.
        """
        layout, pools = self.layout, self.pools
        room = self._context - request.prompt_tokens + 1
        if room < 2:
            request.refused = "its prompt fills the context"
            self._done(request)
            return
        request.is_cut = request.output_tokens > room
        request.output_tokens = min(request.output_tokens, room)
        if pools is not None:
            pair = pools.assign(request)
            self._after(self.backends[pair.prefill.number], lambda: self._compute_by_pair(pools, pair, request))
            return
        prefixes = prefixes_of(request.segments)
        if layout.first_token == "prefill" and layout.prefill:
            worker = self._choose_prefill(prefixes, request.prompt_tokens)
            self._after(worker.upstream, lambda: self._compute_first(worker, prefixes, request))
            return
        backend = self._answer.choose(prefixes)
        backend.outstanding += 1
        if layout.prefill:
            self._after(backend, lambda: self._fetch(backend, prefixes, request))
        else:
            self._after(backend, lambda: self._compute_whole(backend, request))

    def _after(self, backend: Backend, action: Action) -> None:
        """When a request has reached a worker's engine."""
        self._clock.at(self._clock.now + backend.worker.device.request_seconds, action)

    # --- prompts and answers on one worker ---

    def _compute_whole(self, backend: Backend, request: SimulatedRequest) -> None:
        self._compute(backend, request, request.output_tokens, lambda: self._answered(backend, request))

    def _compute(self, backend: Backend, request: SimulatedRequest, output: int, ended: Action) -> None:
        """Read what a store has of the prompt, and compute the rest."""
        tokens = request.prompt()
        self._read_store(backend, tokens, lambda: backend.worker.add(request, tokens, output, ended))

    def _read_store(self, backend: Backend, tokens: list[int], then: Action) -> None:
        if backend.store is None or backend.reader is None:
            then()
            return
        held, stored = backend.worker.cached_prefix(tokens), backend.store.find(tokens)
        if stored <= held:
            then()
            return

        def read() -> None:
            self.stored_tokens += max(0, backend.worker.write_prefix(tokens[:stored]) - held)
            then()

        backend.reader.send((stored - held) * backend.worker.device.token_bytes, read)

    def _answered(self, backend: Backend, request: SimulatedRequest) -> None:
        backend.outstanding -= 1
        if backend.store is not None:
            backend.store.put([*request.prompt(), *[request.number] * request.output_tokens])
        self._done(request)

    # --- the pages of a prompt from a prefill worker ---

    def _choose_prefill(self, prefixes: Sequence[bytes], tokens: int) -> PrefillWorker[Backend]:
        best = min(self._prefill, key=lambda worker: (worker.wait(prefixes, tokens), worker.chosen))
        best.chosen = next(self._choices)
        return best

    def _fetch(self, backend: Backend, prefixes: Sequence[bytes], request: SimulatedRequest) -> None:
        """Let a prefill worker compute a long prompt that is in no cache, and then answer."""
        tokens, worker = request.prompt(), backend.worker
        page_size = worker.device.page_size
        end = (len(tokens) - 1) // page_size * page_size

        def answer() -> None:
            worker.add(request, tokens, request.output_tokens, lambda: self._answered(backend, request))

        def begin() -> None:
            worker.call(look)

        def look() -> None:
            start = worker.cached_prefix(tokens)
            if end - start < self.layout.least_prefill:
                release()
                return
            prefill = self._choose_prefill(prefixes, end - start)
            cost = prefill.wait(prefixes, end - start) - prefill.queued
            prefill.queued += cost
            prefill.remember(prefixes)

            def written() -> None:
                prefill.queued -= cost
                worker.write_prefix(tokens[:end])
                # It looks once more whether all is there.
                worker.call(release)

            blocks = BlockImport(start, end, worker.call, written)
            self._after(prefill.upstream, lambda: self._export(prefill.upstream, request, tokens, blocks))

        def release() -> None:
            answer()
            backend.transfers -= 1
            if backend.held:
                backend.transfers += 1
                backend.held.popleft()()

        if end - worker.cached_prefix(tokens) < self.layout.least_prefill:
            answer()
        elif backend.transfers < TRANSFERS_AT_ONCE:
            backend.transfers += 1
            begin()
        else:
            backend.held.append(begin)

    def _export(self, backend: Backend, request: SimulatedRequest, tokens: list[int], blocks: BlockImport) -> None:
        """Compute a prompt on a prefill worker, and send its blocks as they become full."""
        link, worker = backend.link, backend.worker
        assert link is not None
        left, end = deque(blocks.ends), blocks.ends[-1]
        sent = blocks.start

        def computed(position: int) -> None:
            nonlocal sent
            while left and left[0] <= position:
                link.send((left[0] - sent) * worker.device.token_bytes, blocks.arrived)
                sent = left.popleft()
            if position == end and backend.store is not None:
                backend.store.put(tokens[:end])

        self._read_store(backend, tokens, lambda: worker.export(request, tokens, end, computed))

    # --- the first token from a prefill worker, as in the papers ---

    def _compute_first(
        self, prefill: PrefillWorker[Backend], prefixes: Sequence[bytes], request: SimulatedRequest
    ) -> None:
        prefill.upstream.outstanding += 1
        prefill.queued += request.prompt_tokens
        prefill.remember(prefixes)
        self._compute(prefill.upstream, request, 1, lambda: self._prefilled(prefill, request))

    def _prefilled(self, prefill: PrefillWorker[Backend], request: SimulatedRequest) -> None:
        """A prefill worker has the first token: all else goes to a decode worker."""
        backend = prefill.upstream
        backend.outstanding -= 1
        prefill.queued -= request.prompt_tokens
        if backend.store is not None:
            backend.store.put(request.prompt())
        if request.output_tokens == 1:
            self._done(request)
            return
        target = self._answer.choose(())
        target.outstanding += 1
        self._hand_over(backend, target, request, lambda: self._answered(target, request))

    def _hand_over(self, backend: Backend, target: Backend, request: SimulatedRequest, ended: Action) -> None:
        """Send the keys and values of a prompt with its first token to the worker that computes the others."""
        tokens, device = request.prompt(), backend.worker.device
        full = len(tokens) // device.page_size * device.page_size

        def arrived() -> None:
            target.worker.write_prefix(tokens)
            target.worker.add(request, [*tokens, request.number], request.output_tokens - 1, ended)

        assert request.first != NEVER
        assert backend.link is not None
        backend.link.send(full * device.token_bytes, arrived)

    # --- workers that change roles ---

    def _compute_by_pair(self, pools: Pools, pair: Pair, request: SimulatedRequest) -> None:
        prefill, decode = (self.backends[member.number] for member in pair)

        def begun() -> None:
            pools.prefilled(pair, request)

        def ended() -> None:
            pools.answered(pair, request)
            self._done(request)

        def handed_over() -> None:
            begun()
            if request.output_tokens == 1:
                ended()
            else:
                self._hand_over(prefill, decode, request, ended)

        if prefill is decode:
            prefill.worker.add(request, request.prompt(), request.output_tokens, ended, begun)
        else:
            prefill.worker.add(request, request.prompt(), 1, handed_over)


def prefixes_of(segments: Sequence[Segment]) -> list[bytes]:
    """A digest of each prefix of a prompt that consists of full blocks, as `Replicas` compares them. A prompt of only
    its own text shares none.
    """
    if all(segment.text < 0 for segment in segments):
        return []
    found: list[bytes] = []
    digest, parts, room = b"", list[Segment](), BLOCK_TOKENS
    for text, tokens in segments:
        left = tokens
        while left > 0 and len(found) < MOST_BLOCKS:
            taken = min(left, room)
            parts.append(Segment(text, taken))
            left, room = left - taken, room - taken
            if room == 0:
                digest = blake2b(digest + repr(parts).encode(), digest_size=8).digest()
                found.append(digest)
                parts, room = [], BLOCK_TOKENS
    return found
