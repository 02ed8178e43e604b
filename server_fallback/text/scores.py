"""Turns the rows of a model of embeddings or scores into what clients get: vectors, probabilities and relevance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearfar.compiler.ir.tasks import ClassifierSpec, EmbeddingSpec
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.encoding import probabilities
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS, prompt_text, search_prompt

from ..schema.embeddings import EmbeddingRequest, InputType

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
