"""How many tokens a request to another server may take. Its tokenizer is not known here, so those of its texts are
estimated from their characters, as OpenAI does for its own limits. Pictures and sounds are not counted.
"""

from __future__ import annotations

import json
import math
from itertools import zip_longest

from pydantic_core import to_jsonable_python

from ..schema.chat import ChatCompletionRequest
from ..schema.common import texts_of
from ..schema.completions import AnswerRequest, CompletionRequest
from ..schema.decide import DecideRequest
from ..schema.embeddings import EmbeddingRequest
from ..schema.encoding import EncodingRequest, text_of
from ..schema.rerank import RerankRequest
from ..schema.score import ClassifyRequest, ScoreRequest
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


def expected_text_tokens(request: EncodingRequest | DecideRequest, context: int | None) -> int:
    """Of a request whose answer is no text. What a server truncates counts as far as it is read."""
    if isinstance(request, DecideRequest):
        read = (request.context or "", *(message.text for message in request.messages or ()))
        return sum(_of(*read, _written(question)) for question in request.questions.values())
    most = request.truncate_prompt_tokens
    if most == -1 or (most is None and request.truncate):
        most = context or None
    return sum(tokens if most is None else min(tokens, most) for tokens in _of_inputs(request))


def _of_inputs(request: EncodingRequest) -> list[int]:
    """Of each text or pair that the model reads."""
    match request:
        case RerankRequest(query=query, documents=documents):
            return [_of(query, text_of(document)) for document in documents]
        case ScoreRequest(text_1=first, text_2=second):
            firsts, seconds = (given if isinstance(given, list) else [given] for given in (first, second))
            return [_of(*pair) for pair in zip_longest(firsts, seconds, fillvalue=firsts[0] if firsts else "")]
        case ClassifyRequest(input=texts, labels=list(labels), hypothesis_template=template):
            hypotheses = [_of(template or "", label) for label in labels]
            return [tokens + hypothesis for tokens in _of_each(texts) for hypothesis in hypotheses]
    assert isinstance(request, EmbeddingRequest | ClassifyRequest)
    return _of_each(request.input)


def _of_each(texts: str | list[str] | list[int] | list[list[int]]) -> list[int]:
    return [_of(each) if isinstance(each, str) else len(each) for each in texts_of(texts)]


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
