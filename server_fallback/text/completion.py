"""Chunks of OpenAI's older completions, which continue texts or token ids without the chat template."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from nearfar.compiler.text.tokenizer import Tokenizer

from ..engine.request import TokenRequest
from ..schema.common import Usage
from ..schema.completions import CompletionChoice, CompletionChunk, CompletionLogprobs
from .answers import usage_of
from .choice import ChoiceEnd, Piece, TokenSpan
from .requests import check_length, check_prompt
from .vocabulary import Vocabulary
from .writer import Writer, Written


@dataclass(frozen=True, slots=True)
class Prompt:
    """``source`` is the text or the token ids of the request."""

    ids: Sequence[int]
    source: str | list[int]

    def text(self, tokenizer: Tokenizer) -> str:
        """The text that is echoed. The ids must be in the vocabulary."""
        return self.source if isinstance(self.source, str) else tokenizer.decode(self.source)


def read_prompts(
    tokenizer: Tokenizer,
    given: str | list[int] | list[str] | list[list[int]],
    vocab_size: int,
    context: int,
    param: str,
    *,
    split_special_tokens: bool = True,
) -> list[Prompt]:
    """Read one text or list of token ids, or several of either. Texts get the special tokens that the tokenizer adds.

    Raises RequestError for the first prompt that is empty, exceeds the context, has an unknown id or cannot be encoded.
    The prompts after it are not encoded.
    """

    def read(part: str | list[int], name: str) -> Prompt:
        if isinstance(part, str):
            check_length(tokenizer, part, context, name)
            prompt = Prompt(tokenizer.encode(part, split_special_tokens=split_special_tokens), part)
        else:
            prompt = Prompt(part, part)
        check_prompt(prompt.ids, vocab_size, context, name)
        return prompt

    if isinstance(given, str):
        return [read(given, param)]
    ids = [part for part in given if isinstance(part, int)]
    if len(ids) == len(given):
        return [read(ids, param)]
    parts = [part for part in given if not isinstance(part, int)]
    return [read(part, param if len(parts) == 1 else f"{param}[{index}]") for index, part in enumerate(parts)]


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """How answers are streamed.

    Each prompt has ``n`` consecutive choices. ``echoes`` are the texts that the choices start with. ``vocabulary`` is
    None unless log-probabilities are requested.
    """

    model: str
    n: int
    echoes: Sequence[str]
    vocabulary: Vocabulary | None


class CompletionAnswer(Generic[Written]):
    """Implements `Answer`. The last chunk has the usage and no choices."""

    def __init__(
        self, requests: Sequence[TokenRequest], form: CompletionForm, writer: Writer[CompletionChunk, Written]
    ) -> None:
        self._requests, self._form, self._writer = requests, form, writer
        self._identity, self._created = f"cmpl-{uuid.uuid4()}", int(time.time())
        self._ends: dict[int, ChoiceEnd] = {}

    def begin(self) -> Sequence[Written]:
        """The echoes."""
        return [self._writer.chunk(self._text_chunk(index, text)) for index, text in enumerate(self._form.echoes)]

    def add(self, index: int, item: Piece | ChoiceEnd) -> Sequence[Written]:
        vocabulary, writer = self._form.vocabulary, self._writer
        if isinstance(item, ChoiceEnd):
            self._ends[index] = item
            end = CompletionChoice(index=index, text="", finish_reason=item.finish_reason)
            return (writer.chunk(self._chunk(end)),)
        if vocabulary is not None and item.tokens:
            logprobs = _logprobs(vocabulary, item.tokens)
            return (writer.chunk(self._chunk(CompletionChoice(index=index, text=item.text, logprobs=logprobs))),)
        return (writer.text(index, item.text, self._text_chunk),) if item.text else ()

    def end(self) -> Written:
        ends = [self._ends[index] for index in sorted(self._ends)]
        return self._writer.chunk(self._chunk(usage=usage_of(self._requests, ends, self._form.n)))

    def _chunk(self, *choices: CompletionChoice, usage: Usage | None = None) -> CompletionChunk:
        return CompletionChunk(
            id=self._identity, created=self._created, model=self._form.model, choices=list(choices), usage=usage
        )

    def _text_chunk(self, index: int, text: str) -> CompletionChunk:
        return self._chunk(CompletionChoice(index=index, text=text))


def _logprobs(vocabulary: Vocabulary, tokens: Sequence[TokenSpan]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[vocabulary.name(span.token.token_id) for span in tokens],
        token_logprobs=[span.token.logprob or 0.0 for span in tokens],
        top_logprobs=[
            {vocabulary.name(other.token_id): other.logprob for other in span.token.alternatives} for span in tokens
        ],
        text_offset=[span.start for span in tokens],
    )
