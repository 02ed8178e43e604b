"""Requests to a pair of sides: OpenAI's requests with keys that decide which side may answer (extension). A server of
one side rejects these keys.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from .chat import ChatCompletionRequest, Message, Messages
from .common import Items
from .completions import CompletionRequest
from .decide import DecideRequest, DecideResponse
from .embeddings import EmbeddingRequest
from .route import Route, Side

Labels = Annotated[Items[str], Field(max_length=64)]
# BCP 47's first part, such as "en".
Language = Annotated[str, Field(min_length=2, max_length=3)]


class Stake(BaseModel):
    """Of a step of an agent: ``doubt`` is added to far's gain in probability to be right, and ``weight`` multiplies the
    sum. `web/src/shared/agent/stake.ts` says how they follow from a step.
    """

    model_config = ConfigDict(extra="forbid")

    weight: Annotated[float, Field(ge=0, le=100)] = 1.0
    doubt: Annotated[float, Field(ge=0, le=1)] = 0.0


class RoutedMessage(Message):
    """``labels`` of one message apply to the entire request."""

    labels: Labels | None = None


class RoutedChatRequest(ChatCompletionRequest):
    """``labels`` are those of the policy. ``pin``: only this side may answer. ``language``: the language that the
    answering model must support.
    """

    messages: Messages[RoutedMessage]  # type: ignore[assignment]
    labels: Labels | None = None
    pin: Side | None = None
    language: Language | None = None
    stake: Stake | None = None


class RoutedCompletionRequest(CompletionRequest):
    labels: Labels | None = None
    pin: Side | None = None
    language: Language | None = None


class RoutedEmbeddingRequest(EmbeddingRequest):
    labels: Labels | None = None
    pin: Side | None = None
    language: Language | None = None


class RoutedDecideRequest(DecideRequest):
    messages: Messages[RoutedMessage] | None = None  # type: ignore[assignment]
    labels: Labels | None = None
    pin: Side | None = None
    language: Language | None = None


class RoutedDecideResponse(DecideResponse):
    """``sides`` has the side that decided each question; ``route`` and ``calibration_model`` are those of the first one
    asked.
    """

    sides: dict[str, Side]
    route: Route


# The keys for the choice of a side, which are not sent to it.
ROUTING = frozenset({"labels", "pin", "language", "stake"})


def unlabelled_chat(request: ChatCompletionRequest) -> ChatCompletionRequest:
    """The request for a side, without the keys that decide which side answers."""
    messages = [_plain(message) for message in request.messages]
    return ChatCompletionRequest.model_construct(**_fields(request, {*ROUTING, "messages"}), messages=messages)


def unlabelled_completion(request: CompletionRequest) -> CompletionRequest:
    return CompletionRequest.model_construct(**_fields(request, ROUTING))


def unlabelled_embedding(request: EmbeddingRequest) -> EmbeddingRequest:
    return EmbeddingRequest.model_construct(**_fields(request, ROUTING))


def unlabelled_decisions(request: DecideRequest) -> DecideRequest:
    messages = None if request.messages is None else [_plain(message) for message in request.messages]
    return DecideRequest.model_construct(**_fields(request, {*ROUTING, "messages"}), messages=messages)


def _plain(message: Message) -> Message:
    return Message.model_construct(**_fields(message, {"labels"}))


def _fields(value: BaseModel, without: Set[str]) -> dict[str, Any]:
    """The labels of the request and of its messages."""
    return {name: getattr(value, name) for name in value.model_fields_set - without}
