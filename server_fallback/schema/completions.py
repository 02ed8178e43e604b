"""/v1/completions, OpenAI's older form: texts or token ids are continued without a chat template."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .chat import ChatCompletionRequest, ResponseFormat
from .common import (
    EXTENSION,
    EXTENSION_IF_SET,
    GenerationRequest,
    IfRequested,
    Items,
    LeftOut,
    PromptLogprobs,
    Reply,
    Request,
    StopReason,
    Texts,
    Usage,
)
from .limits import MAX_CHOICES
from .receipt import AnswerPart, SignedReceipt
from .route import Route

# Of a repository.
MAX_FILES = 1024


class ExtraFile(Request):
    filename: str
    text: str


class CompletionRequest(GenerationRequest):
    """Choice p * n + i is answer i of prompt p."""

    prompt: Texts
    """One or several texts or lists of token ids; each prompt gets ``n`` answers."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """The number of alternatives that are reported for each token."""
    echo: bool | None = None
    """Whether the answer starts with the prompt. With ``logprobs``, the prompt's tokens are listed before those of the
    answer, and the token that ended the answer after them, as in vLLM.
    """
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Only the value of ``n``: there is no choice among more answers."""
    suffix: str | None = None
    """The text after the gap that the answer fills, for models with tokens for this; an empty one has no effect."""
    middle: Annotated[str | None, EXTENSION] = None
    """Extension: the beginning of the text in the gap, which may be empty. It makes an empty ``suffix`` count."""
    input_extra: Annotated[Annotated[Items[ExtraFile], Field(max_length=MAX_FILES)] | None, EXTENSION_IF_SET] = None
    """Extension of llama.cpp's: files of the same repository, for a gap."""
    response_format: Annotated[ResponseFormat | None, EXTENSION] = None
    """Extension, as in vLLM."""
    split_special_tokens: Annotated[bool | None, EXTENSION] = None
    """Extension: if false, control tokens that a prompt spells out become single tokens. Use this only for prompts that
    your own code writes. By default they are split.
    """

    @property
    def has_gap(self) -> bool:
        return bool(self.suffix or self.input_extra) or self.middle is not None


# The requests that a model's text answers.
AnswerRequest = ChatCompletionRequest | CompletionRequest


class CompletionLogprobs(Reply):
    tokens: list[str]
    token_logprobs: list[float | None]
    """The first token of an echoed prompt has none."""
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int]


TextFinishReason = Literal["stop", "length"] | str


class CompletionChunkChoice(Reply):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: TextFinishReason | None = None
    stop_reason: StopReason = None
    token_ids: LeftOut[list[int]] = None
    """Extension of vLLM's, if requested."""
    prompt_token_ids: LeftOut[list[int]] = None
    """Extension of vLLM's, if requested."""
    prompt_logprobs: LeftOut[PromptLogprobs] = None
    """Extension of vLLM's, if requested."""

    @property
    def has_text(self) -> bool:
        return bool(self.text)


class CompletionChoice(CompletionChunkChoice):
    finish_reason: TextFinishReason


class CompletionChunk(Reply):
    """A part of a streamed completion; ``finish_reason`` is null until the end of a choice."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: IfRequested[Usage | None] = None
    route: LeftOut[Route] = None
    """Extension, for answers that either of two sides could write."""
    receipts: LeftOut[list[SignedReceipt]] = None
    parts: LeftOut[list[AnswerPart]] = None
    """Extension, if requested: of each side that wrote a part of the answer."""


class Completion(Reply):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    route: LeftOut[Route] = None
    """Extension, for answers that either of two sides could write."""
    receipts: LeftOut[list[SignedReceipt]] = None
    parts: LeftOut[list[AnswerPart]] = None
    """Extension, if requested: of each side that wrote a part of the answer."""
