"""Rate and concurrency limits, on a clock that the test controls."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.keys import ApiKey
from nearfar.server_fallback.api.limiter import Admission, Limiter

A, B = "address 192.0.2.1", "address 192.0.2.2"


def limiter_of(
    requests: int = 100, body_bytes: int = 100, share: float = 1.0, clock: Callable[[], float] = lambda: 0.0
) -> Limiter:
    return Limiter(requests, body_bytes, share, clock)


def admitted(limiter: Limiter, key: ApiKey, answers: int = 1) -> bool:
    return refusal(limiter, key, answers) is None


def refusal(
    limiter: Limiter, key: ApiKey | None, answers: int = 1, client: str = A, body_bytes: int = 0
) -> tuple[int, str | None] | None:
    try:
        with limiter.admit(client if key is None else f"key {key.name}", key) as admission:
            admission.body(body_bytes)
            admission.answers(answers, 100)
            return None
    except ApiError as error:
        return error.status, error.code


def test_a_minute_s_worth_may_come_at_once_then_as_time_allows() -> None:
    now = [0.0]
    limiter = limiter_of(clock=lambda: now[0])
    key = ApiKey("a", b"", requests_per_minute=6)
    assert [admitted(limiter, key) for _ in range(7)] == [True] * 6 + [False]
    now[0] = 9.9
    assert not admitted(limiter, key)
    now[0] = 10.1
    assert [admitted(limiter, key) for _ in range(2)] == [True, False]
    assert admitted(limiter, ApiKey("b", b"", requests_per_minute=6))


def test_each_answer_of_a_request_counts_for_the_rate() -> None:
    now = [0.0]
    limiter = limiter_of(clock=lambda: now[0])
    key = ApiKey("a", b"", requests_per_minute=6)
    assert refusal(limiter, key, 7) == (400, "invalid_value")
    now[0] = 60.0
    assert admitted(limiter, key, 4)
    assert refusal(limiter, key, 3) == (429, "rate_limit_exceeded")
    now[0] = 80.0
    assert admitted(limiter, key, 3)


def test_retry_after_is_when_it_works_again() -> None:
    now = [0.0]
    limiter = limiter_of(clock=lambda: now[0])
    key = ApiKey("a", b"", requests_per_minute=0.5)
    assert admitted(limiter, key)
    with pytest.raises(ApiError) as refused, limiter.admit("key a", key):
        pass
    assert refused.value.status == 429
    now[0] = float(refused.value.headers["Retry-After"])
    assert now[0] == 120
    assert admitted(limiter, key)


def test_a_key_and_the_server_have_their_most_at_once() -> None:
    limiter = limiter_of(requests=3)
    key = ApiKey("a", b"", max_concurrent=2)
    with limiter.admit("key a", key), limiter.admit("key a", key):
        assert refusal(limiter, key) == (429, "concurrency_limit_exceeded")
        with limiter.admit(A, None):
            assert refusal(limiter, None, client=B) == (429, "server_full")
    assert limiter.running == 0
    assert admitted(limiter, key, 2)
    assert refusal(limiter, key, 3) == (400, "invalid_value")


def test_each_answer_of_a_request_counts_for_the_most_at_once() -> None:
    limiter, key = limiter_of(), ApiKey("a", b"", max_concurrent=4)
    with limiter.admit("key a", key) as admission:
        admission.answers(2, 100)
        assert refusal(limiter, key, 3) == (429, "concurrency_limit_exceeded")
        assert admitted(limiter, key, 2)


def test_one_client_gets_its_share_of_requests_and_the_rest_is_for_others() -> None:
    limiter = limiter_of(requests=4, share=0.5)
    with limiter.admit(A, None), limiter.admit(A, None):
        assert refusal(limiter, None, client=A) == (429, "client_limit_exceeded")
        assert refusal(limiter, None, client=B) is None
        assert refusal(limiter, ApiKey("a", b"")) is None
    assert refusal(limiter, None, client=A) is None


def test_one_client_gets_its_share_of_a_model_s_answers() -> None:
    limiter = limiter_of(share=0.5)
    with limiter.admit(A, None) as first:
        first.answers(30, 100)
        assert refusal(limiter, None, 21) == (429, "client_limit_exceeded")
        assert refusal(limiter, None, 20) is None
        assert refusal(limiter, None, 50, client=B) is None
        assert refusal(limiter, None, 51, client=B) == (400, "invalid_value")
    assert refusal(limiter, None, 50) is None


def test_bytes_of_bodies_are_bounded_for_a_client_and_for_all() -> None:
    limiter = limiter_of(body_bytes=100, share=0.5)
    with limiter.admit(A, None) as first, limiter.admit(B, None) as second:
        first.body(20)
        first.body(20)
        assert refusal(limiter, None, client=A, body_bytes=11) == (429, "client_limit_exceeded")
        assert refusal(limiter, None, client=A, body_bytes=10) is None
        second.body(50)
        assert refusal(limiter, None, client="address 192.0.2.3", body_bytes=11) == (429, "server_full")
    assert limiter.body_bytes == 0
    assert refusal(limiter, None, client=A, body_bytes=50) is None


def test_an_address_that_has_nothing_leaves_nothing() -> None:
    limiter = limiter_of()
    for number in range(10):
        assert refusal(limiter, None, client=f"address 192.0.2.{number}", body_bytes=1) is None
    assert limiter._uses == {}


def test_the_remaining_limits_are_reported() -> None:
    with limiter_of().admit("key a", ApiKey("a", b"", requests_per_minute=60)) as admission:
        assert admission.headers["x-ratelimit-limit-requests"] == "60"
        assert admission.headers["x-ratelimit-remaining-requests"] == "59"
        assert admission.headers["x-ratelimit-reset-requests"] == "1.000s"
        admission.answers(3, 100)
        assert admission.headers["x-ratelimit-remaining-requests"] == "57"


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 30), max_size=60))
def test_never_more_than_the_bucket_and_what_time_adds(per_minute: float, waits: list[float]) -> None:
    now = [0.0]
    limiter = limiter_of(clock=lambda: now[0])
    key = ApiKey("a", b"", requests_per_minute=per_minute)
    passed = 0
    for wait in waits:
        now[0] += wait
        passed += admitted(limiter, key)
    assert passed <= max(1.0, per_minute) + now[0] * per_minute / 60 + 1e-6


def test_tokens_are_counted_when_they_are_known_and_the_next_request_waits() -> None:
    now = [0.0]
    limiter = limiter_of(clock=lambda: now[0])
    key = ApiKey("a", b"", tokens_per_minute=60)
    with limiter.admit("key a", key) as first, limiter.admit("key a", key) as second:
        assert first.headers["x-ratelimit-limit-tokens"] == "60"
        assert first.headers["x-ratelimit-remaining-tokens"] == "60"
        first.tokens(50)
        second.tokens(40)
    with pytest.raises(ApiError) as refused, limiter.admit("key a", key):
        pass
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    # 30 tokens more than there were, and one to begin with.
    assert refused.value.headers["Retry-After"] == "31"
    assert "; try again in 31 s" in str(refused.value)
    now[0] = 30.9
    assert not admitted(limiter, key)
    now[0] = 31.0
    with limiter.admit("key a", key) as third:
        assert third.headers["x-ratelimit-remaining-tokens"] == "1"
        assert third.headers["x-ratelimit-reset-tokens"] == "59.000s"


def test_other_limits_of_a_key_and_of_the_server_apply_at_once() -> None:
    now = [0.0]
    limiter = limiter_of(requests=1, clock=lambda: now[0])
    slow, fast = (ApiKey("a", b"", requests_per_minute=limit) for limit in (1, 600))
    assert [admitted(limiter, slow) for _ in range(2)] == [True, False]
    # What the key has used stays used, and refills at the new rate.
    now[0] = 1.0
    assert admitted(limiter, fast, 10)
    assert not admitted(limiter, fast)
    with limiter.admit(B, None):
        assert refusal(limiter, None) == (429, "server_full")
        limiter.set(2, 100, 1.0)
        assert refusal(limiter, None) is None


def test_simultaneous_answers_reserve_what_they_may_take_together() -> None:
    now = [0.0]
    limiter, key = limiter_of(clock=lambda: now[0]), ApiKey("a", b"", tokens_per_minute=100)
    with limiter.admit("key a", key) as first, limiter.admit("key a", key) as second:
        first.reserve(70)
        assert first.headers["x-ratelimit-remaining-tokens"] == "30"
        with pytest.raises(ApiError) as refused:
            second.reserve(40)
        assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
        # What the first one does not take may return at any moment.
        assert refused.value.headers["Retry-After"] == "1"
        assert "may take 40 tokens with its prompt and its answer, and of this key's 100 per minute 30 are left" in str(
            refused.value
        )
        # A second side of the same answer reserves nothing more.
        first.reserve(70)
        first.tokens(20)
        second.reserve(40)
        assert second.headers["x-ratelimit-remaining-tokens"] == "40"
    # The second one has ended without an answer.
    with limiter.admit("key a", key) as third:
        assert third.headers["x-ratelimit-remaining-tokens"] == "80"
        third.reserve(80)
    with limiter.admit("key a", key) as fourth, pytest.raises(ApiError) as refused:
        fourth.reserve(90)
    # Nothing is reserved, so only time gives more.
    assert refused.value.headers["Retry-After"] == "6"


@pytest.mark.parametrize("most", [250, math.inf])
def test_an_answer_that_may_take_more_than_a_minute_gives_begins_alone(most: float) -> None:
    now = [0.0]
    limiter, key = limiter_of(clock=lambda: now[0]), ApiKey("a", b"", tokens_per_minute=100)
    with limiter.admit("key a", key) as first, limiter.admit("key a", key) as second:
        first.reserve(1)
        with pytest.raises(ApiError):
            second.reserve(most)
        first.tokens(0)
        second.reserve(most)
        with pytest.raises(ApiError), limiter.admit("key a", key):
            pass
        second.tokens(220)
    now[0] = 60.0
    assert not admitted(limiter, key)
    now[0] = 73.0
    assert admitted(limiter, key)


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(0, 3), st.integers(1, 120), st.floats(0, 1)), min_size=1, max_size=40
    )
)
def test_what_was_reserved_is_never_exceeded(turns: list[tuple[float, int, int, float]]) -> None:
    """In any order of begins and ends, simultaneous answers take at most a full bucket and what time has added."""
    now = [0.0]
    limiter, key = limiter_of(clock=lambda: now[0]), ApiKey("a", b"", tokens_per_minute=120)
    with ExitStack() as stack:
        running, taken = dict[int, tuple[Admission, int]](), 0
        for wait, place, most, part in turns:
            now[0] += wait
            if place in running:
                admission, reserved = running.pop(place)
                admission.tokens(count := int(part * reserved))
                taken += count
            else:
                with suppress(ApiError):
                    admission = stack.enter_context(limiter.admit("key a", key))
                    admission.reserve(most)
                    running[place] = admission, most
            # Also if all that run take everything.
            assert taken + sum(each for _, each in running.values()) <= 120 + 2 * now[0] + 1e-6
