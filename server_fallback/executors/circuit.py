"""Circuit: decides whether a server gets requests. A server that fails gets none for a while, then a single trial
request before it gets more.

closed  --failures-->  open  --after a while-->  half-open  --one request succeeds-->  closed
                        ^                            |
                        +------ it fails, and the wait doubles
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Literal

# The number of consecutive failures that open the circuit. A single failure may only be a pooled connection that went
# stale.
FAILURES_TO_OPEN = 3
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0

State = Literal["closed", "open", "half-open"]


class Circuit:
    """Times are those of ``clock``, in seconds. ``failures`` in a row open the circuit; the wait doubles up to the
    longest one.

    ``first_wait_seconds`` None: FIRST_WAIT_SECONDS.
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        *,
        failures: int = FAILURES_TO_OPEN,
        first_wait_seconds: float | None = None,
        longest_wait_seconds: float = LONGEST_WAIT_SECONDS,
    ) -> None:
        self._clock = clock
        self._failures_to_open = failures
        self._first_wait = FIRST_WAIT_SECONDS if first_wait_seconds is None else first_wait_seconds
        self._longest_wait = max(self._first_wait, longest_wait_seconds)
        self._failures = 0
        self._wait = self._first_wait
        self._open_until: float | None = None
        self._trying = False

    @property
    def state(self) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half-open"

    @property
    def admits(self) -> bool:
        """Whether a request may be sent to the server now."""
        return self.state == "closed" or (self.state == "half-open" and not self._trying)

    @property
    def seconds_until_trial(self) -> float:
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def begin(self) -> None:
        """A request is sent to the server. While the circuit is half-open, this is the trial, until `ended`."""
        self._trying = self._trying or self.state == "half-open"

    def succeeded(self) -> None:
        self._failures, self._wait = 0, self._first_wait
        self._open_until, self._trying = None, False

    def failed(self, *, certain: bool = False) -> None:
        """``certain``: nothing listens at the address, so one failure is enough."""
        self._failures += 1
        was_closed = self._open_until is None
        if was_closed and not certain and self._failures < self._failures_to_open:
            return
        if not was_closed and self.state == "open":
            # Requests that were running when the circuit opened fail late; they carry no new information.
            return
        if not was_closed:
            self._wait = min(2 * self._wait, self._longest_wait)
        self._open_until, self._trying = self._clock() + self._wait, False

    def ended(self) -> None:
        """The request has ended, with any outcome: the next one may be the trial, if one is still needed."""
        self._trying = False
