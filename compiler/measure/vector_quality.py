"""The quality of vectors: how far a bundle's vectors are from those of its checkpoint in float32, and whether a search
with them finds the same.

The search is made from any text: each paragraph is a document, without its last sentence, which is a query.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..ir.tasks import EmbeddingSpec
from ..quant.base import FloatArray
from ..runtime.errors import DeviceError, RequestError
from ..runtime.text.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS, search_prompt
from ..runtime.text.tokenizer import Tokenizer

# The results of a search whose documents are compared.
BEST = 10
LEAST_DOCUMENTS = 3
_PARAGRAPHS, _SENTENCES = re.compile(r"\n\s*\n"), re.compile(r"(?<=[.!?。！？])\s+")


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Texts as token ids. Query i is about document ``answers[i]``."""

    queries: list[list[int]]
    documents: list[list[int]]
    answers: list[int]

    @property
    def texts(self) -> list[list[int]]:
        return [*self.queries, *self.documents]


@dataclass(frozen=True, slots=True)
class VectorQuality:
    """Over ``texts`` vectors and a search with each of ``queries``. Cosines are those of a bundle's vector and the
    reference's. ``top1_agreement``: the share of queries, 0 to 1, for which both find the same document first;
    ``top10_overlap``: the mean share of the ten best documents (or all, if there are fewer) that both find. ``recall``:
    the share of queries that find their own document first.
    """

    texts: int
    queries: int
    cosine_mean: float
    cosine_min: float
    top1_agreement: float
    top10_overlap: float
    recall: float
    reference_recall: float


def make_task(
    tokenizer: Tokenizer, spec: EmbeddingSpec, text: str, max_tokens: int, count: int | None = None
) -> SearchTask:
    """A search in the text's first ``count`` paragraphs, or all. Longer texts than ``max_tokens`` are shortened. Raises
    RequestError for a text with too few paragraphs of two sentences.
    """
    if max_tokens < 1:
        raise RequestError(f"--window {max_tokens}: must hold at least one token")
    if count is not None and count < 1:
        raise RequestError(f"--windows {count}: must be at least 1")
    query_prompt, document_prompt = search_prompt(spec, QUERY_PROMPTS), search_prompt(spec, DOCUMENT_PROMPTS)
    queries: list[list[int]] = []
    documents: list[list[int]] = []
    answers: list[int] = []

    def encoded(prompt: str, part: str) -> list[int]:
        return tokenizer.encode_shortened(prompt + part, None, max_tokens).ids

    for paragraph in [each.strip() for each in _PARAGRAPHS.split(text) if each.strip()][:count]:
        sentences = _SENTENCES.split(paragraph)
        if len(sentences) > 1:
            queries.append(encoded(query_prompt, sentences[-1]))
            answers.append(len(documents))
            paragraph = paragraph[: -len(sentences[-1])].rstrip()
        documents.append(encoded(document_prompt, paragraph))
    if not queries or len(documents) < LEAST_DOCUMENTS:
        raise RequestError(
            f"--text: has {len(documents)} paragraphs, {len(queries)} of them with two sentences; give one with at "
            f"least {LEAST_DOCUMENTS} paragraphs, separated by empty lines"
        )
    return SearchTask(queries, documents, answers)


def compare_vectors(task: SearchTask, expected: FloatArray, found: FloatArray, device: str) -> VectorQuality:
    """``expected``, ``found`` (n, E): the vectors of the task's texts by the reference and by the bundle on a device.
    Raises DeviceError for vectors that are not finite.
    """
    if not np.isfinite(found).all():
        raise DeviceError(f"{device} computed vectors that are not finite; try --runner numpy, or another quantization")
    reference, own = unit_rows(expected), unit_rows(found)
    cosines = (reference * own).sum(axis=1)
    count = len(task.queries)
    best, own_best = (ranked(vectors[:count] @ vectors[count:].T) for vectors in (reference, own))
    overlaps = [
        len(set(one) & set(other)) / len(one) for one, other in zip(best[:, :BEST], own_best[:, :BEST], strict=True)
    ]
    answers = np.array(task.answers)
    return VectorQuality(
        texts=len(expected),
        queries=count,
        cosine_mean=float(cosines.mean()),
        cosine_min=float(cosines.min()),
        top1_agreement=float((best[:, 0] == own_best[:, 0]).mean()),
        top10_overlap=float(np.mean(overlaps)),
        recall=float((own_best[:, 0] == answers).mean()),
        reference_recall=float((best[:, 0] == answers).mean()),
    )


def unit_rows(vectors: FloatArray) -> npt.NDArray[np.float64]:
    """Each row scaled to length 1, in float64; zeros stay zeros."""
    rows = vectors.astype(np.float64)
    scaled: npt.NDArray[np.float64] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return scaled


def ranked(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The documents of each query, best first."""
    return np.argsort(-scores, axis=1, kind="stable")
