"""The prefix that a side has probably computed before, with the vectors that the browser's router also runs
(router_prefix.json).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.server_fallback.router.decision.prefix_memory import PrefixMemory
from nearfar.server_fallback.router.decision.situation import Message

CASES = json.loads((Path(__file__).parents[2] / "conformance/router_prefix.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_prefix_memory_matches_the_vectors(case: dict[str, Any]) -> None:
    memory = PrefixMemory()
    for case_answer in case["remembered"]:
        memory.remember(messages_of(case_answer), case_answer["answer"], case_answer["now"])
    assert memory.cached_share(messages_of(case), case["now"]) == case["share"]


def messages_of(case: dict[str, Any]) -> list[Message]:
    return [Message(each["role"], each["content"], tuple(each.get("labels", ()))) for each in case["messages"]]
