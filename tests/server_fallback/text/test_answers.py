"""Several answers at once, one of which fails."""

from __future__ import annotations

import asyncio

import pytest
from waiting import WAIT_SECONDS

from nearfar.server_fallback.text.answers import all_choices


class PanicException(BaseException):
    """The exception that libraries in Rust raise."""


@pytest.mark.parametrize("failure", [ValueError(), PanicException()])
def test_the_failure_of_one_answer_reaches_the_reader_and_ends_the_others(failure: BaseException) -> None:
    ended = []

    async def endless() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(True)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise failure

    async def read() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await all_choices([endless(), failing()])

    with pytest.raises(type(failure)):
        asyncio.run(read())
    assert ended == [True]
