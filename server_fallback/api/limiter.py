"""Limiter: how many requests a key may make a minute and at once, and how many the server takes at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import ApiError, retry_after
from .keys import ApiKey


@dataclass(slots=True)
class _Use:
    """``tokens`` are the requests that may come at once; they grow with time up to a minute's worth."""

    tokens: float
    refilled_at: float
    running: int = 0


class Limiter:
    """A token bucket for each key, counted from when the key is first seen. ``clock`` gives seconds."""

    def __init__(self, max_concurrent: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = 0
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    @contextmanager
    def admit(self, key: ApiKey | None) -> Iterator[dict[str, str]]:
        """While a request runs. Yields headers that say what is left, as OpenAI's do. Raises ApiError (429) for too many."""
        if self.running >= self._max_concurrent:
            raise _too_many(f"the server takes {self._max_concurrent} requests at once", "server_full", 1.0)
        use = self._use(key) if key is not None else None
        headers = self._take(key, use) if key is not None and use is not None else {}
        self.running += 1
        if use is not None:
            use.running += 1
        try:
            yield headers
        finally:
            self.running -= 1
            if use is not None:
                use.running -= 1

    def _use(self, key: ApiKey) -> _Use:
        if key.name not in self._uses:
            self._uses[key.name] = _Use(_bucket_size(key), self._clock())
        return self._uses[key.name]

    def _take(self, key: ApiKey, use: _Use) -> dict[str, str]:
        if key.max_concurrent is not None and use.running >= key.max_concurrent:
            raise _too_many(f"this key may have {key.max_concurrent} requests at once", "concurrency_limit_exceeded", 1.0)
        if key.requests_per_minute is None:
            return {}
        now = self._clock()
        per_second = key.requests_per_minute / 60
        use.tokens = min(_bucket_size(key), use.tokens + (now - use.refilled_at) * per_second)
        use.refilled_at = now
        if use.tokens < 1:
            message = f"this key may make {key.requests_per_minute:g} requests a minute"
            raise _too_many(message, "rate_limit_exceeded", (1 - use.tokens) / per_second)
        use.tokens -= 1
        return {
            "x-ratelimit-limit-requests": f"{key.requests_per_minute:g}",
            "x-ratelimit-remaining-requests": str(int(use.tokens)),
            "x-ratelimit-reset-requests": f"{(_bucket_size(key) - use.tokens) / per_second:.3f}s",
        }


def _bucket_size(key: ApiKey) -> float:
    return max(1.0, key.requests_per_minute or 1.0)


def _too_many(what: str, code: str, seconds: float) -> ApiError:
    return ApiError(429, f"{what}; try again later", code, kind="rate_limit_error", headers=retry_after(seconds))
