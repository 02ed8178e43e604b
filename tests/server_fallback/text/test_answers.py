"""Several answers at once, one of which fails."""

from __future__ import annotations

import asyncio

import pytest
from waiting import WAIT_SECONDS

from nearfar.server_fallback.text.answers import Choice, answer_all


class PanicException(BaseException):
    """The exception that libraries in Rust raise."""


@pytest.mark.parametrize("failure", [ValueError(), PanicException()])
def test_the_failure_of_one_answer_reaches_the_reader_and_ends_the_others(failure: BaseException) -> None:
    ended = []

    async def endless() -> Choice:
        try:
            await asyncio.sleep(100)
            yield  # type: ignore[misc]
        finally:
            ended.append(True)

    async def failing() -> Choice:
        await asyncio.sleep(0)
        raise failure
        yield

    async def read() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            async for _ in answer_all([endless(), failing()]):
                pass

    with pytest.raises(type(failure)):
        asyncio.run(read())
    assert ended == [True]
