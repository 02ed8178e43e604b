"""Limiter: how much of the server one client may use at once, and how many answers and tokens a key may have per
minute.

A client is a key or, if the server has no keys, an address. It gets at most a share of the requests, of the body memory
and of each model's answers, so that the rest remains for others.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from .errors import ApiError, retry_after
from .keys import ApiKey


class Admitted(Protocol):
    """An admitted request, as the API sees it; see `Admission`."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def answers(self, count: int, capacity: int, param: str = "n") -> None: ...

    async def body(self, size: int) -> None: ...

    async def reserve(self, tokens: float) -> None: ...

    def tokens(self, count: int) -> None: ...


class Limits(Protocol):
    """The limits of a server: those of one process (`OwnLimits`), or shared by several."""

    @property
    def running(self) -> int:
        """The requests that this process has admitted and not ended."""

    @property
    def body_bytes(self) -> int:
        """The memory that their bodies hold."""

    def admit(self, client: str, key: ApiKey | None) -> AbstractAsyncContextManager[Admitted]:
        """See `Limiter.admit`."""

    def set(self, max_requests: int, max_body_bytes: int, client_share: float) -> None:
        """See `Limiter.set`."""


class _Bucket:
    """What a key may still have of something per minute: at most what one minute gives. It starts full, and is below 0
    if more was used than was there. What is reserved has left it.
    """

    def __init__(self, now: float) -> None:
        self.left = float("inf")
        self._refilled_at = now

    def refill(self, per_minute: float, now: float) -> None:
        """``per_minute`` may be another one than before."""
        self.left = min(_most(per_minute), self.left + (now - self._refilled_at) * per_minute / 60)
        self._refilled_at = now

    def headers(self, what: str, per_minute: float) -> dict[str, str]:
        """As OpenAI's API names them."""
        reset = 60 * (_most(per_minute) - self.left) / per_minute
        return {
            f"x-ratelimit-limit-{what}": f"{per_minute:g}",
            f"x-ratelimit-remaining-{what}": str(max(0, int(self.left))),
            f"x-ratelimit-reset-{what}": f"{reset:.3f}s",
        }


class _Use:
    """The current use of a client. ``asked`` are the answers that a key may request, ``tokens`` those of prompts and
    answers, of which running requests have ``reserved`` some.
    """

    def __init__(self, now: float) -> None:
        self.asked, self.tokens = _Bucket(now), _Bucket(now)
        self.requests = self.answers = self.body_bytes = 0
        self.reserved = 0.0

    def wait_seconds(self, tokens: float, per_minute: float) -> float:
        """How long to wait for this number of tokens: until the minute renews them, or a second if running requests may
        give theirs back.
        """
        missing = tokens - self.tokens.left
        return 1.0 if missing <= self.reserved else 60 * missing / per_minute


class Limiter:
    """``max_requests`` and ``max_body_bytes`` are for all clients together, ``client_share`` (above 0, at most 1) of
    them for one.

    Rates are token buckets, which start when a key is first used. ``clock`` returns seconds.
    """

    def __init__(
        self, max_requests: int, max_body_bytes: int, client_share: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.running = 0
        self.body_bytes = 0
        self._clock = clock
        self._uses: dict[str, _Use] = {}
        self.set(max_requests, max_body_bytes, client_share)

    def set(self, max_requests: int, max_body_bytes: int, client_share: float) -> None:
        """Other limits from now on. What runs, goes on."""
        self._max_requests, self._max_body_bytes, self._share = max_requests, max_body_bytes, client_share

    @contextmanager
    def admit(self, client: str, key: ApiKey | None) -> Iterator[Admission]:
        """Admit a request while it runs; it counts as one answer until `Admission.answers`. Raises ApiError (429) if
        there are too many.
        """
        if self.running >= self._max_requests:
            raise _too_many(f"the server accepts at most {self._max_requests} requests at once", "server_full", 1.0)
        use = self._uses.get(client) or _Use(self._clock())
        if use.requests >= (most := self.of_one(self._max_requests)):
            raise _too_many(f"one client may have at most {most} requests at once", "client_limit_exceeded", 1.0)
        admission = Admission(self, use, key)
        self._require_tokens(admission)
        self._take_answers(admission, 1)
        self._uses[client] = use
        self.running += 1
        use.requests += 1
        try:
            yield admission
        finally:
            self.running -= 1
            use.requests -= 1
            use.answers -= admission.held_answers
            use.body_bytes -= admission.held_bytes
            self._take_tokens(admission, 0)
            self.body_bytes -= admission.held_bytes
            if use.requests == 0 and (key is None or (key.requests_per_minute is key.tokens_per_minute is None)):
                # Forget idle clients: there are more possible addresses than fit into memory.
                self._uses.pop(client, None)

    def of_one(self, total: int) -> int:
        """The share of one client."""
        return max(1, int(total * self._share))

    def _take_answers(self, admission: Admission, count: int) -> None:
        key, use = admission.key, admission.use
        if key is not None and key.max_concurrent is not None and use.answers + count > key.max_concurrent:
            raise _too_many(
                f"this key may have at most {key.max_concurrent} answers at once", "concurrency_limit_exceeded", 1.0
            )
        if key is not None and key.requests_per_minute is not None:
            per_minute = key.requests_per_minute
            use.asked.refill(per_minute, self._clock())
            if use.asked.left < count:
                message = f"this key may request at most {per_minute:g} answers per minute"
                raise _too_many(message, "rate_limit_exceeded", 60 * (count - use.asked.left) / per_minute)
            use.asked.left -= count
            admission.headers.update(use.asked.headers("requests", per_minute))
        use.answers += count
        admission.held_answers += count

    def _require_tokens(self, admission: Admission) -> None:
        """A request is not read if its key has no tokens at all."""
        key, bucket = admission.key, admission.use.tokens
        if key is None or key.tokens_per_minute is None:
            return
        per_minute = key.tokens_per_minute
        bucket.refill(per_minute, self._clock())
        if bucket.left < 1:
            message = f"this key may have at most {per_minute:g} tokens of prompts and answers per minute"
            raise _too_many(message, "rate_limit_exceeded", admission.use.wait_seconds(1, per_minute))
        admission.headers.update(bucket.headers("tokens", per_minute))

    def _reserve_tokens(self, admission: Admission, most: float) -> None:
        key, bucket = admission.key, admission.use.tokens
        if key is None or key.tokens_per_minute is None or admission.reserved_tokens:
            return
        per_minute = key.tokens_per_minute
        bucket.refill(per_minute, self._clock())
        # An answer that may take more begins once its key has all that a minute gives.
        needed = min(most, _most(per_minute))
        if needed > bucket.left:
            may = "any number of" if math.isinf(most) else f"{most:g}"
            message = (
                f"this request may take {may} tokens with its prompt and its answer, and of this key's {per_minute:g} "
                f"per minute {max(0, int(bucket.left))} are left; request a shorter answer, or wait"
            )
            raise _too_many(message, "rate_limit_exceeded", admission.use.wait_seconds(needed, per_minute))
        bucket.left -= needed
        admission.use.reserved += needed
        admission.reserved_tokens = needed
        admission.headers.update(bucket.headers("tokens", per_minute))

    def _take_tokens(self, admission: Admission, count: int) -> None:
        """Of what was reserved, the rest returns."""
        key, bucket = admission.key, admission.use.tokens
        if key is not None and key.tokens_per_minute is not None:
            bucket.refill(key.tokens_per_minute, self._clock())
            bucket.left = min(_most(key.tokens_per_minute), bucket.left + admission.reserved_tokens - count)
            admission.use.reserved -= admission.reserved_tokens
            admission.reserved_tokens = 0.0

    def _take_bytes(self, admission: Admission, size: int) -> None:
        most = self.of_one(self._max_body_bytes)
        if admission.use.body_bytes + size > most:
            raise _too_many(
                f"the requests of one client may hold at most {most} bytes at once", "client_limit_exceeded", 1.0
            )
        if self.body_bytes + size > self._max_body_bytes:
            raise _too_many(
                f"the server holds at most {self._max_body_bytes} bytes of requests at once", "server_full", 1.0
            )
        self.body_bytes += size
        admission.use.body_bytes += size
        admission.held_bytes += size


@dataclass(slots=True, eq=False)
class Admission:
    """An admitted request, and what it holds until it ends. ``headers`` report what remains of the rate limit, as
    OpenAI's do.
    """

    limiter: Limiter
    use: _Use
    key: ApiKey | None
    headers: dict[str, str] = field(default_factory=dict)
    held_answers: int = 0
    held_bytes: int = 0
    reserved_tokens: float = 0.0

    def answers(self, count: int, capacity: int, param: str = "n") -> None:
        """Count the request as ``count`` answers of a model that can run and queue ``capacity`` at once.

        Raises ApiError: 400 if this client can never have that number, 429 if it cannot have it now.
        """
        limits = [self.limiter.of_one(capacity)]
        if self.key is not None:
            limits += [self.key.max_concurrent] if self.key.max_concurrent is not None else []
            limits += [int(_most(self.key.requests_per_minute))] if self.key.requests_per_minute is not None else []
        if count > min(limits):
            raise ApiError(
                400,
                f"{count} answers requested; one client may have at most {min(limits)} at once",
                "invalid_value",
                param,
            )
        if self.use.answers + count - self.held_answers > limits[0]:
            raise _too_many(
                f"one client may have at most {limits[0]} answers of this model at once", "client_limit_exceeded", 1.0
            )
        if count > self.held_answers:
            self.limiter._take_answers(self, count - self.held_answers)

    def body(self, size: int) -> None:
        """Count ``size`` more bytes of the request in memory. Raises ApiError (429)."""
        self.limiter._take_bytes(self, size)

    def reserve(self, tokens: float) -> None:
        """Hold the most tokens that the prompt and the answer may take, until `tokens` or the request's end. A second
        time changes nothing: two sides may begin the same answer. Raises ApiError (429) if the key has fewer.
        """
        self.limiter._reserve_tokens(self, tokens)

    def tokens(self, count: int) -> None:
        """Count ``count`` tokens, which the prompt and the answer have taken."""
        self.limiter._take_tokens(self, count)


class OwnLimits:
    """Implements `Limits` with a limiter in this process."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    @property
    def running(self) -> int:
        return self._limiter.running

    @property
    def body_bytes(self) -> int:
        return self._limiter.body_bytes

    @asynccontextmanager
    async def admit(self, client: str, key: ApiKey | None) -> AsyncGenerator[Admitted]:
        with self._limiter.admit(client, key) as admission:
            yield OwnAdmission(admission)

    def set(self, max_requests: int, max_body_bytes: int, client_share: float) -> None:
        self._limiter.set(max_requests, max_body_bytes, client_share)


@dataclass(frozen=True, slots=True)
class OwnAdmission:
    """Implements `Admitted`."""

    admission: Admission

    @property
    def headers(self) -> Mapping[str, str]:
        return self.admission.headers

    async def answers(self, count: int, capacity: int, param: str = "n") -> None:
        self.admission.answers(count, capacity, param)

    async def body(self, size: int) -> None:
        self.admission.body(size)

    async def reserve(self, tokens: float) -> None:
        self.admission.reserve(tokens)

    def tokens(self, count: int) -> None:
        self.admission.tokens(count)


def _most(per_minute: float) -> float:
    """What one minute gives, and at least one."""
    return max(1.0, per_minute)


def _too_many(what: str, code: str, seconds: float) -> ApiError:
    headers = retry_after(seconds)
    message = f"{what}; try again in {headers['Retry-After']} s"
    return ApiError(429, message, code, kind="rate_limit_error", headers=headers)
