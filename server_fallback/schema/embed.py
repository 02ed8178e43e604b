"""/v2/embed, in Cohere's shape."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from .common import Int64, Items, LeftOut, Reply, Request
from .embeddings import InputType
from .encoding import TokenLimit, require_few
from .rerank import ApiVersion

EmbeddingType = Literal["float", "base64", "binary", "ubinary"]


class EmbedRequest(Request):
    """``truncate`` "NONE": a text that is longer than the context is an error; "END" shortens it, also to
    ``max_tokens``. ``output_dimension`` is one that the model names.
    """

    model: str
    texts: Annotated[Items[str], Field(min_length=1), BeforeValidator(require_few)]
    input_type: InputType
    embedding_types: Annotated[list[EmbeddingType], Field(min_length=1, max_length=4)] | None = None
    output_dimension: Annotated[int, Field(ge=1)] | None = None
    truncate: Literal["NONE", "END"] = "END"
    max_tokens: TokenLimit | None = None
    priority: Int64 | None = None

    @model_validator(mode="after")
    def _require_one_limit(self) -> EmbedRequest:
        if self.truncate == "NONE" and self.max_tokens is not None:
            raise ValueError('max_tokens shortens texts and truncate "NONE" forbids it; leave one of them out')
        return self


class EmbeddingsByType(Reply):
    """The vectors in each form that was requested. ``base64``: the bytes of their float32 numbers, little-endian.
    ``ubinary``: their signs, 1 for positive numbers, eight to a byte, the first as the highest bit; ``binary``: the
    same bytes less 128.
    """

    # As in Cohere's answers.
    float_: Annotated[LeftOut[list[list[float]]], Field(serialization_alias="float")] = None
    base64: LeftOut[list[str]] = None
    binary: LeftOut[list[list[int]]] = None
    ubinary: LeftOut[list[list[int]]] = None


class BilledUnits(Reply):
    input_tokens: int


class EmbedMeta(Reply):
    api_version: ApiVersion
    billed_units: BilledUnits


class EmbedResponse(Reply):
    id: str
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
    embeddings: EmbeddingsByType
    texts: list[str]
    meta: EmbedMeta
