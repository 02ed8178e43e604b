"""Rates and concurrency, on a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.keys import ApiKey
from nearfar.server_fallback.api.limiter import Limiter


def admitted(limiter: Limiter, key: ApiKey | None) -> bool:
    try:
        with limiter.admit(key):
            return True
    except ApiError:
        return False


def test_a_minute_s_worth_may_come_at_once_then_as_time_allows() -> None:
    now = [0.0]
    limiter = Limiter(100, lambda: now[0])
    key = ApiKey("a", b"", requests_per_minute=6)
    assert [admitted(limiter, key) for _ in range(7)] == [True] * 6 + [False]
    now[0] = 9.9
    assert not admitted(limiter, key)
    now[0] = 10.1
    assert [admitted(limiter, key) for _ in range(2)] == [True, False]
    assert admitted(limiter, ApiKey("b", b"", requests_per_minute=6))


def test_retry_after_is_when_it_works_again() -> None:
    now = [0.0]
    limiter = Limiter(100, lambda: now[0])
    key = ApiKey("a", b"", requests_per_minute=0.5)
    assert admitted(limiter, key)
    with pytest.raises(ApiError) as refused, limiter.admit(key):
        pass
    assert refused.value.status == 429
    now[0] = float(refused.value.headers["Retry-After"])
    assert now[0] == 120
    assert admitted(limiter, key)


def test_a_key_and_the_server_have_their_most_at_once() -> None:
    limiter = Limiter(3)
    key = ApiKey("a", b"", max_concurrent=2)
    with limiter.admit(key), limiter.admit(key):
        assert not admitted(limiter, key)
        assert admitted(limiter, None)
        with limiter.admit(None):
            assert not admitted(limiter, None)
    assert limiter.running == 0
    assert admitted(limiter, key)


def test_what_is_left_is_told() -> None:
    limiter = Limiter(3, lambda: 0.0)
    with limiter.admit(ApiKey("a", b"", requests_per_minute=60)) as headers:
        assert headers["x-ratelimit-limit-requests"] == "60"
        assert headers["x-ratelimit-remaining-requests"] == "59"
        assert headers["x-ratelimit-reset-requests"] == "1.000s"


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 30), max_size=60))
def test_never_more_than_the_bucket_and_what_time_adds(per_minute: float, waits: list[float]) -> None:
    now = [0.0]
    limiter = Limiter(100, lambda: now[0])
    key = ApiKey("a", b"", requests_per_minute=per_minute)
    passed = 0
    for wait in waits:
        now[0] += wait
        passed += admitted(limiter, key)
    assert passed <= max(1.0, per_minute) + now[0] * per_minute / 60 + 1e-6
