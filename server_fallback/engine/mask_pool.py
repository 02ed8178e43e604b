"""The threads that compute the masks of constrained answers, so that a slow grammar delays no answer but its own.

A constraint's calls cannot be interrupted, but xgrammar releases the GIL while it computes. An answer whose last mask was quick goes to a
few quick threads, and the engine waits for these a little. Any other answer goes to slow threads of low priority, least used time first;
nobody waits for them. A quick thread that meets a slow mask becomes a slow one, and another quick thread replaces it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from threading import Condition, Lock, Thread, get_ident, get_native_id

from .mask_task import MaskTask

# An answer is quick if its last run took at most this much processor time.
QUICK_SECONDS = 0.005
# A quick thread that works on one task for longer than this becomes a slow one.
STUCK_SECONDS = 0.02
NUM_QUICK, NUM_SLOW = 1, 2
# Beyond this, stuck threads are not replaced until some of them end.
MAX_THREADS = 32
# The processor time of a shorter task is taken to be its wall time.
UNTIMED_SECONDS = 0.001
# All steps together wait at most half of the time. What was not waited is saved, for up to this many steps that wait as long as they can.
NUM_SAVED_WAITS = 5
# Of 19, which is the lowest priority.
SLOW_NICE = 15


class MaskPool:
    """`post`, `collect`, `cancel` and `close` are called by the engine's thread. Threads start when they are first needed."""

    def __init__(self, max_wait_seconds: float) -> None:
        # Tasks that were posted and neither returned nor cancelled.
        self.pending: set[MaskTask] = set()
        self._max_wait_seconds = max_wait_seconds
        self._saved_seconds = NUM_SAVED_WAITS * max_wait_seconds
        self._collected_at = time.perf_counter()
        # The lock guards everything below.
        self._lock = Lock()
        self._quick_posted, self._slow_posted, self._returned = (Condition(self._lock) for _ in range(3))
        self._quick: deque[MaskTask] = deque()
        self._slow: list[MaskTask] = []
        self._done: list[MaskTask] = []
        self._threads: set[_MaskThread] = set()
        self._waits_for_any = self._closed = False

    def post(self, tasks: Iterable[MaskTask]) -> None:
        """Run each task once."""
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

    def collect(self, wait_seconds: float | None = None) -> tuple[list[MaskTask], list[MaskTask]]:
        """The tasks that are done, and those that run and are over their budget.

        By default it waits until all quick tasks are done, within the limits on waiting; otherwise ``wait_seconds`` for any task.
        """
        now = time.perf_counter()
        with self._lock:
            if wait_seconds is None:
                saved = self._saved_seconds + now - self._collected_at
                self._saved_seconds = min(saved, NUM_SAVED_WAITS * self._max_wait_seconds)
                self._returned.wait_for(lambda: not self._has_quick, min(self._saved_seconds, self._max_wait_seconds))
                self._collected_at = time.perf_counter()
                self._saved_seconds -= self._collected_at - now
            else:
                self._waits_for_any = True
                self._returned.wait_for(lambda: self._done, wait_seconds)
                self._waits_for_any = False
            over_budget = self._check_running()
            done, self._done = self._done, []
        self.pending.difference_update(done)
        return done, over_budget

    def cancel(self, task: MaskTask) -> None:
        """Drop a task. If it runs, its thread drops it in the end."""
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
        """How many answers wait for their first mask. Callable from any thread."""
        return sum(task.is_first for task in self.pending.copy())

    def close(self) -> None:
        """End the threads; one that works on a task ends after it, and is not waited for."""
        with self._lock:
            self._closed = True
            self._quick.clear()
            self._slow.clear()
            self._quick_posted.notify_all()
            self._slow_posted.notify_all()
        self.pending.clear()

    @property
    def _has_quick(self) -> bool:
        return bool(self._quick) or any(thread.task is not None and not thread.is_slow for thread in self._threads)

    def _check_running(self) -> list[MaskTask]:
        """Replace quick threads that are stuck. Returns the tasks over their budget."""
        over_budget = []
        for thread in self._threads:
            if thread.task is None:
                continue
            running = thread.running_seconds
            if running > STUCK_SECONDS and not thread.is_slow:
                thread.make_slow()
            if thread.task.is_over_budget(running) and not thread.task.is_cancelled:
                over_budget.append(thread.task)
        self._start_threads()
        return over_budget

    def _start_threads(self) -> None:
        num_slow = sum(thread.is_slow for thread in self._threads)
        num_quick = len(self._threads) - num_slow
        for is_slow, count in ((False, min(NUM_QUICK - num_quick, len(self._quick))), (True, min(NUM_SLOW - num_slow, len(self._slow)))):
            for _ in range(min(count, MAX_THREADS - len(self._threads))):
                thread = _MaskThread(self._work, is_slow=is_slow)
                self._threads.add(thread)
                thread.start()

    def _work(self, thread: _MaskThread) -> None:
        """What a thread does until it is not needed any more."""
        while True:
            with self._lock:
                self._return(thread)
                task = self._next_task(thread)
                if task is None:
                    self._threads.remove(thread)
                    return
                thread.begin(task)
            task.run()

    def _return(self, thread: _MaskThread) -> None:
        task = thread.task
        if task is None:
            return
        thread.end(task)
        if not task.is_cancelled:
            self._done.append(task)
        if self._waits_for_any or not self._has_quick:
            self._returned.notify()

    def _next_task(self, thread: _MaskThread) -> MaskTask | None:
        """Wait for a task. None if the pool is closed, or if there are too many slow threads because quick ones became slow."""
        while not self._closed:
            if not thread.is_slow:
                if self._quick:
                    return self._quick.popleft()
                self._quick_posted.wait()
                thread.wake()
            elif sum(other.is_slow for other in self._threads) > NUM_SLOW:
                return None
            elif self._slow:
                task = min(self._slow, key=lambda task: task.seconds)
                self._slow.remove(task)
                return task
            else:
                self._slow_posted.wait()
                thread.wake()
        return None


class _MaskThread:
    """A thread, and the ``task`` that it works on. All but `start` is called under the pool's lock."""

    def __init__(self, work: Callable[[_MaskThread], None], *, is_slow: bool) -> None:
        self.is_slow = is_slow
        self.task: MaskTask | None = None
        self._work = work
        self._id = 0
        # When the task began in wall time; the thread's processor time then, or a little before.
        self._began = self._processor_began = 0.0
        self._read_processor: Callable[[], float] = time.perf_counter

    def start(self) -> None:
        # A daemon, because the process must be able to end while a mask is computed.
        Thread(target=self._run, name="nearfar-masks", daemon=True).start()

    def wake(self) -> None:
        """It has waited for a task."""
        self._processor_began = self._read_processor()

    def begin(self, task: MaskTask) -> None:
        self.task, self._began = task, time.perf_counter()

    def end(self, task: MaskTask) -> None:
        seconds = time.perf_counter() - self._began
        # Reading the processor's time takes as long as a good part of a mask.
        if seconds > UNTIMED_SECONDS:
            seconds = self.running_seconds
            self.wake()
        task.last_seconds = seconds
        task.seconds += seconds
        self.task = None

    @property
    def running_seconds(self) -> float:
        """Processor time of the task so far; wall time if the system cannot read another thread's processor time."""
        return min(time.perf_counter() - self._began, self._read_processor() - self._processor_began)

    def make_slow(self) -> None:
        self.is_slow = True
        # On Linux, a thread has a priority of its own.
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, self._id, SLOW_NICE)

    def _run(self) -> None:
        self._id = get_native_id()
        if hasattr(time, "pthread_getcpuclockid"):
            self._read_processor = partial(time.clock_gettime, time.pthread_getcpuclockid(get_ident()))
        self.wake()
        if self.is_slow:
            self.make_slow()
        self._work(self)
