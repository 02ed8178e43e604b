"""A vocabulary, and grammars that compile at once or take long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from picking import END, TOKENS, pick

from nearfar.server_fallback.text.grammar.grammars import Grammars
from nearfar.server_fallback.text.grammar.source import GrammarSource, JsonSource
from nearfar.server_fallback.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary((*TOKENS[:END], b"</s>"), frozenset([END]), (END,), None)
NULL = JsonSource('{"type": "null"}')
# The compiler's cost grows with the square of the number of optional properties.
SLOW = JsonSource(
    json.dumps({"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(700)}})
)
Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def one(grammars: Grammars, source: GrammarSource, seed: int = 0) -> str | None:
    [constraint] = run(grammars.constraints(source, 1, "response_format"))
    return pick(constraint, seed)
