"""The predictor: how likely each side answers a request right. Its weights flow in with the policy, a text and near's signals flow in, two probabilities out.

For each side two logistic functions: one of the features, and Platt's calibration of its logit (Platt 1999, "Probabilistic outputs for support
vector machines"). `fit` makes the weights.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from .entry import WHOLE, Count, Entry
from .features import SIGNALS, TEXT_FEATURES, bucket_counts, text_features
from .situation import NearSignals

PREDICTOR_VERSION = 1

Weight = Annotated[float, Field(ge=-1e9, le=1e9)]
FeatureName = Literal[
    "characters",
    "words",
    "digits",
    "numbers",
    "longest_number",
    "sentences",
    "commas",
    "question",
    "ands",
    "prompt_mean_logprob",
    "first_entropy",
    "first_mean_logprob",
]


class Weights(Entry):
    """One weight a feature, then one a bucket."""

    weights: tuple[Weight, ...]
    bias: Weight


class Calibration(Entry):
    """The calibrated logit is ``a * logit + b`` with [a, b]."""

    near: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=2)]
    far: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=2)]


class Wanted(Entry):
    """What the threshold was chosen for: one of the two."""

    quality: Annotated[float, Field(ge=0, le=1)] | None = None
    far_share: Annotated[float, Field(ge=0, le=1)] | None = None


class Fitted(Entry):
    """Where the weights come from; nothing is decided by it. ``date`` is ISO 8601."""

    pairs: Count
    date: str
    wanted: Wanted | None = None


class Rights(NamedTuple):
    """Probabilities of a right answer."""

    near: float
    far: float


class Predictor(Entry):
    """``mean`` and ``scale`` (F,) of ``features`` (F,); ``weights`` (F + buckets,)."""

    version: Annotated[Literal[1], WHOLE]
    features: tuple[FeatureName, ...]
    buckets: Annotated[int, Field(ge=0, le=65_536), WHOLE]
    mean: tuple[Weight, ...]
    scale: tuple[Annotated[float, Field(ge=1e-9, le=1e9)], ...]
    near: Weights
    far: Weights
    calibration: Calibration
    fitted: Fitted | None = None

    def rights(self, text: str, signals: NearSignals | None) -> Rights:
        """``text`` is the last user message; a signal that is None counts as the mean of those that it was fitted on."""
        raise NotImplementedError
