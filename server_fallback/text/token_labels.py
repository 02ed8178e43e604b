"""What clients get of a model that labels tokens: the label of each token, and the spans that labels form."""

from __future__ import annotations

import numpy as np
import regex

from nearfar.compiler.ir.tasks import ClassifierSpec
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.encoding import LabelSpan, label_tokens, probabilities
from nearfar.compiler.runtime.text.tokenizer import EncodedText

from ..schema.score import Classification, SpanClass, TokenClass

# The page has the same; Python's `strip` and JavaScript's `trim` have not.
_INNER = regex.compile(r"\P{White_Space}(?:.*\P{White_Space})?", regex.DOTALL)


def token_classification(
    index: int, text: str | None, encoded: EncodedText, scores: FloatArray, classifier: ClassifierSpec
) -> Classification:
    """The labels of one text's tokens with ``scores`` (T, L). ``text`` is None if the input is token ids."""
    probs = probabilities(scores, classifier)
    best, spans = label_tokens(scores, classifier)
    kinds = [kind_of_label(label) for label in classifier.labels]
    same = np.array([[kind == other for other in kinds] for kind in kinds])
    # Without transitions, a token belongs to a kind by all of its labels.
    joins = classifier.transitions is None and classifier.activation == "softmax"
    likely = (probs * same[best]).sum(axis=1) if joins else probs[np.arange(len(best)), best]
    characters = [span if span != (0, 0) else None for span in encoded.offsets or [(0, 0)] * len(encoded.ids)]
    return Classification(
        index=index,
        num_classes=len(classifier.labels),
        tokens=[
            TokenClass(
                token_id=token_id,
                start=None if span is None else span[0],
                end=None if span is None else span[1],
                label=classifier.labels[label],
                probs=row.tolist(),
            )
            for token_id, span, label, row in zip(encoded.ids, characters, best, probs, strict=True)
        ],
        spans=None
        if spans is None or text is None
        else [found for span in spans if (found := _span_class(text, span, characters, likely)) is not None],
    )


def kind_of_label(label: str) -> str | None:
    """As the function of `web/src/shared/label_spans.ts`."""
    if label == "O":
        return None
    named = regex.fullmatch(r"[BIESLU]-(.+)", label, flags=regex.DOTALL)
    return label if named is None else named[1]


def _span_class(
    text: str, span: LabelSpan, characters: list[tuple[int, int] | None], probs: FloatArray
) -> SpanClass | None:
    """None for a span without characters. ``probs``: those of the tokens' labels or kinds, (T,)."""
    tokens = slice(span.first, span.last + 1)
    parts = [part for part in characters[tokens] if part is not None]
    if not parts:
        return None
    inner = _INNER.search(text, parts[0][0], parts[-1][1])
    if inner is None:
        return None
    return SpanClass(label=span.label, start=inner.start(), end=inner.end(), score=float(probs[tokens].mean()))
