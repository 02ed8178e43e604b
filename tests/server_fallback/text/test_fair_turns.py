"""Turns that clients share: the order of clients, and clients that leave."""

from __future__ import annotations

import asyncio

from nearfar.server_fallback.text.fair_turns import FairTurns


class Uses:
    """Uses of a resource. Each takes a given time on a simulated clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = FairTurns(clock=lambda: self.now)
        self.order: list[str] = []

    async def use(self, client: str, seconds: float) -> None:
        async with self.turns.turn(client):
            self.order.append(client)
            await asyncio.sleep(0)
            self.now += seconds

    def arrive(self, client: str, seconds: float) -> asyncio.Task[None]:
        return asyncio.create_task(self.use(client, seconds))


def test_clients_take_turns_however_many_requests_each_has() -> None:
    async def work() -> str:
        uses = Uses()
        await asyncio.gather(*(uses.arrive(client, 1) for client in "aaaaabbc"))
        return "".join(uses.order)

    assert asyncio.run(work()) == "abcabaaa"


def test_time_counts_and_not_turns() -> None:
    async def work() -> str:
        uses = Uses()
        await asyncio.gather(*(uses.arrive(client, 4 if client == "a" else 1) for client in "aaabbbbbbbb"))
        return "".join(uses.order)

    assert asyncio.run(work()) == "abbbbabbbba"


def test_a_new_client_is_next() -> None:
    async def work() -> str:
        uses = Uses()
        running = [uses.arrive(client, 1) for client in "abcabcabc"]
        while len(uses.order) < 5:
            await asyncio.sleep(0)
        await asyncio.gather(*running, uses.arrive("new", 1))
        return " ".join(uses.order[:7])

    # The sixth may already have been chosen when the new one arrived.
    assert "new" in asyncio.run(work()).split()[5:]


def test_requests_that_leave_the_queue_cost_nothing() -> None:
    async def work() -> None:
        uses = Uses()
        async with uses.turns.turn("first"):
            waiting = [uses.arrive(client, 1) for client in "aab"]
            await asyncio.sleep(0)
            assert uses.turns.waiting
            waiting[0].cancel()
            waiting[2].cancel()
            await asyncio.wait({waiting[0], waiting[2]})
            waiting.append(uses.arrive("c", 1))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting, return_exceptions=True)
        assert uses.order == ["a", "c"]
        # Nothing remains that would block the next one.
        await uses.use("d", 1)

    asyncio.run(work())


def test_any_number_of_requests_of_one_client_may_wait() -> None:
    """Their number is limited by the server (`--client-share`), and by no other limit in its depths."""

    async def work() -> int:
        uses = Uses()
        await asyncio.gather(*(uses.arrive("a", 1) for _ in range(1000)))
        return len(uses.order)

    assert asyncio.run(work()) == 1000


def test_a_request_that_leaves_as_its_turn_comes_passes_it_on() -> None:
    async def work() -> None:
        uses = Uses()
        async with uses.turns.turn("first"):
            leaves, stays = uses.arrive("a", 1), uses.arrive("b", 1)
            await asyncio.sleep(0)
        # It has the turn, but has not run since.
        leaves.cancel()
        await asyncio.gather(leaves, stays, return_exceptions=True)
        assert uses.order == ["b"]

    asyncio.run(work())
