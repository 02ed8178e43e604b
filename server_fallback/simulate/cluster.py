"""Cluster: workers, and which of them gets a request.

Whole workers compute prompts and answers. With prefill apart, a prefill worker computes a prompt and the first token;
its keys and values then go to a decode worker, which computes the rest. `Replicas` chooses among the workers of a kind,
as it does for `nearfar serve` with several upstreams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from nearfar.compiler.runtime.errors import RequestError

from ..executors.circuit import Circuit
from ..executors.replicas import MOST_BLOCKS, Replicas
from .device import Device
from .events import Clock
from .network import Link, LinkSpeed
from .prefixes import PrefixStore
from .request import Segment, SimulatedRequest
from .worker import Worker

# Of a prompt, as `BLOCK_BYTES` of text in `Replicas`.
BLOCK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Store:
    """A cache of prefixes in the memory of hosts: ``tokens`` for each worker. ``shared``: the workers have one store
    together, which is as large as theirs; otherwise each has its own. ``speed`` is that of reading it.
    """

    tokens: int
    speed: LinkSpeed
    shared: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """``whole`` workers, or ``prefill`` and ``decode`` ones, with a ``link`` from each prefill worker. Raises
    RequestError for anything else.
    """

    device: Device
    whole: int = 0
    prefill: int = 0
    decode: int = 0
    link: LinkSpeed | None = None
    store: Store | None = None
    decode_device: Device | None = None

    def __post_init__(self) -> None:
        if (self.whole > 0) == (self.prefill > 0 and self.decode > 0) or (self.prefill > 0) != (self.decode > 0):
            raise RequestError("cluster: give whole workers, or both prefill and decode workers")
        if self.prefill > 0 and self.link is None:
            raise RequestError("cluster: prefill and decode workers need a link")

    @property
    def gpus(self) -> int:
        decode = self.decode_device or self.device
        return (self.whole + self.prefill) * self.device.gpus + self.decode * decode.gpus

    @property
    def name(self) -> str:
        return f"{self.whole} whole" if self.whole else f"{self.prefill} prefill + {self.decode} decode"


@dataclass(eq=False)
class Backend:
    """A worker as `Replicas` sees it. ``outstanding`` counts the requests that were sent to it and not answered."""

    worker: Worker
    link: Link | None = None
    store: PrefixStore | None = None
    reader: Link | None = None
    outstanding: int = 0
    circuit: Circuit = field(default_factory=Circuit)

    @property
    def url(self) -> str:
        return f"worker {self.worker.number}"


class Cluster:
    """``done`` is called with each answered request. ``leaps``: see `Worker`."""

    def __init__(
        self, clock: Clock, layout: Layout, done: Callable[[SimulatedRequest], None], *, leaps: bool = True
    ) -> None:
        self.layout, self._clock, self._done = layout, clock, done
        self.stored_tokens = 0
        decode_device = layout.decode_device or layout.device
        devices = [layout.device] * (layout.whole + layout.prefill) + [decode_device] * layout.decode
        is_decode = [False] * (layout.whole + layout.prefill) + [True] * layout.decode
        self.backends = [
            Backend(Worker(clock, device, number, self._decoded if decodes else self._first, leaps=leaps))
            for number, (device, decodes) in enumerate(zip(devices, is_decode, strict=True))
        ]
        front = [backend for backend, decodes in zip(self.backends, is_decode, strict=True) if not decodes]
        self._front = Replicas(front)
        self._decode = Replicas([each for each, decodes in zip(self.backends, is_decode, strict=True) if decodes])
        for backend in front:
            backend.link = None if layout.link is None else Link(clock, layout.link)
        if layout.store is not None:
            self._place_stores(layout.store, front)

    def _place_stores(self, store: Store, front: Sequence[Backend]) -> None:
        page_size = self.layout.device.page_size
        together = PrefixStore(store.tokens * len(front), page_size) if store.shared else None
        for backend in front:
            backend.store = together or PrefixStore(store.tokens, page_size)
            backend.reader = Link(self._clock, store.speed)

    @property
    def waiting(self) -> int:
        """Requests that wait for a device."""
        return sum(backend.worker.queue for backend in self.backends)

    def send(self, request: SimulatedRequest) -> None:
        """A request arrives now. As the server does, it refuses a prompt that fills the context, and ends an answer that
        does.
        """
        room = self.layout.device.context - request.prompt_tokens + 1
        if room < 2:
            request.refused = "its prompt fills the context"
            self._done(request)
            return
        request.is_cut = request.output_tokens > room
        request.output_tokens = min(request.output_tokens, room)
        backend = self._front.choose(prefixes_of(request.segments))
        backend.outstanding += 1
        delay = backend.worker.device.request_seconds
        self._clock.at(self._clock.now + delay, lambda: self._begin(backend, request))

    def _begin(self, backend: Backend, request: SimulatedRequest) -> None:
        tokens = request.prompt()
        output = request.output_tokens if self.layout.whole else 1

        def add() -> None:
            backend.worker.add(request, tokens, output)

        if backend.store is None or backend.reader is None:
            add()
            return
        held, stored = backend.worker.cached_prefix(tokens), backend.store.find(tokens)
        if stored <= held:
            add()
            return

        def read() -> None:
            self.stored_tokens += max(0, backend.worker.write_prefix(tokens[:stored]) - held)
            add()

        backend.reader.send((stored - held) * backend.worker.device.token_bytes, read)

    def _first(self, worker: Worker, request: SimulatedRequest) -> None:
        """A whole worker has finished an answer, or a prefill worker has its first token."""
        backend = self.backends[worker.number]
        backend.outstanding -= 1
        tokens = request.prompt()
        if backend.store is not None:
            backend.store.put([*tokens, *[request.number] * request.output_tokens] if self.layout.whole else tokens)
        if self.layout.whole or request.output_tokens == 1:
            self._done(request)
            return
        assert backend.link is not None
        target = self._decode.choose(())
        target.outstanding += 1
        pages = len(tokens) // worker.device.page_size

        def arrived() -> None:
            target.worker.write_prefix(tokens)
            target.worker.add(request, [*tokens, request.number], request.output_tokens - 1)

        backend.link.send(pages * worker.device.page_size * worker.device.token_bytes, arrived)

    def _decoded(self, worker: Worker, request: SimulatedRequest) -> None:
        self.backends[worker.number].outstanding -= 1
        self._done(request)


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
