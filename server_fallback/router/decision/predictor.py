"""The predictor: the probabilities that each side answers a request correctly, from a text and near's signals.

Each side has two logistic functions: one of the features, and one of its logit, which is Platt's calibration (Platt
1999, "Probabilistic outputs for support vector machines"). The weights are part of a policy.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from .entry import ITEMS, WHOLE, Count, Entry
from .features import SIGNALS, FeatureName, bucket_counts, text_features
from .situation import NearSignals

PREDICTOR_VERSION = 1

Weight = Annotated[float, Field(ge=-1e9, le=1e9)]


class Weights(Entry):
    """One weight for each feature, then one for each bucket."""

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
    """``mean`` and ``scale`` (F,) of ``features`` (F,); ``weights`` (F + buckets,)."""

    version: Annotated[Literal[1], WHOLE]
    features: Annotated[tuple[FeatureName, ...], ITEMS]
    buckets: Annotated[int, Field(ge=0, le=65_536), WHOLE]
    mean: Annotated[tuple[Weight, ...], ITEMS]
    scale: Annotated[tuple[Annotated[float, Field(ge=1e-9, le=1e9)], ...], ITEMS]
    near: Weights
    far: Weights
    calibration: Calibration
    fitted: Fitted | None = None

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        weights = len(self.features) + self.buckets
        lengths = [("mean", self.mean, len(self.features)), ("scale", self.scale, len(self.features))]
        lengths += [("near.weights", self.near.weights, weights), ("far.weights", self.far.weights, weights)]
        for name, values, due in lengths:
            if len(values) != due:
                raise ValueError(f"{name} has {len(values)} numbers; features and buckets require {due}")
        if len(set(self.features)) < len(self.features):
            raise ValueError("a feature appears twice")
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

        A signal that is None counts as the mean, which is zero too.
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
        counts = sorted(bucket_counts(text, self.buckets).items())
        return [*standard, *((len(self.features) + bucket, math.log1p(count)) for bucket, count in counts)]


def sigmoid(x: float) -> float:
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def _calibrated(side: Weights, inputs: list[tuple[int, float]], calibration: tuple[float, ...]) -> float:
    logit = side.bias + sum(side.weights[number] * value for number, value in inputs)
    a, b = calibration
    return sigmoid(a * logit + b)
