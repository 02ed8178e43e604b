"""Which texts of a request are searched for private patterns: those that a person or a program wrote.

`web/src/shared/decision/private_texts.ts` defines and finds them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nearfar.compiler.shared.script import SharedScript


class RequestTexts(NamedTuple):
    """``parts``: the texts of each message in the order of the prompt; none if its content is all of them. ``texts``:
    all others, which meet no text of a prompt.
    """

    parts: list[list[str]]
    texts: list[str]


def request_texts(request: Mapping[str, Any], contents: Sequence[str]) -> RequestTexts:
    """The texts of a request whose messages have these ``contents``."""
    try:
        written = json.dumps(request, allow_nan=False)
    except ValueError:
        written = json.dumps(_finite(request), allow_nan=False)
    return RequestTexts(**SharedScript.of_thread().ask_text("privateTexts", written, json.dumps(contents)))


def _finite(value: Any) -> Any:
    """A value with the text of each number that is not finite, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
