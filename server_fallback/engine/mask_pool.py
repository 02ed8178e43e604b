"""The threads that compute the masks of constrained answers, so that a slow grammar delays no answer but its own.

A constraint's calls cannot be interrupted, but xgrammar releases the GIL while it computes. An answer whose last mask
was quick goes to a quick thread, and the engine waits a little for that one. Any other answer goes to slow threads,
least used time first; the engine never waits for these. A quick thread that meets a slow mask becomes a slow one, and
another quick thread replaces it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from threading import Condition, Lock, Thread, get_ident, get_native_id
from typing import Generic

from .mask_task import MaskTask, Owner
from .masks import SavedWaits

# An answer is quick if its last run took at most this much processor time. The first mask does not count: later ones
# are quicker.
QUICK_SECONDS = 0.002
# A quick thread that works on one task for longer than this becomes a slow one.
STUCK_SECONDS = 0.01
# A second quick thread is no faster, because it contends for the GIL. Slow masks get at most a quarter of a small
# machine's processors.
NUM_QUICK, NUM_SLOW = 1, 2 if (os.cpu_count() or 1) >= 8 else 1
# The niceness of slow threads on Linux, from 0 to 19: the device's threads wait for each other in each step, so one
# that waits for a processor delays them all.
ADDED_NICENESS = 10
# Beyond this, stuck threads are not replaced until some of them end.
MAX_THREADS = 8
# The wall time of a shorter task counts as its processor time.
UNTIMED_SECONDS = 0.001
# A thread that returns to Python while the process ends would abort it. A mask that takes longer than this is unlikely
# to return just then.
CLOSE_SECONDS = 2.0


class MaskPool(Generic[Owner]):
    """Implements `Masks`. Threads start when they are first needed; they call ``on_return`` when a task is done."""

    def __init__(self, max_wait_seconds: float, on_return: Callable[[], None] = lambda: None) -> None:
        self.pending: set[MaskTask[Owner]] = set()
        self._waits = SavedWaits(max_wait_seconds)
        self._on_return = on_return
        # The lock guards everything below.
        self._lock = Lock()
        self._quick_posted, self._slow_posted, self._returned = (Condition(self._lock) for _ in range(3))
        self._quick: deque[MaskTask[Owner]] = deque()
        self._slow: list[MaskTask[Owner]] = []
        self._done: list[MaskTask[Owner]] = []
        self._threads: set[_MaskThread[Owner]] = set()
        self._waits_for_any = self._closed = False

    def post(self, tasks: Iterable[MaskTask[Owner]]) -> None:
        with self._lock:
            for task in tasks:
                self.pending.add(task)
                if task.last_seconds <= QUICK_SECONDS:
                    self._quick.append(task)
                    self._quick_posted.notify()
                else:
                    self._slow.append(task)
                    self._slow_posted.notify()
            self._start_threads()

    def collect(self, wait_seconds: float | None = None) -> tuple[list[MaskTask[Owner]], list[MaskTask[Owner]]]:
        with self._lock:
            over_budget = self._check_running()
            if wait_seconds is None:
                self._wait_for_quick()
                over_budget = self._check_running()
            else:
                self._waits_for_any = True
                self._returned.wait_for(lambda: self._done, wait_seconds)
                self._waits_for_any = False
            done, self._done = self._done, []
        self.pending.difference_update(done)
        # One of the latter may have ended since.
        return done, [task for task in over_budget if task in self.pending]

    def cancel(self, task: MaskTask[Owner]) -> None:
        """Drop a task. If it is running, its thread drops it at the end."""
        if task not in self.pending:
            return
        self.pending.remove(task)
        with self._lock:
            task.is_cancelled = True
            for tasks in (self._quick, self._slow, self._done):
                if task in tasks:
                    tasks.remove(task)

    @property
    def num_first(self) -> int:
        return sum(task.is_first for task in self.pending.copy())

    def close(self) -> None:
        """End the threads. A thread that works on a task ends after it; this method waits for it briefly."""
        with self._lock:
            self._closed = True
            self._quick.clear()
            self._slow.clear()
            self._quick_posted.notify_all()
            self._slow_posted.notify_all()
            self._returned.wait_for(lambda: not self._threads, CLOSE_SECONDS)
        self.pending.clear()
        self._on_return = lambda: None

    @property
    def _num_slow(self) -> int:
        """The number of slow threads, without those whose task nobody waits for any more."""
        return sum(thread.is_slow and not thread.is_lost for thread in self._threads)

    @property
    def _has_quick(self) -> bool:
        return bool(self._quick) or any(thread.task is not None and not thread.is_slow for thread in self._threads)

    def _wait_for_quick(self) -> None:
        now = time.perf_counter()
        until = self._waits.begin(now)
        while self._has_quick and now < until:
            self._returned.wait(min(STUCK_SECONDS, until - now))
            self._check_running()
            now = time.perf_counter()
        self._waits.end(now)

    def _check_running(self) -> list[MaskTask[Owner]]:
        """Replace quick threads that are stuck. Returns the tasks over their budget."""
        over_budget = []
        for thread in self._threads:
            if thread.task is None:
                continue
            running = thread.running_seconds
            if running > STUCK_SECONDS and not thread.is_slow:
                thread.become_slow()
            if thread.task.is_over_budget(running) and not thread.task.is_cancelled:
                over_budget.append(thread.task)
        self._start_threads()
        return over_budget

    def _start_threads(self) -> None:
        num_quick = sum(not thread.is_slow for thread in self._threads)
        missing_quick, missing_slow = (
            min(NUM_QUICK - num_quick, len(self._quick)),
            min(NUM_SLOW - self._num_slow, len(self._slow)),
        )
        for is_slow, count in ((False, missing_quick), (True, missing_slow)):
            for _ in range(min(count, MAX_THREADS - len(self._threads))):
                thread = _MaskThread[Owner](self._work, is_slow=is_slow)
                self._threads.add(thread)
                thread.start()

    def _work(self, thread: _MaskThread[Owner]) -> None:
        """The loop of a thread, until it is not needed any more."""
        while True:
            with self._lock:
                self._return(thread)
                if not self._assign(thread):
                    self._threads.remove(thread)
                    self._returned.notify()
                    return
            thread.run()

    def _return(self, thread: _MaskThread[Owner]) -> None:
        task = thread.task
        if task is None:
            return
        thread.end(task)
        if not task.is_cancelled:
            self._done.append(task)
            self._on_return()
        if self._waits_for_any or not self._has_quick:
            self._returned.notify()

    def _assign(self, thread: _MaskThread[Owner]) -> bool:
        """Wait for a task for a thread. False if the pool is closed or has too many slow threads, because quick ones
        became slow.
        """
        while not self._closed:
            if not thread.is_slow:
                if self._quick:
                    thread.begin(self._quick.popleft())
                    return True
                self._quick_posted.wait()
                thread.wake()
            elif self._num_slow > NUM_SLOW:
                return False
            elif self._slow:
                task = min(self._slow, key=lambda task: task.seconds)
                self._slow.remove(task)
                thread.begin(task)
                return True
            else:
                self._slow_posted.wait()
                thread.wake()
        return False


class _MaskThread(Generic[Owner]):
    """A thread, and the ``task`` that it works on. All methods but `start` and `run` are called under the pool's
    lock.
    """

    def __init__(self, work: Callable[[_MaskThread[Owner]], None], *, is_slow: bool) -> None:
        self.is_slow = is_slow
        self.task: MaskTask[Owner] | None = None
        self._work = work
        self._native_id: int | None = None
        # When the task began in wall time; the thread's processor time then, or a little before.
        self._began = self._processor_began = 0.0
        self._read_processor: Callable[[], float] = time.perf_counter

    def start(self) -> None:
        # A daemon, because the process must be able to end while a mask is computed.
        Thread(target=self._run, name="nearfar-masks", daemon=True).start()

    def become_slow(self) -> None:
        """Yield the processor to others from now on."""
        self.is_slow = True
        if sys.platform == "linux" and self._native_id is not None:
            os.setpriority(os.PRIO_PROCESS, self._native_id, os.getpriority(os.PRIO_PROCESS, 0) + ADDED_NICENESS)

    @property
    def is_lost(self) -> bool:
        return self.task is not None and self.task.is_cancelled

    def run(self) -> None:
        """Runs outside the lock."""
        assert self.task is not None
        self.task.run()

    def wake(self) -> None:
        """Record that it has waited for a task."""
        self._processor_began = self._read_processor()

    def begin(self, task: MaskTask[Owner]) -> None:
        self.task, self._began = task, time.perf_counter()

    def end(self, task: MaskTask[Owner]) -> None:
        seconds = time.perf_counter() - self._began
        # Reading the processor's time takes as long as a good part of a mask.
        if seconds > UNTIMED_SECONDS:
            seconds = self.running_seconds
            self.wake()
        task.last_seconds = 0.0 if task.is_first else seconds
        task.seconds += seconds
        self.task = None

    @property
    def running_seconds(self) -> float:
        """Processor time of the task so far; wall time if the system cannot read another thread's processor time."""
        return min(time.perf_counter() - self._began, self._read_processor() - self._processor_began)

    def _run(self) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            self._read_processor = partial(time.clock_gettime, time.pthread_getcpuclockid(get_ident()))
        self._native_id = get_native_id()
        if self.is_slow:
            self.become_slow()
        self.wake()
        self._work(self)
