"""/v1/score and /v1/classify, as in vLLM."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator
from pydantic_core import PydanticCustomError

from .common import Items, LeftOut, Reply, Texts
from .encoding import EncodingRequest, EncodingUsage, Strings, require_few

Labels = Annotated[Items[str], BeforeValidator(require_few)]


class ScoreRequest(EncodingRequest):
    """Each of ``text_2`` is scored with ``text_1``, or with the one of the same index if there are several."""

    text_1: Strings
    text_2: Strings


class Score(Reply):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(Reply):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: EncodingUsage


class ClassifyRequest(EncodingRequest):
    """The classes of each text, or of each of its tokens if the model labels tokens.

    With ``labels``, those that a model of natural language inference finds in a text (zero-shot classification):
    ``probs`` are theirs, in this order. A label replaces {} of ``hypothesis_template``, by default "This example is
    {}."; probabilities add up to 1 unless ``multi_label``.
    """

    input: Texts
    labels: Labels | None = None
    hypothesis_template: str | None = None
    multi_label: bool | None = None

    @model_validator(mode="after")
    def _belong_to_labels(self) -> Self:
        for name in ("hypothesis_template", "multi_label"):
            if self.labels is None and getattr(self, name) is not None:
                raise PydanticCustomError("needs_labels", f"{name} needs labels; give them, or remove it")
        return self


class TokenClass(Reply):
    """``start`` and ``end`` are the characters of the token in its text, in the page as indexes that `slice` takes;
    missing for tokens without characters, and if the input is token ids.
    """

    token_id: int
    start: LeftOut[int] = None
    end: LeftOut[int] = None
    label: str
    probs: list[float]


class SpanClass(Reply):
    """A part of a text with its label. ``start`` and ``end`` are its characters, without white space at its ends, as in
    TokenClass. ``score`` is the mean probability of the labels of its tokens.
    """

    label: str
    start: int
    end: int
    score: float


class Classification(Reply):
    """``label`` is the most likely one, and ``probs`` has the probability of each label. A model that labels tokens has
    ``tokens`` instead, and ``spans`` has the spans that its labels form in a text; they are missing if the input is
    token ids, or if no label ("O") is outside of spans.
    """

    index: int
    label: LeftOut[str] = None
    probs: LeftOut[list[float]] = None
    num_classes: int
    tokens: LeftOut[list[TokenClass]] = None
    spans: LeftOut[list[SpanClass]] = None


class ClassifyResponse(Reply):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Classification]
    usage: EncodingUsage
