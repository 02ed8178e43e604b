"""Turns the rows of a model of embeddings or scores into what clients get: vectors, probabilities and relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nearfar.compiler.errors import RequestError
from nearfar.compiler.ir.spec import ClassifierSpec, EmbeddingSpec
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.encoding import probabilities

from ..schema.embeddings import EmbeddingRequest, InputType

# The names of prompts for a kind of texts, of which the first that a model has is used.
QUERY_PROMPTS = ("query", "search_query", "Retrieval-query", "s2p_query")
DOCUMENT_PROMPTS = ("document", "passage", "search_document", "Retrieval-document")
PROMPTS: Mapping[InputType, tuple[str, ...]] = {
    "search_query": QUERY_PROMPTS,
    "search_document": DOCUMENT_PROMPTS,
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}


def shortened(vectors: FloatArray, spec: EmbeddingSpec, dimensions: int | None) -> FloatArray:
    """The vectors (n, E) with as many ``dimensions`` as requested, scaled to length 1 if the model requires it."""
    cut = vectors if dimensions is None else vectors[:, :dimensions]
    return unit_rows(cut) if spec.normalize else cut


def unit_rows(vectors: FloatArray) -> FloatArray:
    """Each row scaled to length 1; zeros stay zeros."""
    scaled: FloatArray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled.astype(np.float32)


def check_relevance(classifier: ClassifierSpec) -> None:
    """Raises RequestError for a classifier that does not score pairs."""
    if classifier.relevance is None:
        raise RequestError(
            "this model labels texts and does not score pairs; use a reranker or an embedding model", param="model"
        )


def relevance(scores: FloatArray, classifier: ClassifierSpec) -> FloatArray:
    """How relevant the second text of each pair is to the first (n,), by a classifier that scores pairs."""
    assert classifier.relevance is not None
    column: FloatArray = probabilities(scores, classifier)[:, classifier.relevance]
    return column


def prompt_of(spec: EmbeddingSpec, request: EmbeddingRequest) -> str:
    """The text of the prompt that a request selects. Raises RequestError for an unknown name, or two selections."""
    if request.input_type is None:
        return prompt_text(spec, request.prompt_name)
    if request.prompt_name is not None:
        raise RequestError("prompt_name and input_type both select a prompt; give one of them", param="input_type")
    return search_prompt(spec, PROMPTS[request.input_type])


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
