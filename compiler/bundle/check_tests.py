"""Checks that the tests of a bundle fit its model: a test without expected values would pass with every result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..runtime.feature_test import test_size
from .entries import FeatureTestEntry, SelfTestEntry, VectorTestEntry, VectorTestRow
from .fault import require
from .manifest import VISION, Manifest


def check_self_test(test: SelfTestEntry, manifest: Manifest) -> None:
    """Check that every row of the prompt has expected logits of tokens in the vocabulary, and that tolerances are in
    range.
    """
    where, vocabulary = "self_test", range(manifest.spec.vocab_size)
    require(2 <= len(test.prompt_ids) <= manifest.context, where, f"has {len(test.prompt_ids)} tokens")
    require(all(token in vocabulary for token in test.prompt_ids), where, "has tokens beyond the vocabulary")
    require(
        [row.row for row in test.rows] == list(range(len(test.prompt_ids))), where, "must have one row for each token"
    )
    for row in test.rows:
        known = bool(row.token_ids) and all(token in vocabulary for token in row.token_ids)
        require(
            known and len(row.logits) == len(row.token_ids),
            where,
            f"row {row.row} must have a logit for each of its tokens",
        )
    require(any(logit for row in test.rows for logit in row.logits), where, "expects only zeros")
    check_tolerances(test.tolerances, where)


def check_vector_test(test: VectorTestEntry, manifest: Manifest) -> None:
    """Check that the texts fit the model, that the rows expect values of the plan's results, and that tolerances are in
    range.
    """
    where, vocabulary = "vector_test", range(manifest.spec.vocab_size)
    for text in test.texts:
        require(1 <= len(text) <= manifest.context, where, f"has a text of {len(text)} tokens")
        require(all(token in vocabulary for token in text), where, "has tokens beyond the vocabulary")
    embedding, classifier, ctc = manifest.embedding, manifest.classifier, manifest.ctc
    given = embedding is not None or classifier is not None or ctc is not None
    require(given, where, "is given for a model that generates text")
    columns = manifest.spec.vocab_size if ctc is not None else 0
    columns = embedding.size if embedding is not None else len(classifier.labels) if classifier is not None else columns
    per_token = ctc is not None or (classifier is not None and classifier.per_token)
    count = sum(map(len, test.texts)) if per_token else len(test.texts)
    require_values(where, test.rows, count, columns)
    check_tolerances(test.tolerances, where)


def check_feature_test(test: FeatureTestEntry, manifest: Manifest, plan: str) -> None:
    """Check that the rows expect values of features of the test's patches or frames, and that tolerances are in
    range.
    """
    where, tower = f"{plan}_test", manifest.spec.vision if plan == VISION else manifest.spec.hearing
    require(plan in manifest.plans and tower is not None, where, "is given for a model without such a tower")
    require_values(where, test.rows, test_size(manifest, plan), manifest.spec.feature_size)
    check_tolerances(test.tolerances, where)


def require_values(where: str, rows: Sequence[VectorTestRow], count: int, columns: int) -> None:
    """Require rows of a test to have values for elements of (count, columns), not only zeros."""
    for row in rows:
        known = row.row < count and all(element < columns for element in row.elements)
        require(
            known and len(row.values) == len(row.elements), where, f"row {row.row} must have a value for each element"
        )
    require(any(value for row in rows for value in row.values), where, "expects only zeros")


def check_tolerances(tolerances: Mapping[str, float], where: str) -> None:
    require(
        bool(tolerances) and all(0 < tolerance <= 1 for tolerance in tolerances.values()),
        where,
        "has tolerances outside of 0 to 1",
    )
