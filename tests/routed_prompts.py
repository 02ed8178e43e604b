"""Prompts of the demo models, and the policies that send them to one side or the other."""

from __future__ import annotations

from typing import Any

from conftest import ROOT

EASY, HARD = "what is 27 + 58?", "what is 12 + 30 + 7?"
# For tests of what follows a decision: this predictor sends messages with three numbers to far. A side that failed may
# be used again immediately, for the next test.
POLICY: dict[str, Any] = {
    "version": 1,
    "mode": "auto",
    "quality": {
        "predictor": {
            "version": 2,
            "features": ["numbers"],
            "terms": [],
            "mean": [1.25],
            "scale": [0.1],
            "near": {"weights": [-5.0], "bias": 0.0},
            "far": {"weights": [0.0], "bias": 5.0},
            "calibration": {"near": [1.0, 0.0], "far": [1.0, 0.0]},
            "fitted": {"pairs": 1, "date": "2026-01-01", "wanted": {"quality": 0.9}},
        },
        "threshold": 0.1,
    },
    "retries": 0,
    "breaker": {"failures": 100, "open_ms": 1},
}
DEMO_POLICY = ROOT / "server_fallback" / "router" / "fitting" / "demo_policy.json"
# The minimum distance of a gain from the threshold.
MARGIN = 0.25
# A sum, spelling and small talk, for which near was trained.
STAY = ("85+6=?", "Spelling: botid?", "introduce yourself")
# Near would spell this, but it is unsure.
UNSURE = "give me the letters of star?"
# The first is a sum of several numbers, for which only far was trained.
GO = ("quick math: 64 plus 40 plus 7 plus 93.", UNSURE)


def reading_first_tokens(quality: dict[str, Any]) -> dict[str, Any]:
    """The fitted predictor with one more feature, near's confidence in its first tokens."""
    predictor = quality["predictor"]
    end = len(predictor["features"])

    def with_weight(side: dict[str, Any], weight: float) -> dict[str, Any]:
        return {**side, "weights": [*side["weights"][:end], weight, *side["weights"][end:]]}

    return {
        **quality,
        "predictor": {
            **predictor,
            "features": [*predictor["features"], "first_mean_logprob"],
            "mean": [*predictor["mean"], -0.03],
            "scale": [*predictor["scale"], 0.09],
            "near": with_weight(predictor["near"], 2.0),
            "far": with_weight(predictor["far"], 0.0),
        },
    }
