"""A question to the demo model, and structures for its answers, for tests of the servers of others."""

from __future__ import annotations

import json
import re
from typing import Any

QUESTION: Any = [{"role": "user", "content": "what is 27 + 58?"}]
ANSWER = "27 + 58 = 85"
# Both servers list the token that ends an answer among its log-probabilities.
ENDED = f"{ANSWER}<end>"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,6}$"}},
    "required": ["city"],
    "additionalProperties": False,
}
# What a request asks for, in each form, and a pattern of the answers.
STRUCTURES: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}}, r"\{.*\}"),
    ({"extra_body": {"response_format": {"type": "regex", "pattern": "(yes|no)!{2}"}}}, "(yes|no)!!"),
    ({"extra_body": {"response_format": {"type": "grammar", "grammar": 'root ::= "ab" | "cd"'}}}, "ab|cd"),
    ({"extra_body": {"guided_choice": ["left", "right"]}}, "left|right"),
    ({"extra_body": {"structured_outputs": {"regex": "[0-9]{3}"}}}, "[0-9]{3}"),
]


def text_of(answer: Any) -> str:
    """The text of the first choice, of a whole answer or a stream."""
    if hasattr(answer, "choices"):
        return str(answer.choices[0].message.content)
    return "".join(choice.delta.content or "" for chunk in answer for choice in chunk.choices)


def require_structure(text: str, pattern: str) -> None:
    assert re.fullmatch(pattern, text, re.DOTALL), text
    if pattern == r"\{.*\}":
        assert re.fullmatch("[A-Z][a-z]{2,6}", json.loads(text)["city"])
