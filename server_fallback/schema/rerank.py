"""/v1/rerank in Jina's shape, and /v2/rerank in Cohere's. Both have the same requests, and results that clients of both
read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .common import LeftOut, Reply
from .encoding import Documents, EncodingRequest, EncodingUsage


class RerankRequest(EncodingRequest):
    """``top_n``: how many of the best documents to return; 0 or None for all. ``max_tokens_per_doc`` shortens each
    document. ``return_documents`` None: Jina's route returns them, and Cohere's does not.
    """

    query: str
    documents: Documents
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None

    def returned(self, index: int) -> dict[str, Any] | None:
        """The document in the answer; None if no documents are returned."""
        given = self.documents[index]
        if not self.return_documents:
            return None
        return {"text": given} if isinstance(given, str) else given.as_given()


class RerankResult(Reply):
    index: int
    """The document's index in the request."""
    relevance_score: float
    document: LeftOut[dict[str, Any]] = None
    """If requested."""


class ApiVersion(Reply):
    version: str


class RerankTokens(Reply):
    input_tokens: int


class RerankMeta(Reply):
    api_version: ApiVersion
    tokens: RerankTokens


class RerankResponse(Reply):
    """``results``: the most relevant first. ``meta`` is Cohere's."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    usage: EncodingUsage
    meta: RerankMeta
