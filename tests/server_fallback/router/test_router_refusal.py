"""The errors of decisions without a side: what they say, and whether the request may be sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.router.decision.decide import Decision, refusal
from nearfar.server_fallback.router.decision.situation import FarState, NearState, Situation

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance/router_refusals.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_refusals_match_the_conformance_cases(case: dict[str, Any]) -> None:
    near = NearState(available=case.get("available", True))
    situation = Situation((), near, FarState(online=True), pin=case.get("pin"))
    decision = Decision(None, case["reason"], case.get("private", False))
    error = refusal(decision, situation, case.get("mode", "prefer-near"), case.get("near"))
    assert (type(error), error.message) == (
        {"request": RequestError, "unavailable": Unavailable}[case["kind"]],
        case["message"],
    )
    assert error.details["code"] == case["reason"]
