"""tests/conformance/router_cases.json, which the browser's router runs too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nearfar.server_fallback.router.decision.situation import FarState, Media, Message, NearState, Situation, Stake

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance/router_cases.json").read_text(encoding="utf-8")
)


def situation_of(changes: dict[str, Any]) -> Situation:
    """The situation of the vectors with these changes."""
    base = VECTORS["situation"]
    near, far = ({**base[side], **changes.get(side, {})} for side in ("near", "far"))
    fields = {**base, **changes, "near": NearState(**near), "far": FarState(**far)}
    return Situation(
        **{
            **fields,
            "messages": tuple(Message(**message) for message in fields["messages"]),
            "media": tuple(Media(**media) for media in fields["media"]),
            "stake": Stake(**fields["stake"]) if fields.get("stake") is not None else None,
        }
    )
