"""The CUDA graphs of a runner's decode steps. A thread captures them in the background, so no step waits for a capture:
until its graph is ready, a step launches the same kernels one by one. The graphs are limited in number and memory; the
least recently used are evicted.

When the cache opens, it captures the graphs of the shortest contexts. When a graph is used for the first time, it
captures those that its sequences will need next: of the next longer context, and of the next larger batch.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .decode_graphs import Bucket, contexts_up_to
from .driver import Arguments, Driver, Launch
from .launches import Launches

MOST_GRAPHS = 128
MOST_GRAPH_BYTES = 512 << 20
# CUDA does not report how much memory a graph takes, so the cache compares the available memory before and after. It is
# allocated in large pieces: single differences vary, but their sum is right. Memory that others allocate meanwhile, for
# example for a model that is being loaded, counts at most as much as a graph can take. Users report 10 KB per kernel
# (github.com/NVIDIA/cccl/pull/3768) and, with a driver of 2021, 63 KB (forums.developer.nvidia.com/t/244901).
MOST_LAUNCH_BYTES = 64 << 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraphStatistics:
    """``held`` graphs, and the device memory that they take. All others count from the start: graphs ``captured``,
    ``evicted`` and ``failed`` to be captured; decode steps ``replayed`` as a graph, and ``launched`` kernel by kernel
    because their graph was not ready.
    """

    held: int
    held_bytes: int
    captured: int
    evicted: int
    failed: int
    replayed: int
    launched: int


@dataclass(slots=True)
class HeldGraph:
    graph: Any
    size_bytes: int
    used: bool = False


@dataclass(slots=True)
class Counts:
    captured: int = 0
    evicted: int = 0
    replayed: int = 0
    launched: int = 0


class GraphCache:
    """``sizes`` and ``longest`` as for `decode_graphs.bucket_of`; ``dims`` are those that are equal for all batches.
    `run` is called by one thread at a time.
    """

    def __init__(
        self,
        driver: Driver,
        plan: str,
        launches: Launches,
        sizes: Sequence[int],
        longest: int,
        dims: Mapping[str, int],
        *,
        most_graphs: int = MOST_GRAPHS,
        most_bytes: int = MOST_GRAPH_BYTES,
    ) -> None:
        self._driver, self._plan, self._dims = driver, plan, dims
        self._launches, self._own_launches = launches, launches.for_another_thread()
        self._sizes, self._contexts = sizes, contexts_up_to(longest)
        self._most_graphs, self._most_bytes = most_graphs, most_bytes
        # Also held while a graph is replayed, so that it is not evicted meanwhile: CUDA requires that calls on one
        # graph do not overlap.
        self._changed = threading.Condition()
        self._held: OrderedDict[Bucket, HeldGraph] = OrderedDict()
        self._failed: set[Bucket] = set()
        self._counts = Counts()
        # Buckets to capture: those that a step needed, then those that may be needed soon. The values are not used.
        self._missing: dict[Bucket, None] = {}
        self._expected: dict[Bucket, None] = {}
        self._capturing = self._closed = False
        with self._changed:
            # The first one that the thread takes is the last one, for one sequence.
            self._expect(Bucket(size, self._contexts[0]) for size in reversed(sizes))
        self._thread = threading.Thread(target=self._capture_all, name="cuda-graphs", daemon=True)
        self._thread.start()

    def run(self, bucket: Bucket) -> None:
        """Submit the launches of a bucket, as a graph if it is ready."""
        with self._changed:
            held = self._held.get(bucket)
            if held is not None:
                self._held.move_to_end(bucket)
                self._driver.replay(held.graph)
                self._counts.replayed += 1
                if not held.used:
                    held.used = True
                    self._expect(self._next_after(bucket))
                return
            self._counts.launched += 1
            if bucket not in self._failed:
                self._missing[bucket] = None
                self._changed.notify_all()
        self._launches.launch(self._plan, bucket.dims(self._dims))

    @property
    def statistics(self) -> GraphStatistics:
        with self._changed:
            counts = self._counts
            return GraphStatistics(
                held=len(self._held),
                held_bytes=self._held_bytes(),
                captured=counts.captured,
                evicted=counts.evicted,
                failed=len(self._failed),
                replayed=counts.replayed,
                launched=counts.launched,
            )

    def settle(self) -> None:
        """Wait until nothing remains to be captured."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._missing or self._expected or self._capturing))

    def close(self) -> None:
        """Stop the thread. The driver frees the graphs when it closes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    # --- what to capture ---

    def _expect(self, buckets: Iterable[Bucket]) -> None:
        for bucket in buckets:
            if bucket not in self._held and bucket not in self._failed:
                self._expected[bucket] = None
        self._changed.notify_all()

    def _next_after(self, bucket: Bucket) -> Iterable[Bucket]:
        for context in [each for each in self._contexts if each > bucket.context][:1]:
            yield bucket._replace(context=context)
        for size in [each for each in self._sizes if each > bucket.sequences][:1]:
            yield bucket._replace(sequences=size)

    # --- the thread ---

    def _capture_all(self) -> None:
        while (found := self._next_bucket()) is not None:
            bucket, needed = found
            try:
                self._capture(bucket, needed)
            # Steps of this bucket launch the same kernels one by one, and raise what is wrong with them.
            except Exception as error:
                log.warning("no CUDA graph for %s: %s", bucket, error)
                with self._changed:
                    self._failed.add(bucket)
            finally:
                with self._changed:
                    self._capturing = False
                    self._changed.notify_all()

    def _next_bucket(self) -> tuple[Bucket, bool] | None:
        """A bucket, and whether a step needed it. None when the cache closes."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._closed or self._missing or self._expected)
                if self._closed:
                    return None
                needed = bool(self._missing)
                # The step that came last tells best which graphs the next steps need.
                bucket, _ = self._missing.popitem() if needed else self._expected.popitem()
                if bucket not in self._held and (needed or not self._is_full()):
                    self._capturing = True
                    return bucket, needed
                self._changed.notify_all()

    def _capture(self, bucket: Bucket, needed: bool) -> None:
        launches = 0

        def submit(launch: Launch) -> None:
            def counted(function: Any, grid: tuple[int, int], threads: int, arguments: Arguments) -> None:
                nonlocal launches
                launches += 1
                launch(function, grid, threads, arguments)

            self._own_launches.launch(self._plan, bucket.dims(self._dims), counted)

        before = self._driver.available_bytes()
        graph = self._driver.capture(submit)
        taken = before - self._driver.available_bytes()
        held = HeldGraph(graph, max(0, min(taken, launches * MOST_LAUNCH_BYTES)))
        with self._changed:
            self._held[bucket] = held
            self._counts.captured += 1
            if not needed:
                self._held.move_to_end(bucket, last=False)
            while len(self._held) > 1 and self._exceeds_limits():
                _, evicted = self._held.popitem(last=False)
                self._counts.evicted += 1
                self._driver.discard(evicted.graph)

    def _exceeds_limits(self) -> bool:
        return len(self._held) > self._most_graphs or self._held_bytes() > self._most_bytes

    def _is_full(self) -> bool:
        return len(self._held) >= self._most_graphs or self._held_bytes() >= self._most_bytes

    def _held_bytes(self) -> int:
        return sum(held.size_bytes for held in self._held.values())
