"""No byte of a picture, a video, a recording or a file leaves under a policy that keeps media or describes them; the
far side records every byte that it gets.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from fake_openai import Reply, running
from hybrid_sides import ABOUT, FakeFar, FakeNear, policy, run
from test_hybrid_files import Heard
from test_hybrid_private import Wire

from nearfar.compiler.runtime.errors import DeviceError, NearfarError
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far

VECTORS = json.loads((Path(__file__).parents[2] / "conformance/media_bytes.json").read_text(encoding="utf-8"))
MARK = VECTORS["mark"].encode()
KEEPING: list[dict[str, Any]] = [{"patterns": ["[0-9]{9}"]}, {"media": "near"}, {"media": "describe"}]
EAGER: dict[str, Any] = {
    "escalation": {"then": "restart", "warm": "always", "min_mean_logprob": 0.0, "window_tokens": 1},
    "timeouts": {"hedge_after_ms": None},
    "breaker": {"failures": 1},
}
NEARS = [
    lambda: FakeNear("a red boat", sees=True, watches=True),
    lambda: FakeNear("a red boat", logprobs=(-9.0,) * 9),
    lambda: FakeNear(sees=True, watches=True, error=DeviceError("lost"), error_at=3),
]


async def sent(request: dict[str, Any], rules: dict[str, Any], near: FakeNear) -> tuple[bytes, list[str]]:
    """What far receives in two turns, and who answers."""
    far, wire, outcomes = FakeFar(), Wire(), list[str]()
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "context": 4096}]})
    async with (
        running(far),
        wire.to(far),
        await Hybrid.create(
            near=near, far=Far(wire.url, vision=True, video=True, sound=True), policy=rules, transcriber=Heard()
        ) as opened,
    ):
        for pin in (None, "far"):
            try:
                route = (await opened.chat.completions.create(**request, pin=pin)).route
                outcomes.append("none" if route is None else route.side)
            except NearfarError as error:
                outcomes.append(str(error.details.get("code")))
    return wire.bytes, outcomes


@pytest.mark.parametrize("case", VECTORS["requests"], ids=lambda case: case["name"])
def test_no_bytes_leave_unless_the_policy_says_so(case: dict[str, Any]) -> None:
    async def work() -> None:
        for mode, private, near in itertools.product(("prefer-far", "prefer-near"), KEEPING, NEARS):
            rules = policy(mode, private=private, **EAGER)
            wire, outcomes = await sent(case["request"], rules, near())
            assert MARK not in wire, (mode, private)
            if private.get("media") != "describe":
                assert "far" not in outcomes

    run(work())


@pytest.mark.parametrize("case", VECTORS["requests"], ids=lambda case: case["name"])
def test_the_bytes_leave_if_the_policy_lets_media_leave(case: dict[str, Any]) -> None:
    """Else nothing of the test above could fail."""

    async def work() -> None:
        rules = policy("prefer-far", private={"media": "far"})
        wire, outcomes = await sent(case["request"], rules, FakeNear())
        assert outcomes == ["far", "far"]
        assert MARK in wire

    run(work())
