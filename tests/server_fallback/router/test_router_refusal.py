"""The errors of decisions without a side: what they say, and whether the request may be sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.router.decision.decide import Decision, refusal
from nearfar.server_fallback.router.decision.policy import Policy, PrivateRules
from nearfar.server_fallback.router.decision.situation import FarState, Media, NearState, Situation

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance/router_refusals.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_refusals_match_the_conformance_cases(case: dict[str, Any]) -> None:
    near = NearState(available=case.get("available", True))
    media = tuple(Media(**each) for each in case.get("media", ()))
    situation = Situation((), near, FarState(online=True), pin=case.get("pin"), media=media)
    private = PrivateRules(labels=(), media="far" if case.get("may_leave") else "near")
    policy = Policy(version=1, mode=case.get("mode", "prefer-near"), private=private)
    decision = Decision(None, case["reason"], case.get("private", False))
    error = refusal(decision, situation, policy, case.get("near"))
    assert (type(error), error.message) == (
        {"request": RequestError, "unavailable": Unavailable}[case["kind"]],
        case["message"],
    )
    assert error.details["code"] == case["reason"]
