"""The labels of tokens by the BIOES scheme against a search through all paths."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise, product

import numpy as np
import pytest

from nearfar.compiler.ir.tasks import ClassifierSpec, TransitionSpec, forms_spans
from nearfar.compiler.runtime.encoding import LabelSpan, label_tokens

# As a model may order them.
LABELS = ("O", "B-name", "I-name", "E-name", "S-name", "S-date", "E-date", "I-date", "B-date")
PLAIN = TransitionSpec()
BIASED = TransitionSpec(0.5, -1.0, 0.75, -0.25, 0.3, -0.6)


def bias(before: str, after: str, transitions: TransitionSpec) -> float | None:
    """What a step between two labels adds; None if no spans have it."""
    if before == "O" or before[0] in "ES":
        place = "background" if before == "O" else "end"
        if after == "O":
            return getattr(transitions, f"{place}_{'stay' if before == 'O' else 'to_background'}")  # type: ignore[no-any-return]
        return getattr(transitions, f"{place}_to_start") if after[0] in "BS" else None
    if after[0] not in "IE" or before[1:] != after[1:]:
        return None
    return transitions.inside_to_continue if after[0] == "I" else transitions.inside_to_end


def best_by_search(scores: np.ndarray, transitions: TransitionSpec) -> tuple[float, tuple[int, ...]]:
    found: list[tuple[float, tuple[int, ...]]] = []
    for path in product(range(len(LABELS)), repeat=len(scores)):
        names = [LABELS[label] for label in path]
        steps = [bias(*pair, transitions) for pair in pairwise(names)]
        if names[0][0] in "IE" or names[-1][0] in "BI" or None in steps:
            continue
        own = sum(float(row[label]) for row, label in zip(scores, path, strict=True))
        found.append((own + sum(step for step in steps if step is not None), path))
    return max(found)


@pytest.mark.parametrize("transitions", [PLAIN, BIASED])
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_tokens_have_the_labels_of_the_best_path_through_spans(tokens: int, transitions: TransitionSpec) -> None:
    spec = ClassifierSpec(LABELS, "softmax", per_token=True, transitions=transitions)
    generator = np.random.default_rng(tokens)
    differs = 0
    for _ in range(6):
        scores = generator.standard_normal((tokens, len(LABELS))).astype(np.float32)
        best, spans = label_tokens(scores, spec)
        assert tuple(best) == best_by_search(scores, transitions)[1], asdict(transitions)
        differs += best != scores.argmax(axis=1).tolist()
        assert spans is not None
        covered = {token for span in spans for token in range(span.first, span.last + 1)}
        assert covered == {token for token, label in enumerate(best) if LABELS[label] != "O"}
    assert differs


def test_a_token_between_two_of_a_span_belongs_to_it() -> None:
    """Its own best label is "O", which would leave a span without an end."""
    scores = np.full((4, len(LABELS)), -5, np.float32)
    for token, label, score in ((0, "O", 3), (1, "B-name", 4), (2, "O", 2), (2, "I-name", 1.5), (3, "E-name", 4)):
        scores[token, LABELS.index(label)] = score
    spec = ClassifierSpec(LABELS, "softmax", per_token=True, transitions=PLAIN)
    best, spans = label_tokens(scores, spec)
    assert [LABELS[label] for label in best] == ["O", "B-name", "I-name", "E-name"]
    assert spans == [LabelSpan("name", 1, 3)]
    argmax, parts = label_tokens(scores, ClassifierSpec(LABELS, "softmax", per_token=True))
    assert (LABELS[argmax[2]], parts) == ("O", [LabelSpan("name", 1, 1), LabelSpan("name", 3, 3)])


def test_labels_of_spans_are_complete() -> None:
    assert forms_spans(LABELS)
    assert not forms_spans(LABELS[:-1])
    assert not forms_spans(("O",))
    assert not forms_spans(("O", "B-name", "I-name"))
    assert forms_spans(BILOU)


BILOU = tuple(label.replace("E-", "L-").replace("S-", "U-") for label in LABELS)


def test_bilou_names_the_last_and_the_single_token_otherwise() -> None:
    scores = np.random.default_rng(3).standard_normal((40, len(LABELS))).astype(np.float32)
    found = [
        label_tokens(scores, ClassifierSpec(each, "softmax", per_token=True, transitions=PLAIN))
        for each in (LABELS, BILOU)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "labels", [("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), ("I-PER", "O", "B-PER", "I-LOC", "B-LOC")]
)
def test_sure_labels_of_bio_form_the_groups_of_transformers(labels: tuple[str, ...]) -> None:
    """Also those of models that write B- only after a span of the same kind."""
    from transformers import TokenClassificationPipeline

    class Words:
        @staticmethod
        def convert_tokens_to_string(tokens: list[str]) -> str:
            return "".join(tokens)

    pipeline = TokenClassificationPipeline.__new__(TokenClassificationPipeline)
    pipeline.tokenizer = Words()
    generator = np.random.default_rng(len(labels[0]))
    best = generator.integers(0, len(labels), 200)
    scores = np.full((200, len(labels)), -4, np.float32)
    scores[np.arange(200), best] = 4
    tokens = [
        {"entity": labels[label], "score": 1.0, "word": "x", "start": index, "end": index + 1}
        for index, label in enumerate(best)
    ]
    theirs = [
        (group["entity_group"], group["start"], group["end"] - 1)
        for group in pipeline.group_entities(tokens)
        if group["entity_group"] != "O"
    ]
    _, spans = label_tokens(scores, ClassifierSpec(labels, "softmax", per_token=True))
    assert spans is not None
    assert [(span.label, span.first, span.last) for span in spans] == theirs


def test_a_token_whose_probability_is_divided_between_labels_of_a_kind_is_not_outside() -> None:
    labels = ("O", "B-PER", "I-PER")
    scores = np.log(np.array([[0.4, 0.35, 0.25], [0.6, 0.25, 0.15]], np.float32))
    best, spans = label_tokens(scores, ClassifierSpec(labels, "softmax", per_token=True))
    assert ([labels[label] for label in best], spans) == (["B-PER", "O"], [LabelSpan("PER", 0, 0)])
    assert label_tokens(scores, ClassifierSpec(("a", "b", "c"), "softmax", per_token=True)) == ([0, 0], None)
