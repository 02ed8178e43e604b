"""The classes of texts: labels of the classifier, or of the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearfar.compiler.ir.tasks import ClassifierSpec
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.encoding import probabilities
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.zero_shot import Hypotheses, hypotheses_of, label_probabilities

from ..schema.limits import MAX_TEXTS
from ..schema.score import Classification, ClassifyRequest


def classes(scores: FloatArray, classifier: ClassifierSpec) -> list[Classification]:
    """Of each text, from the scores (n, L) of its labels."""
    return [_likeliest(index, row, classifier.labels) for index, row in enumerate(probabilities(scores, classifier))]


def _likeliest(index: int, row: FloatArray, labels: Sequence[str]) -> Classification:
    return Classification(index=index, label=labels[int(row.argmax())], probs=row.tolist(), num_classes=len(labels))


@dataclass(frozen=True, slots=True)
class ZeroShot:
    """A request for which of its ``labels`` each of the ``premises`` has."""

    premises: tuple[str, ...]
    labels: tuple[str, ...]
    hypotheses: Hypotheses
    multi_label: bool

    @staticmethod
    def of(request: ClassifyRequest, classifier: ClassifierSpec) -> ZeroShot:
        """Raises RequestError for another model, labels that make no hypotheses, and an empty text or token ids."""
        labels = tuple(request.labels or ())
        hypotheses = hypotheses_of(classifier, labels, request.hypothesis_template)
        given = [request.input] if isinstance(request.input, str) else request.input
        premises = tuple(text for text in given if isinstance(text, str))
        if len(premises) < len(given) or not premises:
            raise RequestError("input must be a text or texts if there are labels, not token ids", param="input")
        if len(premises) * len(labels) > MAX_TEXTS:
            raise RequestError(
                f"{len(premises)} texts with {len(labels)} labels are {len(premises) * len(labels)} pairs; at most "
                f"{MAX_TEXTS} are supported; send several requests",
                param="labels",
            )
        asked = ZeroShot(premises, labels, hypotheses, request.multi_label or False)
        for text, name in zip(premises, asked.names[:: len(labels)], strict=True):
            if not text:
                raise RequestError(f"{name} is empty; give at least one character", param=name)
        return asked

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each premise with the hypothesis of each label."""
        return [(premise, hypothesis) for premise in self.premises for hypothesis in self.hypotheses.texts]

    @property
    def names(self) -> list[str]:
        """The parameter of each pair's text, which is the part that may be too long."""
        several = len(self.premises) > 1
        return [f"input[{index}]" if several else "input" for index in range(len(self.premises)) for _ in self.labels]

    def classes(self, rows: FloatArray) -> list[Classification]:
        """Of each premise, from the scores of its pairs."""
        count = len(self.labels)
        probs = [
            label_probabilities(self.hypotheses, list(rows[start : start + count]), multi_label=self.multi_label)
            for start in range(0, len(rows), count)
        ]
        return [_likeliest(index, row, self.labels) for index, row in enumerate(probs)]
