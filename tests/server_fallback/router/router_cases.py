"""tests/conformance/router_cases.json, which the browser's router runs too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nearfar.server_fallback.router.decision.situation import Situation

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance/router_cases.json").read_text(encoding="utf-8")
)


def situation_of(changes: dict[str, Any]) -> Situation:
    base = VECTORS["situation"]
    sides = {side: {**base[side], **changes.get(side, {})} for side in ("near", "far")}
    return Situation.from_json(json.dumps({**base, **changes, **sides}))
