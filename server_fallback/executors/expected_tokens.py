"""How many tokens a request to another server may take. Its tokenizer is not known here, so those of the prompt are
estimated from its characters, as OpenAI does for its own limits. Pictures and sounds are not counted.
"""

from __future__ import annotations

import json
import math

from pydantic_core import to_jsonable_python

from ..schema.chat import ChatCompletionRequest
from ..schema.completions import AnswerRequest, CompletionRequest
from .upstream_bounds import bounds_of

CHARACTERS_PER_TOKEN = 4


def expected_tokens(request: AnswerRequest, context: int | None) -> tuple[int, float]:
    """The arguments of `Call.expect`. ``context`` is that of the model, 0 or None if it is not known."""
    bounds = bounds_of(request, "openai")
    if isinstance(request, ChatCompletionRequest):
        texts = [message.text + _written(message.tool_calls) for message in request.messages]
        tokens, most = _of(*texts, _written(request.tools)), bounds.tokens
    else:
        assert isinstance(request, CompletionRequest)
        tokens, most = _of_prompt(request), request.max_tokens
    if most is None:
        return tokens, bounds.choices * max(0, context - tokens) if context else math.inf
    return tokens, bounds.choices * most


def _of_prompt(request: CompletionRequest) -> int:
    """Of all prompts, and what surrounds a gap."""
    prompts = request.prompt if isinstance(request.prompt, list) else [request.prompt]
    ids = sum(1 if isinstance(each, int) else len(each) for each in prompts if not isinstance(each, str))
    files = [each.text for each in request.input_extra or ()]
    texts = [each for each in prompts if isinstance(each, str)]
    return ids + _of(*texts, *files, request.suffix or "", request.middle or "")


def _of(*texts: str) -> int:
    return math.ceil(sum(map(len, texts)) / CHARACTERS_PER_TOKEN)


def _written(value: object) -> str:
    return "" if value is None else json.dumps(to_jsonable_python(value, exclude_none=True))
