"""The predictor: the weights from which the probabilities follow that each side answers a request correctly. They are
part of a policy.

`web/src/shared/decision/predictor.ts` states what they mean, and computes the probabilities from a text and near's
signals.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from nearfar.compiler.shared.script import SharedScript

from .situation import NearSignals

Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Weight = Annotated[float, Field(ge=-1e9, le=1e9)]
# Texts of a call of the shared script.
BATCH = 128
# Browsers load policies.
MAX_TERMS = 65_536
Name = Annotated[str, Field(min_length=1, max_length=100)]
Term = Annotated[str, Field(min_length=1, max_length=1000)]


class PolicyPart(BaseModel):
    """The base of all parts of a policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Weights(PolicyPart):
    """One weight for each feature, then one for each term, then one for each component of the text's vector."""

    weights: tuple[Weight, ...]
    bias: Weight


class Calibration(PolicyPart):
    """The calibrated logit is ``a * logit + b`` with [a, b]."""

    near: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=2)]
    far: Annotated[tuple[Weight, ...], Field(min_length=2, max_length=2)]


class Components(PolicyPart):
    """How a text's vector (E,) from the embedding model ``model`` becomes inputs: ``components`` (K, E) times the
    vector less ``mean`` (E,).
    """

    model: Term
    mean: tuple[Weight, ...]
    components: tuple[tuple[Weight, ...], ...]


class Wanted(PolicyPart):
    """The target that the threshold was chosen for: one of the two."""

    quality: Annotated[float, Field(ge=0, le=1)] | None = None
    far_share: Annotated[float, Field(ge=0, le=1)] | None = None


class Fitted(PolicyPart):
    """Where the weights come from; no decision depends on it. ``date`` is ISO 8601."""

    pairs: Count
    date: str
    wanted: Wanted | None = None


class Rights(NamedTuple):
    """The probabilities of a correct answer."""

    near: float
    far: float


class Predictor(PolicyPart):
    """``mean`` and ``scale`` (F,) of ``features`` (F,); ``terms`` (T,) as `text_inputs` has them; ``embedding`` with K
    components; ``weights`` (F + T + K,).
    """

    version: Literal[2]
    features: tuple[Name, ...]
    terms: Annotated[tuple[Term, ...], Field(max_length=MAX_TERMS)]
    mean: tuple[Weight, ...]
    scale: tuple[Annotated[float, Field(ge=1e-9, le=1e9)], ...]
    near: Weights
    far: Weights
    calibration: Calibration
    embedding: Components | None = None
    fitted: Fitted | None = None

    def rights(self, *texts: tuple[str, NearSignals | None, Sequence[float] | None]) -> list[Rights]:
        """``texts`` are last user messages, each with near's signals and its vector. A signal or vector that is None
        counts as the mean. Raises RequestError for a vector that the model cannot have made.
        """
        predictor = self.model_dump_json()

        def batch(start: int) -> list[dict[str, float]]:
            read = json.dumps(texts[start : start + BATCH])
            rights: list[dict[str, float]] = SharedScript.of_thread().ask_text("rights", predictor, read)
            return rights

        # The shared script computes without the interpreter's lock, and bounds the time of a call.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [Rights(**each) for rights in pool.map(batch, range(0, len(texts), BATCH)) for each in rights]


@cache
def feature_names() -> dict[str, list[str]]:
    """The features that a predictor may read: those of the "text", and near's "signals"."""
    names: dict[str, list[str]] = SharedScript.of_thread().ask("featureNames")
    return names


def text_inputs(text: str) -> tuple[dict[str, float], list[str]]:
    """The value of each feature of a text, and its terms: the words and numbers in their order, then each two adjacent
    ones.
    """
    answer = SharedScript.of_thread().ask("textInputs", text)
    return answer["features"], answer["terms"]
