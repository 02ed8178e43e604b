"""/v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .common import Answer, Request, Texts


class EmbeddingRequest(Request):
    """The text of a control token is encoded as ordinary text; send token ids for an input that needs control
    tokens.
    """

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


class Embedding(Answer):
    """``embedding`` as numbers, or as the base64 of their float32 bytes, little-endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Answer):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(Answer):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
