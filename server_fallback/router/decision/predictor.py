"""The predictor: the probabilities that each side answers a request correctly, from a text and near's signals.

Each side has two logistic functions: one of the features, and one of its logit, which is Platt's calibration (Platt
1999, "Probabilistic outputs for support vector machines"). The weights are part of a policy.

A predictor may also read the vector that an embedding model makes of the text, as its principal components.

The terms of a text count in proportion to the share of them that the predictor knows. So in words that are foreign to
the fit, the probabilities approach those of the other features: numbers, sentences and lengths, which words do not
change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from nearfar.compiler.errors import RequestError

from .entry import INTEGER, ITEMS, Count, Entry
from .features import SIGNALS, FeatureName, text_features, text_terms
from .situation import NearSignals

Weight = Annotated[float, Field(ge=-1e9, le=1e9)]
# Browsers load policies.
MAX_TERMS = 65_536
Term = Annotated[str, Field(min_length=1, max_length=1000)]


class Weights(Entry):
    """One weight for each feature, then one for each term, then one for each component of the text's vector."""

    weights: Annotated[tuple[Weight, ...], ITEMS]
    bias: Weight


class Calibration(Entry):
    """The calibrated logit is ``a * logit + b`` with [a, b]."""

    near: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=2), ITEMS]
    far: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=2), ITEMS]


class Components(Entry):
    """How a text's vector (E,) from the embedding model ``model`` becomes inputs: ``components`` (K, E) times the
    vector less ``mean`` (E,).
    """

    model: Term
    mean: Annotated[tuple[Weight, ...], ITEMS]
    components: Annotated[tuple[Annotated[tuple[Weight, ...], ITEMS], ...], ITEMS]


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
    """``mean`` and ``scale`` (F,) of ``features`` (F,); ``terms`` (T,) as `text_terms` returns them; ``embedding`` with
    K components; ``weights`` (F + T + K,).
    """

    version: Annotated[Literal[2], INTEGER]
    features: Annotated[tuple[FeatureName, ...], ITEMS]
    terms: Annotated[tuple[Term, ...], Field(max_length=MAX_TERMS), ITEMS]
    mean: Annotated[tuple[Weight, ...], ITEMS]
    scale: Annotated[tuple[Annotated[float, Field(ge=1e-9, le=1e9)], ...], ITEMS]
    near: Weights
    far: Weights
    calibration: Calibration
    embedding: Components | None = None
    fitted: Fitted | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_current(cls, source: Any) -> Any:
        if isinstance(source, dict) and source.get("version") == 1:
            raise ValueError(
                "version 1, which counted hashed words, is no longer read; fit it again with 'nearfar router fit'"
            )
        return source

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        components = self.embedding.components if self.embedding else ()
        weights = len(self.features) + len(self.terms) + len(components)
        lengths = [("mean", self.mean, len(self.features)), ("scale", self.scale, len(self.features))]
        lengths += [("near.weights", self.near.weights, weights), ("far.weights", self.far.weights, weights)]
        lengths += [("a component", row, len(self.embedding.mean)) for row in components if self.embedding]
        for name, values, due in lengths:
            if len(values) != due:
                raise ValueError(f"{name} has {len(values)} numbers, not {due}")
        for name, known in (("feature", self.features), ("term", self.terms)):
            if len(set(known)) < len(known):
                raise ValueError(f"a {name} appears twice")
        return self

    def rights(self, text: str, signals: NearSignals | None, vector: Sequence[float] | None = None) -> Rights:
        """``text`` is the last user message. Raises RequestError for a vector that the model cannot have made."""
        inputs = self.inputs(text, signals, vector)
        return Rights(
            _calibrated(self.near, inputs, self.calibration.near),
            _calibrated(self.far, inputs, self.calibration.far),
        )

    def inputs(
        self, text: str, signals: NearSignals | None, vector: Sequence[float] | None = None
    ) -> list[tuple[int, float]]:
        """The inputs of the weights, as (index of the weight, value); missing ones are zero.

        A signal or a vector that is None counts as the mean, which is zero too. Each term that the text has and the
        predictor knows has the share of the text's terms that the predictor knows.
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
        of_terms = [(index, len(known) / len(terms)) for index in sorted(set(known))]
        return [*standard, *of_terms, *self._of_vector(vector)]

    def _of_vector(self, vector: Sequence[float] | None) -> list[tuple[int, float]]:
        if self.embedding is None or vector is None:
            return []
        mean, first = self.embedding.mean, len(self.features) + len(self.terms)
        if len(vector) != len(mean) or not all(map(math.isfinite, vector)):
            raise RequestError(
                f"The embedding has {len(vector)} numbers, not the {len(mean)} finite ones of {self.embedding.model}",
                code="bad_situation",
                param="embedding",
            )
        centred = [value - centre for value, centre in zip(vector, mean, strict=True)]
        return [
            (first + number, sum(weight * value for weight, value in zip(row, centred, strict=True)))
            for number, row in enumerate(self.embedding.components)
        ]

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
