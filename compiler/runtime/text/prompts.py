"""The texts that precede the texts of an embedding model: for queries, for documents, and by default."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.tasks import EmbeddingSpec
from ..errors import RequestError

# The names of prompts for a kind of texts, of which the first that a model has is used.
QUERY_PROMPTS = ("query", "search_query", "Retrieval-query", "s2p_query")
DOCUMENT_PROMPTS = ("document", "passage", "search_document", "Retrieval-document")


def prompt_text(spec: EmbeddingSpec, name: str | None) -> str:
    """The text of the prompt with a name; None: the default prompt. Raises RequestError for an unknown name."""
    prompts = {prompt.name: prompt.text for prompt in spec.prompts}
    if name is None:
        return "" if spec.default_prompt is None else prompts.get(spec.default_prompt, "")
    if name not in prompts:
        known = ", ".join(prompts) or "none"
        raise RequestError(f"this model has no prompt {name[:100]!r}; it has {known}", param="prompt_name")
    return prompts[name]


def search_prompt(spec: EmbeddingSpec, names: Sequence[str]) -> str:
    """The text of the first of these prompts that the model has, or else of its default prompt."""
    known = {prompt.name for prompt in spec.prompts}
    return prompt_text(spec, next((name for name in names if name in known), None))
