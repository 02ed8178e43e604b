"""What a side likely computed before, as tests/conformance/router_prefix.json has it, which the browser's router runs too."""

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.server_fallback.router.decision.prefix_memory import PrefixMemory
from nearfar.server_fallback.router.decision.situation import Message

CASES = json.loads((Path(__file__).parents[2] / "conformance/router_prefix.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_prefix_memory_shares_what_the_vectors_say(case: dict[str, Any]) -> None:
    memory = PrefixMemory()
    for told in case["remembered"]:
        memory.remember(messages_of(told), told["answer"], told["now"])
    assert memory.cached_share(messages_of(case), case["now"]) == case["share"]


def messages_of(told: dict[str, Any]) -> list[Message]:
    return [Message(each["role"], each["content"], tuple(each.get("labels", ()))) for each in told["messages"]]
