"""Chunks of OpenAI's older completions, which continue texts or token ids without the chat template."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nearfar.compiler.runtime.text.tokenizer import Tokenizer

from ..engine.request import PromptLogprobs, TokenRequest
from ..schema.common import Usage
from ..schema.completions import CompletionChunk, CompletionChunkChoice, CompletionLogprobs
from .answers import usage_of
from .choice import ChoiceEnd, Part, TokenSpan
from .output import Output
from .prompt_tokens import echo_logprobs, named_logprobs, prompt_logprobs
from .requests import check_length, check_prompt
from .vocabulary import Vocabulary


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
    fill: Callable[[str | list[int]], list[int]] | None = None,
) -> list[Prompt]:
    """Read one text or list of token ids, or several of either. Texts get the special tokens that the tokenizer adds.
    ``fill`` makes the ids of a prompt whose gap is to be filled.

    Raises RequestError for the first prompt that is empty, exceeds the context, has an unknown id or cannot be encoded.
    The prompts after it are not encoded.
    """

    def read(part: str | list[int], name: str) -> Prompt:
        if isinstance(part, str):
            check_length(tokenizer, part, context, name)
        if fill is not None:
            prompt = Prompt(fill(part), part)
        elif isinstance(part, str):
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

    Each prompt has ``n`` consecutive choices. ``echoes`` are the texts that the choices start with. ``logprobs`` and
    ``prompt_logprobs`` are the numbers of alternatives that were requested; ``vocabulary`` is None if neither was.
    ``lists_ids``: whether the prompts' token ids were requested.
    """

    model: str
    tokenizer: Tokenizer
    n: int = 1
    echoes: Sequence[str] = ()
    vocabulary: Vocabulary | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    lists_ids: bool = False

    @property
    def echoes_tokens(self) -> bool:
        return bool(self.echoes) and self.logprobs is not None


class CompletionAnswer:
    """Implements `Answer`. The last chunk has the usage and no choices."""

    def __init__(self, requests: Sequence[TokenRequest], form: CompletionForm, output: Output[CompletionChunk]) -> None:
        self._requests, self._form, self._output = requests, form, output
        self._identity, self._created = f"cmpl-{uuid.uuid4()}", int(time.time())
        self._ends: dict[int, ChoiceEnd] = {}

    def begin(self) -> None:
        """The echoes, unless they wait for their log-probabilities, and the ids of the prompts."""
        form = self._form
        echoes = [""] * len(self._requests) if form.echoes_tokens or not form.echoes else form.echoes
        for index, (text, request) in enumerate(zip(echoes, self._requests, strict=True)):
            if text or form.lists_ids:
                ids = list(request.prompt_ids) if form.lists_ids else None
                self._send(CompletionChunkChoice(index=index, text=text, prompt_token_ids=ids))

    def add(self, index: int, item: Part) -> None:
        if isinstance(item, PromptLogprobs):
            self._send(self._prompt(index, item))
        elif isinstance(item, ChoiceEnd):
            self._ends[index] = item
            self._send(
                CompletionChunkChoice(index=index, text="", finish_reason=item.finish_reason, stop_reason=item.stop)
            )
        elif item.tokens or item.ids:
            logprobs = self._logprobs(index, item.tokens) if item.tokens else None
            ids = list(item.ids) or None
            self._send(CompletionChunkChoice(index=index, text=item.text, logprobs=logprobs, token_ids=ids))
        elif item.text:
            self._output.text(index, item.text, self._text_chunk)

    def end(self) -> None:
        ends = [self._ends[index] for index in sorted(self._ends)]
        self._output.chunk(self._chunk(usage=usage_of(self._requests, ends, self._form.n)))

    def _send(self, choice: CompletionChunkChoice) -> None:
        self._output.chunk(self._chunk(choice))

    def _chunk(self, *choices: CompletionChunkChoice, usage: Usage | None = None) -> CompletionChunk:
        return CompletionChunk(
            id=self._identity, created=self._created, model=self._form.model, choices=list(choices), usage=usage
        )

    def _text_chunk(self, index: int, text: str) -> CompletionChunk:
        return self._chunk(CompletionChunkChoice(index=index, text=text))

    def _prompt(self, index: int, item: PromptLogprobs) -> CompletionChunkChoice:
        form, request = self._form, self._requests[index]
        assert form.vocabulary is not None
        text, logprobs, listed = "", None, None
        if form.echoes_tokens:
            assert form.logprobs is not None
            text = form.echoes[index]
            logprobs = echo_logprobs(
                form.vocabulary, form.tokenizer, request.prompt_ids, item.tokens, text, form.logprobs
            )
        if form.prompt_logprobs is not None:
            listed = prompt_logprobs(form.vocabulary, item.tokens, form.prompt_logprobs)
        return CompletionChunkChoice(index=index, text=text, logprobs=logprobs, prompt_logprobs=listed)

    def _logprobs(self, index: int, tokens: Sequence[TokenSpan]) -> CompletionLogprobs:
        vocabulary, most = self._form.vocabulary, self._form.logprobs
        assert vocabulary is not None
        assert most is not None
        start = len(self._form.echoes[index]) if self._form.echoes else 0
        names = [_name(vocabulary, span) for span in tokens]
        return CompletionLogprobs(
            tokens=names,
            token_logprobs=[span.token.logprob or 0.0 for span in tokens],
            top_logprobs=[
                named_logprobs(vocabulary, span.token, most, name) for span, name in zip(tokens, names, strict=True)
            ],
            text_offset=[start + span.start for span in tokens],
        )


def _name(vocabulary: Vocabulary, span: TokenSpan) -> str:
    """The token as text; of a token that a stop string cuts, the part before it, so that names join to the text."""
    whole = vocabulary.tokens[span.token.token_id] or b""
    is_cut = span.content != b"" and whole.startswith(span.content)
    return span.content.decode(errors="replace") if is_cut else vocabulary.name(span.token.token_id)
