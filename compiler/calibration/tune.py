"""Tunes quantized matrices together: gradient descent on the divergence of the quantized model's next-token
distributions from the original's.

Scales, biases and vectors are tuned, and with them the codes: a code follows a float that starts within half a step of
it, and the gradient of the rounded weight counts as that of the float (straight-through, Bengio et al. 2013; rounding
learned by descent: AutoRound, Cheng et al. 2024). Adam, with a learning rate that falls along half a cosine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..ir.graph import Parameter
from ..ir.ops import Array
from ..ir.ops.sampling import log_softmax
from ..quant.base import FloatArray
from ..runtime.windows import Head, HeadlessGraph, window_inputs
from .finished import Finished
from .fit import Fitted, stored
from .importance import LOGITS_AT_ONCE, groups_of_windows, head_backward, softmax
from .tape import Tape, Weights

# Steps of the largest moves: in units of a code, and relative to a scale or a vector's mean size.
CODE_RATE, SCALE_RATE, VECTOR_RATE = 0.005, 1e-3, 1e-3
# Tokens of a step, and the share of windows that are not tuned on: one in this many.
TOKENS_A_STEP, HELD_OUT = 512, 8
BETAS = (0.9, 0.99)
# A float stays this close to a code that it starts at.
MOST_OFF = np.float32(0.4)


@dataclass(slots=True)
class Moments:
    """Adam's running means of a gradient and of its square. Kingma & Ba 2015."""

    first: FloatArray
    second: FloatArray
    steps: int = 0

    def step(self, gradient: FloatArray, rate: float) -> FloatArray:
        """The change of the parameter, about ``rate`` in size."""
        self.steps += 1
        self.first += (1 - BETAS[0]) * (gradient - self.first)
        self.second += (1 - BETAS[1]) * (np.square(gradient) - self.second)
        mean = self.first / np.float32(1 - BETAS[0] ** self.steps)
        size = np.sqrt(self.second / np.float32(1 - BETAS[1] ** self.steps)) + np.float32(1e-20)
        change: FloatArray = np.float32(-rate) * mean / size
        return change

    def arrays(self) -> dict[str, Array]:
        return {"first": self.first, "second": self.second, "steps": np.array(self.steps)}


def moments_of(x: Array) -> Moments:
    return Moments(np.zeros_like(x, np.float32), np.zeros_like(x, np.float32))


@dataclass(slots=True)
class TunedMatrix:
    """``floats`` (N, K) are the codes before rounding. ``size``: the scales at the start; steps count in them."""

    fitted: Fitted
    floats: FloatArray
    size: FloatArray
    gradient: FloatArray | None = None
    moments: Mapping[str, Moments] = field(default_factory=dict)

    @staticmethod
    def of(fitted: Fitted, original: FloatArray) -> TunedMatrix:
        columns = original.shape[1]
        scales = fitted.form.of_columns(fitted.scales, columns)
        inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
        codes = fitted.codes.astype(np.float32)
        floats = codes + np.clip((original - fitted.matrix()) * inverse, -MOST_OFF, MOST_OFF)
        moments = {"floats": moments_of(floats), "scales": moments_of(fitted.scales)}
        if fitted.biases is not None:
            moments["biases"] = moments_of(fitted.biases)
        return TunedMatrix(fitted, floats, np.abs(fitted.scales), moments=moments)

    def add(self, gradient: FloatArray) -> None:
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def step(self, rate: float) -> None:
        """``rate``: the share of the full learning rates."""
        if self.gradient is None:
            return
        form, fitted, gradient = self.fitted.form, self.fitted, self.gradient
        columns = gradient.shape[1]
        first = np.float32(0 if form.offset else form.zero)
        last = np.float32((1 << form.bits) - 1)
        scales = form.of_columns(fitted.scales, columns)
        steps = fitted.codes.astype(np.float32) - first
        scale_step = self.moments["scales"].step(by_group(gradient * steps, fitted), rate * SCALE_RATE) * self.size
        biases = fitted.biases
        bias_step = np.zeros_like(scale_step)
        if biases is not None:
            bias_step = self.moments["biases"].step(by_group(gradient, fitted), rate * SCALE_RATE) * self.size
        self.floats += self.moments["floats"].step(gradient * scales, rate * CODE_RATE)
        np.clip(self.floats, -MOST_OFF, last + MOST_OFF, out=self.floats)
        self.fitted = replace(
            fitted,
            codes=np.rint(self.floats).astype(np.uint8),
            scales=fitted.scales + scale_step,
            biases=None if biases is None else biases + bias_step,
        )
        self.gradient = None

    def arrays(self) -> dict[str, Array]:
        found = {"floats": self.floats, "scales": self.fitted.scales}
        if self.fitted.biases is not None:
            found["biases"] = self.fitted.biases
        for role, own in self.moments.items():
            found |= {f"{role}.{key}": each for key, each in own.arrays().items()}
        return found

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self.floats = arrays["floats"]
        codes = np.rint(self.floats).astype(np.uint8)
        self.fitted = replace(self.fitted, codes=codes, scales=arrays["scales"], biases=arrays.get("biases"))
        self.moments = {
            role: Moments(arrays[f"{role}.first"], arrays[f"{role}.second"], int(arrays[f"{role}.steps"]))
            for role in self.moments
        }

    def result(self) -> Fitted:
        """With scales and biases as the format stores them."""
        fitted, form = self.fitted, self.fitted.form
        biases = np.zeros_like(fitted.scales) if fitted.biases is None else fitted.biases
        scales, biases = stored(fitted.scales, biases, form)
        return replace(fitted, scales=scales, biases=biases if fitted.biases is not None else None)


def by_group(values: FloatArray, fitted: Fitted) -> FloatArray:
    """The sum of each group's columns: (N, K) -> (N, G)."""
    group = fitted.form.group or values.shape[1]
    missing = -values.shape[1] % group
    padded = np.pad(values, ((0, 0), (0, missing))) if missing else values
    sums: FloatArray = padded.reshape(len(values), -1, group).sum(axis=2)
    return sums


@dataclass(slots=True)
class Tuner:
    """The visitor that adds up gradients, and the weights that it tunes."""

    matrices: dict[str, TunedMatrix]
    vectors: dict[str, FloatArray]
    vector_moments: dict[str, Moments] = field(default_factory=dict)
    vector_gradients: dict[str, FloatArray] = field(default_factory=dict)
    cached: dict[str, FloatArray] = field(default_factory=dict)

    def weights(self, parameter: Parameter) -> FloatArray:
        if parameter.name in self.vectors:
            return self.vectors[parameter.name]
        if parameter.name not in self.cached:
            self.cached[parameter.name] = self.matrices[parameter.name].fitted.matrix()
        return self.cached[parameter.name]

    def projection(self, parameter: Parameter, x: Array, gradient: Array) -> None:
        self.matrices[parameter.name].add(gradient.T @ x)

    def table(self, parameter: Parameter, token_ids: Array, gradient: Array) -> None:
        rows = np.zeros(parameter.shape, np.float32)
        np.add.at(rows, token_ids, gradient)
        self.matrices[parameter.name].add(rows)

    def vector(self, parameter: Parameter, gradient: Array) -> None:
        before = self.vector_gradients.get(parameter.name)
        self.vector_gradients[parameter.name] = gradient if before is None else before + gradient

    def arrays(self) -> dict[str, Array]:
        """The state, by names without ambiguity."""
        found: dict[str, Array] = {f"vector/{name}": each for name, each in self.vectors.items()}
        for name, own in self.vector_moments.items():
            found |= {f"vector.{key}/{name}": each for key, each in own.arrays().items()}
        for name, matrix in self.matrices.items():
            found |= {f"matrix.{key}/{name}": each for key, each in matrix.arrays().items()}
        return found

    def restore(self, arrays: Mapping[str, Array]) -> None:
        self.cached.clear()
        parts: dict[str, dict[str, Array]] = {}
        for key, each in arrays.items():
            kind, _, name = key.partition("/")
            parts.setdefault(name, {})[kind.partition(".")[2]] = each
        for name, own in parts.items():
            if name in self.matrices:
                self.matrices[name].restore(own)
            else:
                self.vectors[name] = own[""]
                self.vector_moments[name] = Moments(own["first"], own["second"], int(own["steps"]))

    def finish(self) -> None:
        """Round scales and biases as the formats store them."""
        self.cached.clear()
        for matrix in self.matrices.values():
            matrix.fitted = matrix.result()

    def step(self, rate: float) -> None:
        self.cached.clear()
        for matrix in self.matrices.values():
            matrix.step(rate)
        for name, gradient in self.vector_gradients.items():
            moments = self.vector_moments.setdefault(name, moments_of(gradient))
            size = np.float32(np.abs(self.vectors[name]).mean())
            self.vectors[name] = self.vectors[name] + moments.step(gradient, rate * VECTOR_RATE) * size
        self.vector_gradients.clear()


def tune(
    model: HeadlessGraph,
    windows: Sequence[Sequence[int]],
    window: int,
    originals: Weights,
    tuner: Tuner,
    epochs: int,
    done: Finished,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[float, float]:
    """Tune for ``epochs`` over the windows. Returns the mean divergence before and after, on windows that are not tuned
    on. Each finished epoch is stored.
    """
    teacher = rows_of(model, windows, window, originals)
    head = model.head_of(originals)
    held_out = range(0, len(windows), HELD_OUT) if len(windows) > 1 else range(1)
    rest = [index for index in range(len(windows)) if index not in held_out] or [0]

    def distance(weights: Weights) -> float:
        own = rows_of(model, [windows[index] for index in held_out], window, weights)
        expected = np.concatenate([teacher[index] for index in held_out])
        return divergence(model, expected, head, np.concatenate(own), model.head_of(weights))

    before = distance(tuner.weights)
    for epoch in range(epochs):
        stored = done.get(f"tuned-{epoch}")
        if stored is None:
            order = np.random.default_rng(epoch).permutation(rest)
            for part, group in enumerate(groups := list(batches([int(index) for index in order], windows))):
                at = (epoch + part / len(groups)) / epochs
                progress(round(1000 * at), 1000)
                expected = np.concatenate([teacher[index] for index in group])
                learn(model, [windows[index] for index in group], window, expected, head, tuner)
                tuner.step(0.5 * (1 + math.cos(math.pi * at)))
            done.put(f"tuned-{epoch}", tuner.arrays())
        else:
            tuner.restore(stored)
    progress(1000, 1000)
    tuner.finish()
    return before, distance(tuner.weights)


def batches(order: Sequence[int], windows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The numbers of windows of one step each."""
    first = 0
    for group in groups_of_windows([windows[index] for index in order], TOKENS_A_STEP):
        yield list(order[first : first + len(group)])
        first += len(group)


def learn(
    model: HeadlessGraph,
    windows: Sequence[Sequence[int]],
    window: int,
    expected: FloatArray,
    head: Head,
    tuner: Tuner,
) -> None:
    """Add the gradients of the divergence on these windows. ``expected``: the original's rows in front of its head."""
    tape = Tape(model.graph, model.rows, *window_inputs(windows, window), tuner.weights)
    rows = tape.forward()

    def gradient_of(logits: FloatArray, start: int) -> FloatArray:
        wanted = softmax(model.logits(expected[start : start + len(logits)], head))
        return (softmax(logits) - wanted) / np.float32(len(expected))

    tape.backward(head_backward(model, rows, model.head_of(tuner.weights), gradient_of, tuner), tuner)


def rows_of(model: HeadlessGraph, windows: Sequence[Sequence[int]], window: int, weights: Weights) -> list[FloatArray]:
    """The rows in front of the head, for each window."""
    found: list[FloatArray] = []
    for group in groups_of_windows(windows):
        rows = Tape(model.graph, model.rows, *window_inputs(group, window), weights).forward()
        found += np.split(rows, np.cumsum([len(each) for each in group])[:-1])
    return found


def divergence(model: HeadlessGraph, expected: FloatArray, expected_head: Head, rows: FloatArray, head: Head) -> float:
    """The mean divergence of the distributions of ``rows`` with this ``head`` from the expected ones."""
    total, size = 0.0, max(1, LOGITS_AT_ONCE // len(head.weight))
    for start in range(0, len(rows), size):
        here = slice(start, start + size)
        wanted = log_softmax(model.logits(expected[here], expected_head))
        total += float((np.exp(wanted) * (wanted - log_softmax(model.logits(rows[here], head)))).sum())
    return total / len(rows)
