"""The waiting queue: admissions are fair between clients."""

from __future__ import annotations

import random

from nearfar.server_fallback.engine.sequence import Sequence
from nearfar.server_fallback.engine.waiting_queue import WaitingQueue


def test_a_clients_first_request_waits_for_one_admission_of_each_other_client() -> None:
    chosen = random.Random(0)
    for _ in range(50):
        queue = WaitingQueue()
        ids = iter(range(10_000))
        for client in ("a", "b", "c"):
            for _ in range(chosen.randint(1, 20)):
                queue.add(Sequence(next(ids), [1], client=client))
        for _ in range(chosen.randint(0, len(queue) - 1)):
            admit(queue)
        queue.add(Sequence(next(ids), [1], client="new"))
        before: list[str] = []
        while (client := admit(queue).client) != "new":
            before.append(client)
            queue.add(Sequence(next(ids), [1], client=client))
        assert len(before) == len(set(before))


def test_one_client_is_served_in_order_of_priority_and_arrival() -> None:
    queue = WaitingQueue()
    for id, priority in enumerate((0, 2, 1, 2)):
        queue.add(Sequence(id, [1], priority=priority, resumes=id == 3))
    assert [admit(queue).id for _ in range(4)] == [1, 3, 2, 0]


def test_a_sequence_that_resumes_goes_first_and_takes_no_turn() -> None:
    queue = WaitingQueue()
    for id in (0, 1):
        queue.add(Sequence(id, [1], client="a"))
    queue.add(Sequence(2, [1], client="b", resumes=True))
    queue.add(Sequence(3, [1], client="b"))
    assert [admit(queue).id for _ in range(4)] == [2, 0, 3, 1]


def test_a_higher_priority_goes_before_other_clients() -> None:
    queue = WaitingQueue()
    for id in range(3):
        queue.add(Sequence(id, [1], client="a", priority=1))
    queue.add(Sequence(3, [1], client="b"))
    assert [admit(queue).id for _ in range(4)] == [0, 1, 2, 3]


def admit(queue: WaitingQueue) -> Sequence:
    sequence = queue.head
    assert sequence is not None
    queue.admit(sequence)
    return sequence
