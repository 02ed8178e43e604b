"""The weights of each token's and each row's error: gradients of a model's own predictions.

The divergence of a changed model from the original is about half the expected square of the change times the gradient
of log p(token), if the token is drawn from the model's own distribution (the Fisher information). For a projection with
the input x_t and the gradient g_t of its result, this is the mean of (g_t . D x_t)^2 / 2 over tokens, where D is the
error of the matrix. The square of g_tn is approximated by a product of a weight of token t and a weight of row n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..ir.graph import Parameter
from ..ir.ops import OPS, Array
from ..quant.base import FloatArray
from ..runtime.windows import Head, HeadlessGraph, window_inputs
from .gradients import GRADIENTS
from .tape import Tape, Visitor, Weights

# The number of logits that are in memory at once.
LOGITS_AT_ONCE = 1 << 25
# Tokens of a forward and a backward pass.
TOKENS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of a matrix. ``tokens``: for each token (T,) the mean of the squared gradients of a projection's
    result. ``rows`` (N,): the squares of each row's gradients relative to the mean. ``gradients``: the sum of g g^T (K,
    K) over lookups of a table's rows, ``counts`` the number of lookups of each row (N,). A matrix that is a projection,
    or a table, has only its own.
    """

    tokens: FloatArray | None = None
    rows: FloatArray | None = None
    gradients: npt.NDArray[np.float64] | None = None
    counts: npt.NDArray[np.float64] | None = None

    def arrays(self) -> dict[str, Array]:
        found = {name: getattr(self, name) for name in ("tokens", "rows", "gradients", "counts")}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(slots=True)
class Sums:
    tokens: list[FloatArray] = field(default_factory=list)
    rows: npt.NDArray[np.float64] | None = None
    gradients: npt.NDArray[np.float64] | None = None
    counts: npt.NDArray[np.float64] | None = None

    def importance(self) -> Importance:
        if self.rows is None:
            return Importance(None, None, self.gradients, self.counts)
        mean = float(self.rows.mean())
        rows = (self.rows / mean if mean > 0 else np.ones_like(self.rows)).astype(np.float32)
        return Importance(np.concatenate(self.tokens), rows, self.gradients, self.counts)


@dataclass(slots=True)
class Collector:
    """A visitor that adds up the importance of every matrix, by its name."""

    found: dict[str, Sums] = field(default_factory=dict)

    def projection(self, parameter: Parameter, x: Array, gradient: Array) -> None:  # noqa: ARG002
        own = self.found.setdefault(parameter.name, Sums())
        squares = np.square(gradient)
        own.tokens.append(squares.mean(axis=1))
        sums = squares.sum(axis=0, dtype=np.float64)
        own.rows = sums if own.rows is None else own.rows + sums

    def table(self, parameter: Parameter, token_ids: Array, gradient: Array) -> None:
        own = self.found.setdefault(parameter.name, Sums())
        counts = np.bincount(token_ids, minlength=parameter.rows).astype(np.float64)
        product = (gradient.T @ gradient).astype(np.float64)
        own.counts = counts if own.counts is None else own.counts + counts
        own.gradients = product if own.gradients is None else own.gradients + product

    def vector(self, parameter: Parameter, gradient: Array) -> None:
        pass


def groups_of_windows(windows: Sequence[Sequence[int]], tokens: int = TOKENS_AT_ONCE) -> Iterator[list[Sequence[int]]]:
    """Windows in groups of about that number of tokens."""
    group: list[Sequence[int]] = []
    for window in windows:
        if group and sum(map(len, group)) + len(window) > tokens:
            yield group
            group = []
        group.append(window)
    if group:
        yield group


def measure_importance(
    model: HeadlessGraph,
    windows: Sequence[Sequence[int]],
    window: int,
    weights: Weights,
    generator: np.random.Generator,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Mapping[str, Importance]:
    """The importance of every matrix of the model by its name, with tokens in the order of the windows. ``progress``
    receives the number of finished windows and of all.
    """
    collector, done = Collector(), 0
    for group in groups_of_windows(windows):
        progress(done, len(windows))
        tape = Tape(model.graph, model.rows, *window_inputs(group, window), weights)
        rows = tape.forward()

        def score(logits: FloatArray, start: int) -> FloatArray:  # noqa: ARG001
            chances = softmax(logits)
            drawn = draw(chances, generator)
            gradient = -chances
            gradient[np.arange(len(drawn)), drawn] += 1
            return gradient

        tape.backward(head_backward(model, rows, model.head_of(weights), score, collector), collector)
        done += len(group)
    progress(done, len(windows))
    return {name: each.importance() for name, each in collector.found.items()}


def head_backward(
    model: HeadlessGraph,
    rows: FloatArray,
    head: Head,
    gradient_of: Callable[[FloatArray, int], FloatArray],
    visitor: Visitor,
) -> FloatArray:
    """The gradient of the head's input (n, E). ``gradient_of`` gets logits (rows, V) and the number of their first row,
    and returns their gradient. The head counts as one projection.
    """
    size = max(1, LOGITS_AT_ONCE // len(head.weight))
    parts, own = [], []
    for start in range(0, len(rows), size):
        values = [head(rows[start : start + size])]
        for node in model.behind:
            result = OPS[node.op].run({"x": values[-1]}, node.attrs)
            assert result is not None
            values.append(result)
        gradient = gradient_of(values[-1], start)
        for node, value in zip(reversed(model.behind), reversed(values[:-1]), strict=True):
            back, _ = GRADIENTS[node.op]
            gradient = back({"x": value}, OPS[node.op].complete(node.attrs), gradient)["x"]
        parts.append(gradient @ head.weight)
        own.append(gradient)
    of_logits = np.concatenate(own)
    visitor.projection(model.head_weight, rows, of_logits)
    if model.head_bias is not None:
        visitor.vector(model.head_bias, of_logits.sum(axis=0))
    return np.concatenate(parts)


def softmax(logits: FloatArray) -> FloatArray:
    chances: FloatArray = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    return chances


def draw(chances: FloatArray, generator: np.random.Generator) -> npt.NDArray[np.intp]:
    """One column of each row, drawn with these chances."""
    sums = np.cumsum(chances, axis=-1)
    limits = generator.random(len(chances), dtype=np.float32)[:, None] * sums[:, -1:]
    drawn: npt.NDArray[np.intp] = np.minimum((sums < limits).sum(axis=-1), chances.shape[1] - 1)
    return drawn
