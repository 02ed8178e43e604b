"""Limits over several front ends, with a link that calls the main process's half directly."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any, cast

import pytest

from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.keys import ApiKey
from nearfar.server_fallback.api.limiter import Limiter
from nearfar.server_fallback.front_ends.front_end import SharedLimits
from nearfar.server_fallback.front_ends.front_end_process import HeldRequests
from nearfar.server_fallback.front_ends.messages import FromFrontEnd, Release, TakeTokens
from nearfar.server_fallback.processes.connection import Connection

CLIENT = "address 192.0.2.1"


class DirectLink:
    """The main process answers after ``seconds``."""

    def __init__(self, limiter: Limiter, seconds: float = 0.0) -> None:
        self.held = HeldRequests(limiter)
        self._seconds = seconds

    async def call(self, message: FromFrontEnd) -> Any:
        headers = self.held.take(cast(Any, message))
        await asyncio.sleep(self._seconds)
        return headers

    def send(self, message: FromFrontEnd) -> None:
        if isinstance(message, TakeTokens):
            self.held.take_tokens(message)
        else:
            assert isinstance(message, Release)
            self.held.release(message)


def limits_of(link: DirectLink) -> SharedLimits:
    return SharedLimits(cast(Connection, link))


def code(error: pytest.ExceptionInfo[ApiError]) -> tuple[int, str | None]:
    return error.value.status, error.value.code


def test_the_usage_of_a_client_in_one_front_end_counts_in_another() -> None:
    async def work() -> None:
        limiter = Limiter(4, 100, 0.5)
        first, second = limits_of(DirectLink(limiter)), limits_of(DirectLink(limiter))
        async with first.admit(CLIENT, None) as one, second.admit(CLIENT, None) as other:
            await one.body(30)
            with pytest.raises(ApiError) as refused:
                await other.body(21)
            assert code(refused) == (429, "client_limit_exceeded")
            await other.body(20)
            assert (first.running, second.running) == (1, 1)
            assert (first.body_bytes, second.body_bytes) == (30, 20)
            with pytest.raises(ApiError) as refused:
                async with first.admit(CLIENT, None):
                    pass
            assert code(refused) == (429, "client_limit_exceeded")
            await one.answers(4, 10)
            with pytest.raises(ApiError) as refused:
                await other.answers(2, 10)
            assert code(refused) == (429, "client_limit_exceeded")
        assert (first.running, second.running, limiter.running, limiter.body_bytes) == (0, 0, 0, 0)
        assert limiter._uses == {}

    asyncio.run(work())


def test_the_headers_are_those_of_the_rate_over_all_front_ends() -> None:
    async def work() -> None:
        limiter, key = Limiter(4, 100, 1.0, lambda: 0.0), ApiKey("a", b"", requests_per_minute=6)
        first, second = limits_of(DirectLink(limiter)), limits_of(DirectLink(limiter))
        async with first.admit("key a", key) as one, second.admit("key a", key) as other:
            assert one.headers["x-ratelimit-remaining-requests"] == "5"
            assert other.headers["x-ratelimit-remaining-requests"] == "4"
            await other.answers(3, 100)
            assert other.headers["x-ratelimit-remaining-requests"] == "2"

    asyncio.run(work())


def test_tokens_of_one_front_end_count_in_another_and_limits_change_for_both() -> None:
    async def work() -> None:
        limiter, key = Limiter(4, 100, 1.0, lambda: 0.0), ApiKey("a", b"", tokens_per_minute=60)
        link = DirectLink(limiter)
        first, second = limits_of(link), limits_of(DirectLink(limiter))
        async with first.admit("key a", key) as one:
            assert one.headers["x-ratelimit-remaining-tokens"] == "60"
            one.tokens(70)
        with pytest.raises(ApiError) as refused:
            async with second.admit("key a", key):
                pass
        assert code(refused) == (429, "rate_limit_exceeded")
        # A request that its front end has ended counts nothing any more.
        link.held.take_tokens(TakeTokens(0, 1000))
        more = replace(key, tokens_per_minute=None)
        async with second.admit("key a", more):
            limiter.set(1, 100, 1.0)
            with pytest.raises(ApiError) as refused:
                async with first.admit(CLIENT, None):
                    pass
            assert code(refused) == (429, "server_full")

    asyncio.run(work())


def test_answers_of_two_front_ends_reserve_their_tokens_together() -> None:
    async def work() -> None:
        limiter, key = Limiter(4, 100, 1.0, lambda: 0.0), ApiKey("a", b"", tokens_per_minute=100)
        first, second = limits_of(DirectLink(limiter)), limits_of(DirectLink(limiter))
        async with first.admit("key a", key) as one, second.admit("key a", key) as other:
            await one.reserve(70)
            assert one.headers["x-ratelimit-remaining-tokens"] == "30"
            with pytest.raises(ApiError) as refused:
                await other.reserve(40)
            assert code(refused) == (429, "rate_limit_exceeded")
            one.tokens(10)
            await other.reserve(90)
        # Without the limit, the main process is not asked.
        link = DirectLink(limiter)
        async with limits_of(link).admit("key b", replace(key, name="b", tokens_per_minute=None)) as free:
            link.held.release_all()
            await free.reserve(math.inf)

    asyncio.run(work())


def test_a_request_that_is_cancelled_before_it_is_admitted_holds_nothing() -> None:
    async def work() -> None:
        limiter = Limiter(4, 100, 1.0)
        limits = limits_of(DirectLink(limiter, seconds=60))

        async def admit() -> None:
            async with limits.admit(CLIENT, None):
                pass

        task = asyncio.ensure_future(admit())
        await asyncio.sleep(0)
        assert limiter.running == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (limiter.running, limits.running) == (0, 0)

    asyncio.run(work())


def test_a_front_end_that_crashes_holds_nothing() -> None:
    async def work() -> None:
        limiter = Limiter(4, 100, 1.0)
        crashed = DirectLink(limiter)
        other = limits_of(DirectLink(limiter))
        gone = limits_of(crashed).admit(CLIENT, None)
        await (await gone.__aenter__()).body(50)
        async with other.admit(CLIENT, None):
            crashed.held.release_all()
            assert (limiter.running, limiter.body_bytes) == (1, 0)
        # Its late messages change nothing.
        crashed.held.release(Release(0))
        assert limiter.running == 0

    asyncio.run(work())
