"""Decode graphs: captured in the background, limited in number and memory, and evicted by last use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.targets.cuda.decode_graphs import Bucket
from nearfar.targets.cuda.driver import Arguments, Driver, Launch
from nearfar.targets.cuda.graph_cache import MOST_LAUNCH_BYTES, GraphCache, GraphStatistics
from nearfar.targets.cuda.launches import Launches

GRAPH_BYTES = 32 << 10
ARGUMENTS = Arguments(np.zeros(1, np.uint64))


class CountingDriver:
    """A graph is represented by the dims of the bucket that it launches. Captures wait while ``open`` is cleared."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.graphs: list[Any] = []
        self.capturing_threads: set[str] = set()
        self.ran: list[tuple[str, int, int]] = []
        self.fails: Callable[[Any], bool] = lambda _: False
        # The bytes that others allocate during each capture.
        self.others = 0

    def available_bytes(self) -> int:
        return (1 << 40) - (GRAPH_BYTES + self.others) * len(self.graphs)

    def capture(self, submit: Callable[[Launch], None]) -> Any:
        graph: list[Any] = []
        self.capturing_threads.add(threading.current_thread().name)
        submit(lambda function, *_: graph.append(function))
        assert self.open.wait(30)
        if self.fails(graph[0]):
            raise DeviceError("CUDA: CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        self.graphs.append(graph)
        return graph

    def replay(self, graph: Any) -> None:
        assert any(graph is each for each in self.graphs)
        self.ran += [("graph", *each) for each in graph]

    def discard(self, graph: Any) -> None:
        self.graphs = [each for each in self.graphs if each is not graph]


class OneLaunch:
    """Launches of a plan with one kernel, which is represented by the sequences and the context that it is launched
    for.
    """

    def __init__(self, driver: CountingDriver) -> None:
        self._driver = driver

    def for_another_thread(self) -> OneLaunch:
        return self

    def launch(self, plan: str, dims: Mapping[str, int], launch: Launch | None = None) -> None:
        assert (plan, dims["P"]) == ("generate", 8)
        function = dims["S"], dims["T"]
        if launch is None:
            self._driver.ran.append(("kernels", *function))
        else:
            launch(function, (1, 1), 32, ARGUMENTS)


@pytest.fixture
def driver() -> CountingDriver:
    return CountingDriver()


@contextmanager
def opened(
    driver: CountingDriver, sizes: tuple[int, ...] = (1, 2), most_graphs: int = 100, most_bytes: int = 1 << 30
) -> Iterator[GraphCache]:
    cache = GraphCache(
        cast(Driver, driver),
        "generate",
        cast(Launches, OneLaunch(driver)),
        sizes,
        1000,
        {"P": 8, "PH": 0},
        most_graphs=most_graphs,
        most_bytes=most_bytes,
    )
    yield cache
    driver.open.set()
    cache.close()


def test_a_step_does_not_wait_for_a_capture(driver: CountingDriver) -> None:
    driver.open.clear()
    with opened(driver) as cache:
        cache.run(Bucket(2, 256))
        assert driver.ran == [("kernels", 2, 256)]
        driver.open.set()
        cache.settle()
        cache.run(Bucket(2, 256))
        assert driver.ran[1:] == [("graph", 2, 256)]
        assert driver.capturing_threads == {"cuda-graphs"}


def test_graphs_of_short_contexts_come_first_and_then_those_that_follow_a_used_one(driver: CountingDriver) -> None:
    with opened(driver, (1, 2, 4)) as cache:
        cache.settle()
        assert [graph[0] for graph in driver.graphs] == [(1, 256), (2, 256), (4, 256)]
        cache.run(Bucket(2, 256))
        cache.run(Bucket(2, 256))
        cache.settle()
        assert [graph[0] for graph in driver.graphs[3:]] == [(2, 512)]
        for _ in range(2):
            cache.run(Bucket(2, 1000))
            cache.settle()
        # The last context is the longest one. A larger batch of this context follows.
        assert [graph[0] for graph in driver.graphs[4:]] == [(2, 1000), (4, 1000)]
        expected = GraphStatistics(
            held=6, held_bytes=6 * GRAPH_BYTES, captured=6, evicted=0, failed=0, replayed=3, launched=1
        )
        assert cache.statistics == expected


@pytest.mark.parametrize(("most_graphs", "most_bytes"), [(2, 1 << 30), (100, 2 * GRAPH_BYTES)])
def test_the_least_recently_used_graph_is_evicted(driver: CountingDriver, most_graphs: int, most_bytes: int) -> None:
    with opened(driver, most_graphs=most_graphs, most_bytes=most_bytes) as cache:
        cache.settle()
        # The cache expects (1, 512), for which it evicts nothing.
        cache.run(Bucket(1, 256))
        cache.settle()
        assert [graph[0] for graph in driver.graphs] == [(1, 256), (2, 256)]
        cache.run(Bucket(1, 512))
        cache.settle()
        assert [graph[0] for graph in driver.graphs] == [(1, 256), (1, 512)]
        cache.run(Bucket(1, 256))
        cache.run(Bucket(2, 512))
        cache.settle()
        assert [graph[0] for graph in driver.graphs] == [(1, 256), (2, 512)]
        statistics = cache.statistics
        assert (statistics.held, statistics.held_bytes, statistics.evicted) == (2, 2 * GRAPH_BYTES, 2)


def test_a_model_that_is_loaded_during_a_capture_does_not_evict_all_graphs(driver: CountingDriver) -> None:
    driver.others = 10 << 30
    with opened(driver) as cache:
        cache.settle()
        assert cache.statistics.held == 2
        assert cache.statistics.held_bytes == 2 * MOST_LAUNCH_BYTES


def test_steps_go_on_without_a_graph_that_cannot_be_captured(driver: CountingDriver) -> None:
    driver.fails = lambda kernel: kernel[0] == 2
    with opened(driver) as cache:
        for _ in range(3):
            cache.run(Bucket(2, 256))
            cache.settle()
        assert driver.ran == [("kernels", 2, 256)] * 3
        cache.run(Bucket(1, 256))
        assert driver.ran[3:] == [("graph", 1, 256)]
        assert cache.statistics.failed == 1


def test_closing_does_not_wait_for_the_graphs_that_remain(driver: CountingDriver) -> None:
    driver.open.clear()
    with opened(driver, tuple(range(1, 100))) as cache:
        closing = threading.Thread(target=cache.close)
        closing.start()
        # It returns as soon as the cache is closed, at which time at most one capture has begun.
        cache.settle()
        driver.open.set()
        closing.join(30)
        assert not closing.is_alive()
    assert len(driver.graphs) <= 1
