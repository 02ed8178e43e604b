"""The predictor: the probabilities that each side answers a request correctly, from a text and near's signals.

Each side has two logistic functions: one of the features, and one of its logit, which is Platt's calibration (Platt
1999, "Probabilistic outputs for support vector machines"). The weights are part of a policy.

The terms of a text count in proportion to the share of them that the predictor knows. So in words that are foreign to
the fit, the probabilities approach those of the other features: numbers, sentences and lengths, which words do not
change.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from .entry import INTEGER, ITEMS, Count, Entry
from .features import SIGNALS, FeatureName, text_features, text_terms
from .situation import NearSignals

PREDICTOR_VERSION = 2

Weight = Annotated[float, Field(ge=-1e9, le=1e9)]
Term = Annotated[str, Field(min_length=1, max_length=1000)]


class Weights(Entry):
    """One weight for each feature, then one for each term."""

    weights: Annotated[tuple[Weight, ...], ITEMS]
    bias: Weight


class Calibration(Entry):
    """The calibrated logit is ``a * logit + b`` with [a, b]."""

    near: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=2), ITEMS]
    far: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=2), ITEMS]


class Wanted(Entry):
    """The target that the threshold was chosen for: one of the two."""

    quality: Annotated[float, Field(ge=0, le=1)] | None = None
    far_share: Annotated[float, Field(ge=0, le=1)] | None = None


class Fitted(Entry):
    """Where the weights come from; no decision depends on it. ``date`` is ISO 8601."""

    pairs: Count
    date: str
    wanted: Wanted | None = None


class Rights(NamedTuple):
    """The probabilities of a correct answer."""

    near: float
    far: float


class Predictor(Entry):
    """``mean`` and ``scale`` (F,) of ``features`` (F,); ``terms`` (T,) as `text_terms` returns them; ``weights``
    (F + T,).
    """

    version: Annotated[Literal[2], INTEGER]
    features: Annotated[tuple[FeatureName, ...], ITEMS]
    terms: Annotated[tuple[Term, ...], Field(max_length=65_536), ITEMS]
    mean: Annotated[tuple[Weight, ...], ITEMS]
    scale: Annotated[tuple[Annotated[float, Field(ge=1e-9, le=1e9)], ...], ITEMS]
    near: Weights
    far: Weights
    calibration: Calibration
    fitted: Fitted | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_current(cls, source: Any) -> Any:
        if isinstance(source, dict) and source.get("version") == 1:
            raise ValueError(
                "it has version 1, which counted hashed words, and only version 2 is read; fit the policy again with "
                "'nearfar router fit'"
            )
        return source

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        weights = len(self.features) + len(self.terms)
        lengths = [("mean", self.mean, len(self.features)), ("scale", self.scale, len(self.features))]
        lengths += [("near.weights", self.near.weights, weights), ("far.weights", self.far.weights, weights)]
        for name, values, due in lengths:
            if len(values) != due:
                raise ValueError(f"{name} has {len(values)} numbers; features and terms require {due}")
        for name, known in (("feature", self.features), ("term", self.terms)):
            if len(set(known)) < len(known):
                raise ValueError(f"a {name} appears twice")
        return self

    def rights(self, text: str, signals: NearSignals | None) -> Rights:
        """``text`` is the last user message."""
        inputs = self.inputs(text, signals)
        return Rights(
            _calibrated(self.near, inputs, self.calibration.near),
            _calibrated(self.far, inputs, self.calibration.far),
        )

    def inputs(self, text: str, signals: NearSignals | None) -> list[tuple[int, float]]:
        """The inputs of the weights, as (index of the weight, value); missing ones are zero.

        A signal that is None counts as the mean, which is zero too. Each term that the text has and the predictor knows
        has the share of the text's terms that the predictor knows.
        """
        values: dict[str, float | None] = {
            **text_features(text),
            **({name: getattr(signals, name) for name in SIGNALS} if signals else {}),
        }
        standard = [
            (index, (value - self.mean[index]) / self.scale[index])
            for index, name in enumerate(self.features)
            if (value := values.get(name)) is not None
        ]
        terms = text_terms(text)
        known = [self._weight_of_term[term] for term in terms if term in self._weight_of_term]
        return [*standard, *((index, len(known) / len(terms)) for index in sorted(set(known)))]

    @cached_property
    def _weight_of_term(self) -> dict[str, int]:
        return {term: len(self.features) + index for index, term in enumerate(self.terms)}


def sigmoid(x: float) -> float:
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def _calibrated(side: Weights, inputs: list[tuple[int, float]], calibration: tuple[float, ...]) -> float:
    logit = side.bias + sum(side.weights[number] * value for number, value in inputs)
    a, b = calibration
    return sigmoid(a * logit + b)
