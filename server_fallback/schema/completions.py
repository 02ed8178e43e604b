"""/v1/completions, OpenAI's older form: texts or token ids are continued without a chat template."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .chat import ChatCompletionRequest, ResponseFormat
from .common import Answer, FinishReason, GenerationRequest, PromptLogprobs, Texts, Usage
from .route import Route


class CompletionRequest(GenerationRequest):
    """``prompt``: a text, token ids, or several of either. Each prompt gets ``n`` answers: choice p * n + i is answer i
    of prompt p. With ``echo`` and ``logprobs``, the prompt's tokens are listed before those of the answer, and the
    token that ended the answer after them, as in vLLM.

    ``split_special_tokens`` (extension; true if absent): the text of a control token is encoded as ordinary text. With
    false it becomes a single control token; use this only for prompts that your own code writes.
    """

    prompt: Texts
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    # Extension from vLLM.
    response_format: ResponseFormat | None = None
    split_special_tokens: bool | None = None


# The requests that a model's text answers.
AnswerRequest = ChatCompletionRequest | CompletionRequest


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int]


class CompletionChoice(Answer):
    """The last three fields are vLLM's; they are left out unless they were requested."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def has_text(self) -> bool:
        return bool(self.text)


class CompletionChunk(Answer):
    """A part of a streamed completion; ``finish_reason`` is null until the end of a choice."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    # Extension.
    route: Route | None = None


class Completion(CompletionChunk):
    usage: Usage
