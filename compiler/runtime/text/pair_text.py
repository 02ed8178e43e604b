"""Encodes a query and a document in the template of a reranker that reads both in one text."""

from __future__ import annotations

import re

from ...ir.tasks import ClassifierSpec
from ..errors import RequestError
from .tokenizer import Tokenizer

PLACEHOLDER = re.compile(r"\{(instruction|query|document)\}")


def encode_in_template(
    tokenizer: Tokenizer, classifier: ClassifierSpec, query: str, document: str, max_tokens: int
) -> list[int]:
    """The token ids of a pair. Only the template writes control tokens. The document is shortened at its end so that
    there are at most ``max_tokens``.

    Raises RequestError for a query that leaves no room for a document, and for texts that cannot be encoded.
    """
    template = classifier.template
    assert template is not None

    def encode(document: str) -> list[int]:
        values = {"instruction": classifier.instruction or "", "query": query, "document": document}
        marked = tokenizer.mark_variables(values)
        assert marked is not None
        return tokenizer.encode_rendered(PLACEHOLDER.sub(lambda found: marked[found[1]], template))

    # Texts that cannot fit are not encoded as a whole.
    if tokenizer.least_tokens(query, max_tokens) > max_tokens:
        raise _leaves_none(max_tokens, f"more than {max_tokens}")
    if tokenizer.least_tokens(document, max_tokens) <= max_tokens:
        ids = encode(document)
        if len(ids) <= max_tokens:
            return ids
    around = len(encode(""))
    # The tokens at the document's end depend on the template's text.
    for room in range(max_tokens - around, 0, -1):
        ids = encode(tokenizer.beginning(document, room))
        if len(ids) <= max_tokens:
            return ids
    raise _leaves_none(max_tokens, str(around))


def _leaves_none(max_tokens: int, num_tokens: str) -> RequestError:
    return RequestError(
        f"This model's maximum context length is {max_tokens} tokens. However, the query and its template have "
        f"{num_tokens} tokens, which leaves none for a document; shorten it",
        code="context_length_exceeded",
    )
