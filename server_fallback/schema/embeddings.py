"""/v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .common import Reply, Texts
from .encoding import EncodingRequest, EncodingUsage

InputType = Literal["search_query", "search_document", "classification", "clustering"]


class EmbeddingRequest(EncodingRequest):
    """The text of a control token is encoded as ordinary text; send token ids for an input that needs control
    tokens.

    ``prompt_name`` (extension, as in sentence-transformers) names one of the model's prompts, which precedes each text;
    without it, the model's default prompt does. ``input_type`` (extension, as in Cohere's API) selects the prompt for a
    kind of text instead, if the model has one.
    """

    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    prompt_name: str | None = None
    input_type: InputType | None = None


class Embedding(Reply):
    """``embedding`` as numbers, or as the base64 of their float32 bytes, little-endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingResponse(Reply):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EncodingUsage
