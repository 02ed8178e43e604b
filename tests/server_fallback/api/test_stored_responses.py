"""Stored responses: their bounds, and those that a front end computes."""

from __future__ import annotations

import json

import pytest

from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.stored_responses import OwnResponses, StoredResponse
from nearfar.server_fallback.front_ends.shared_responses import ResponsesOfFrontEnd
from nearfar.server_fallback.processes.frames import Ask

SIZE = 10_000


def stored(name: str, client: str = "a", previous: str | None = None, *, running: bool = False) -> StoredResponse:
    return StoredResponse(client, name, json.dumps({"text": "x" * SIZE}).encode(), b"[]", previous, running)


def names(responses: OwnResponses, client: str, *asked: str) -> list[str]:
    return [name for name in asked if name in responses._stored.get(client, {})]


def test_a_client_without_room_loses_its_own_and_first_what_it_has_not_used() -> None:
    responses = OwnResponses(5 * SIZE + SIZE // 2 + 5 * 1024)
    responses.put_now(stored("other", "b"))
    for number in range(4):
        responses.put_now(stored(str(number), previous=None if number == 0 else "0"))
    # It uses the first.
    responses.chain_now("a", "2")
    responses.put_now(stored("4"))
    responses.put_now(stored("5"))
    assert names(responses, "b", "other") == ["other"]
    assert names(responses, "a", *"012345") == ["0", "2", "4", "5"]


def test_what_runs_stays_longest_and_is_settled_once() -> None:
    responses = OwnResponses(2 * SIZE + SIZE // 2 + 2 * 1024)
    responses.put_now(stored("running", running=True))
    for name in "123":
        responses.put_now(stored(name))
    assert names(responses, "a", "running", *"123") == ["running", "3"]
    assert responses.settle_now(stored("running"))
    assert not responses.settle_now(stored("running"))
    assert not responses.settle_now(stored("unknown"))


def test_a_broken_chain_names_what_is_missing() -> None:
    responses = OwnResponses(1 << 20)
    for name, previous in (("1", None), ("2", "1"), ("3", "2")):
        responses.put_now(stored(name, previous=previous))
    assert [each.id for each in responses.chain_now("a", "3")] == ["1", "2", "3"]
    assert responses.drop_now("a", "1")
    with pytest.raises(ApiError, match="'1'") as error:
        responses.chain_now("a", "3")
    assert error.value.status == 404
    for name in "23":
        responses.drop_now("a", name)
    assert (responses._stored, responses._sizes) == ({}, {})


def test_a_front_end_that_ends_fails_what_it_computed() -> None:
    responses = OwnResponses(1 << 20)
    front_end = ResponsesOfFrontEnd(responses)
    for name in ("ended", "lost"):
        front_end.answer(Ask(OwnResponses.put_now, (stored(name, running=True),)))
    assert front_end.answer(Ask(OwnResponses.settle_now, (stored("ended"),)))
    front_end.fail_running("gone")
    lost, ended = (responses.find_now("a", name) for name in ("lost", "ended"))
    assert lost is not None
    assert ended is not None
    assert not lost.running
    found = json.loads(lost.response)
    assert (found["status"], found["error"]["message"][:5]) == ("failed", "gone;")
    assert "status" not in json.loads(ended.response)
