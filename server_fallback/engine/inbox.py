"""The inbox: requests and calls from event loops to the engine's thread, and its capacity. Both sides change it under
one lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic

from nearfar.compiler.runtime.errors import NearfarError, QueueFull

from .answer import Answer
from .encode_job import EncodeJob
from .images import ImageName


@dataclass(slots=True)
class Messages:
    """The content since the last `Inbox.receive`. ``abandoned`` answers have no reader; ``calls`` run on the engine's
    thread.
    """

    arrivals: list[Answer] = field(default_factory=list)
    abandoned: list[Answer] = field(default_factory=list)
    jobs: list[EncodeJob] = field(default_factory=list)
    calls: list[Callable[[], None]] = field(default_factory=list)
    stop: bool = False


class Inbox:
    """``capacity`` is the maximum number of unfinished requests, and ``image_bytes`` that of their images, of which
    those of one client take at most half. Answers of a client that have the same image share it.
    """

    def __init__(self, capacity: int, image_bytes: int = 0) -> None:
        self._capacity, self._max_image_bytes = capacity, image_bytes
        # By client, those with any.
        self._image_bytes = Counter[str]()
        # By client and image: its bytes, and the unfinished answers that have it.
        self._images: dict[tuple[str, ImageName], tuple[int, int]] = {}
        self._changed = Condition()
        self._messages = Messages()
        self._has_messages = False
        self._unfinished = 0
        self._refusal: NearfarError | None = None
        # When the engine's thread received messages last; None while it waits for some.
        self._received_at: float | None = None

    @property
    def busy_seconds(self) -> float:
        """The time since the engine's thread last received messages; 0 while it waits for some."""
        received_at = self._received_at
        return 0.0 if received_at is None else monotonic() - received_at

    @property
    def num_arrivals(self) -> int:
        """Requests that the engine has not received yet."""
        return len(self._messages.arrivals)

    @property
    def num_unfinished(self) -> int:
        """Requests that have not been answered."""
        return self._unfinished

    def add(self, item: Answer | EncodeJob) -> None:
        """Raises QueueFull, or the reason why requests are no longer accepted."""
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            if self._unfinished >= self._capacity:
                raise QueueFull(
                    f"{self._unfinished} requests run or wait, which is the maximum; try again later",
                    limit=self._capacity,
                )
            if isinstance(item, Answer):
                self._take_images(item)
            self._unfinished += 1
            if isinstance(item, Answer):
                self._messages.arrivals.append(item)
            else:
                self._messages.jobs.append(item)
            self._notify()

    def call(self, call: Callable[[], None]) -> None:
        """Run a call on the engine's thread between two steps. Raises the reason why requests are no longer
        accepted.
        """
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            self._messages.calls.append(call)
            self._notify()

    def resume(self, call: Callable[[], None]) -> None:
        """As `call`, for what the engine has begun itself: never refused. After the end of its thread, it is lost."""
        with self._changed:
            self._messages.calls.append(call)
            self._notify()

    def abandon(self, answer: Answer) -> None:
        with self._changed:
            self._messages.abandoned.append(answer)
            self._notify()

    def receive(self, *, wait: bool, timeout_seconds: float | None = None) -> Messages:
        """Return the content; with ``wait``, wait until there is some, but no longer than ``timeout_seconds``."""
        with self._changed:
            self._received_at = None
            if wait:
                self._changed.wait_for(lambda: self._has_messages, timeout_seconds)
            self._received_at = monotonic()
            messages, self._messages = self._messages, Messages(stop=self._messages.stop)
            self._has_messages = messages.stop
            return messages

    def wait(self, timeout_seconds: float) -> None:
        """Wait until there is something to receive, but no longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_messages, timeout_seconds)

    def finished(self, answer: Answer | None = None) -> None:
        """Record that one request has been answered or cannot be; that of ``answer``, which may have images."""
        with self._changed:
            self._unfinished -= 1
            if answer is not None and answer.image_bytes:
                self._release_images(answer)
            self._changed.notify_all()

    def refuse(self, reason: NearfarError) -> None:
        """Stop accepting requests; the first reason is retained."""
        with self._changed:
            self._refusal = self._refusal or reason

    def wait_empty(self, timeout_seconds: float) -> bool:
        """Wait until every request has been answered. False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout_seconds)

    def stop(self) -> None:
        """End the engine's thread."""
        with self._changed:
            self._messages.stop = True
            self._notify()

    def _take_images(self, answer: Answer) -> None:
        """Raises QueueFull if an answer's images do not fit beside those of others."""
        client = answer.request.client
        needed = sum(size for name, size in answer.image_bytes.items() if (client, name) not in self._images)
        most, used = self._max_image_bytes, self._image_bytes.total()
        if client and self._image_bytes[client] + needed > most // 2:
            most, used = most // 2, self._image_bytes[client]
        if used + needed > most:
            raise QueueFull(
                f"the images of this request take {needed:,} bytes, and those of unfinished ones {used:,} of at most "
                f"{most:,}; try again later, or send fewer images",
                limit=most,
            )
        for name, size in answer.image_bytes.items():
            held, users = self._images.get((client, name), (size, 0))
            self._images[client, name] = held, users + 1
        if needed:
            self._image_bytes[client] += needed

    def _release_images(self, answer: Answer) -> None:
        client = answer.request.client
        for name in answer.image_bytes:
            size, users = self._images.pop((client, name))
            if users > 1:
                self._images[client, name] = size, users - 1
            else:
                self._image_bytes[client] -= size
        self._image_bytes += Counter()

    def _notify(self) -> None:
        self._has_messages = True
        self._changed.notify_all()
