"""Zero-shot classification by a classifier of natural language inference: `web/src/shared/zero_shot.ts` makes
hypotheses of the labels, and probabilities of their scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ..ir.tasks import ClassifierSpec
from ..shared.script import SharedScript
from .batch import FloatArray


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """One text for each label. ``entailment`` and ``contradiction`` are labels of the classifier."""

    texts: tuple[str, ...]
    entailment: int
    contradiction: int


def hypotheses_of(classifier: ClassifierSpec, labels: Sequence[str], template: str | None = None) -> Hypotheses:
    """The hypotheses that a text has each of the labels; a label replaces {} of the ``template``.

    Raises RequestError for labels and templates that make no hypotheses, and for a model of another kind.
    """
    given = {"labels": list(labels), "hypothesis_template": template}
    found = SharedScript.of_thread().ask("zeroShotHypotheses", asdict(classifier), given)
    return Hypotheses(tuple(found["texts"]), found["entailment"], found["contradiction"])


def label_probabilities(
    hypotheses: Hypotheses, scores: Sequence[FloatArray], *, multi_label: bool = False
) -> FloatArray:
    """The probability of each label, from the classifier's scores (L,) of its hypothesis. They add up to 1 unless a
    text may have several labels.
    """
    rows = [np.asarray(row, np.float64).tolist() for row in scores]
    found = SharedScript.of_thread().ask("zeroShotProbabilities", asdict(hypotheses), rows, multi_label)
    return np.array(found, np.float32)
