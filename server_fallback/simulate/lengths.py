"""Lengths of prompts and answers, in tokens: distributions that a seed samples."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ..schema.common import Request

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Drawn = npt.NDArray[np.int64]


class Fixed(Request):
    """Always ``tokens``."""

    kind: Literal["fixed"]
    tokens: Tokens

    def draw(self, chance: np.random.Generator, count: int) -> Drawn:  # noqa: ARG002
        return np.full(count, self.tokens)


class Uniform(Request):
    """From ``least`` to ``most``, both included."""

    kind: Literal["uniform"]
    least: Tokens
    most: Tokens

    @model_validator(mode="after")
    def _rises(self) -> Uniform:
        if self.least > self.most:
            raise ValueError("least must not be larger than most")
        return self

    def draw(self, chance: np.random.Generator, count: int) -> Drawn:
        return chance.integers(self.least, self.most, count, endpoint=True)


class LogNormal(Request):
    """``sigma`` is the standard deviation of the logarithm. Lengths outside ``least`` to ``most`` are drawn again."""

    kind: Literal["lognormal"]
    median: Annotated[float, Field(gt=0)]
    sigma: Annotated[float, Field(gt=0, le=5)]
    least: Tokens = 1
    most: Tokens = 1_000_000

    @model_validator(mode="after")
    def _holds_its_median(self) -> LogNormal:
        if not self.least <= self.median <= self.most:
            raise ValueError("the median must lie between least and most")
        return self

    def draw(self, chance: np.random.Generator, count: int) -> Drawn:
        found = np.empty(0, np.int64)
        while len(found) < count:
            drawn = np.rint(self.median * np.exp(self.sigma * chance.standard_normal(count)))
            found = np.append(found, drawn[(drawn >= self.least) & (drawn <= self.most)].astype(np.int64))
        return found[:count]


class Quantiles(Request):
    """``tokens`` are the lengths at evenly spaced quantiles, from the smallest to the largest; linear between them."""

    kind: Literal["quantiles"]
    tokens: Annotated[list[Tokens], Field(min_length=2, max_length=1001)]

    @model_validator(mode="after")
    def _rises(self) -> Quantiles:
        if sorted(self.tokens) != self.tokens:
            raise ValueError("tokens must rise")
        return self

    def draw(self, chance: np.random.Generator, count: int) -> Drawn:
        shares = np.linspace(0, 1, len(self.tokens))
        return np.rint(np.interp(chance.random(count), shares, self.tokens)).astype(np.int64)


Lengths = Annotated[Fixed | Uniform | LogNormal | Quantiles, Field(discriminator="kind")]
