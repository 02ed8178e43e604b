"""The parts that the routes of embeddings and scores share: how long texts are shortened, and the usage."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from .common import Int64, Items, Reply, Request
from .limits import MAX_TEXTS


def _require_limit(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("must be at least 1, or -1 for the model's context")
    return value


TokenLimit = Annotated[
    int,
    AfterValidator(_require_limit),
    Field(json_schema_extra={"anyOf": [{"minimum": 1}, {"const": -1}]}),
]


class EncodingRequest(Request):
    """By default a text that is longer than the context is an error. ``truncate`` (as in TEI) shortens it to the
    context, and ``truncate_prompt_tokens`` (as in vLLM) to a number of tokens, -1 for the context. The beginning
    remains, with the special tokens.
    """

    model: str
    user: str | None = None
    priority: Int64 | None = None
    truncate: bool | None = None
    truncate_prompt_tokens: TokenLimit | None = None


class EncodingUsage(Reply):
    prompt_tokens: int
    total_tokens: int


class TextDocument(Request):
    """A document as an object. Only its ``text`` is read; its other keys are returned with it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    text: str

    def as_given(self) -> dict[str, Any]:
        return {"text": self.text, **(self.__pydantic_extra__ or {})}


def require_few(value: object) -> object:
    if isinstance(value, list) and len(value) > MAX_TEXTS:
        raise PydanticCustomError("too_long", f"{len(value)} texts; at most {MAX_TEXTS} are supported")
    return value


# Reject too many before each is validated.
Strings = Annotated[str | Items[str], BeforeValidator(require_few)]
Documents = Annotated[Items[str | TextDocument], Field(min_length=1), BeforeValidator(require_few)]


def text_of(document: str | TextDocument) -> str:
    return document if isinstance(document, str) else document.text
