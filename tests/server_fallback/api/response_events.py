"""Events of /v1/responses, read by the classes of OpenAI's client: each event must fit its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel


@cache
def event_classes() -> Mapping[str, type[BaseModel]]:
    union = get_args(ResponseStreamEvent)[0]
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(union)}


def read_events(body: str) -> list[Any]:
    """The events of a stream. Each has its type as its name, and they are numbered from 0."""
    events = list[Any]()
    for text in body.split("\n\n"):
        lines = [line for line in text.split("\n") if line and not line.startswith(("id: ", ":"))]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event_classes()[event["type"]].model_validate(event))
    first = events[0].sequence_number
    assert [event.sequence_number for event in events] == list(range(first, first + len(events)))
    return events
