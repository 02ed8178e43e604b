"""/v1/responses of a gateway: two sides that know chats alone answer it."""

from __future__ import annotations

from typing import Any

from fake_openai import Reply, text_chunks
from hybrid_sides import FAR_USAGE, FakeFar, FakeNear, policy, run
from response_events import read_events
from test_gateway import responses

PATH = "/v1/responses"
ASKED: dict[str, Any] = {"model": "tiny", "input": "hi", "instructions": "Be kind."}


def test_responses_have_a_side_and_survive_a_switch() -> None:
    far = FakeFar(lambda _: Reply(chunks=text_chunks("one ", "two ", usage=FAR_USAGE), breaks_after=3))
    near = FakeNear("one two three")
    kept, switched, streamed = run(
        responses(
            near,
            far,
            policy("prefer-far"),
            (PATH, {**ASKED, "labels": ["private"], "pin": "near"}),
            (PATH, ASKED),
            (PATH, {**ASKED, "stream": True}),
        )
    )
    last = read_events(streamed.text)[-1]
    assert last.type == "response.completed"
    for answer in (kept.json(), switched.json(), last.response.to_dict()):
        [message] = answer["output"]
        assert (message["content"][0]["text"], answer["route"]["side"]) == ("one two three", "near")
    assert [each["route"]["switched_at"] for each in (kept.json(), switched.json())] == [None, 8]
    assert [[message["content"] for message in body["messages"]] for body in far.generated] == [["Be kind.", "hi"]] * 2
