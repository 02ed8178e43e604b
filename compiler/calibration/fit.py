"""Fits codes and scales to one matrix: minimizes tr((V - W) H (V - W)^T) over the matrices V (N, K) that a format can
represent. W is the matrix, and H (K, K) the weighted sum of x x^T over the inputs x of its projection, so the sum is
the squared error of the projection's results.

GPTQ (Frantar et al. 2022) rounds column after column and moves each error to the columns that follow. Coordinate
descent (QuantEase, Behdin et al. 2023) then improves groups in turn: first a group's scale and bias in closed form,
then each of its codes. Rows do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..quant.base import ROW, Array, FloatArray
from ..quant.codes import Codes
from ..quant.q4 import to_scale

# The share of the mean of H's diagonal that is added to the diagonal.
DAMPING = 0.01
SWEEPS = 4
# The scales that are tried for each group, as shares of the scale that the largest value needs.
SHARES = np.linspace(0.55, 1.1, 12, dtype=np.float32)
REFITS = 2
# Elements of a block of rows, which is in memory in about ten copies.
BLOCK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Fitted:
    """A matrix in a format: codes (N, K), scales (N, G), and biases (N, G) if the format has them. The scales and
    biases are exact in the format's dtype.
    """

    form: Codes
    codes: npt.NDArray[np.uint8]
    scales: FloatArray
    biases: FloatArray | None

    def planes(self) -> dict[str, Array]:
        return self.form.store(self.codes, self.scales, self.biases)

    def matrix(self) -> FloatArray:
        columns = self.codes.shape[1]
        values = self.codes.astype(np.float32)
        scales = self.form.of_columns(self.scales, columns)
        if self.biases is not None:
            return values * scales + self.form.of_columns(self.biases, columns)
        return (values - np.float32(self.form.zero)) * scales


def damped(hessian: FloatArray) -> npt.NDArray[np.float64]:
    """H in float64, with a diagonal that makes it positive definite."""
    exact = hessian.astype(np.float64)
    mean = float(np.trace(exact)) / len(exact)
    exact[np.diag_indices_from(exact)] += DAMPING * mean if mean > 0 else 1.0
    return exact


def fit(matrix: FloatArray, hessian: FloatArray, form: Codes, sweeps: int = SWEEPS) -> Fitted:
    """``hessian`` (K, K), any positive multiple of it."""
    return next(fits(matrix, hessian, (form,), sweeps))


def fits(matrix: FloatArray, hessian: FloatArray, forms: Iterable[Codes], sweeps: int) -> Iterator[Fitted]:
    """The same in several formats, in their order. The factor of H is computed once."""
    exact = damped(hessian)
    # Scaled, so that float32 holds all products.
    exact /= np.trace(exact) / len(exact)
    # The upper factor of the inverse: row j determines how later columns compensate for an error of column j.
    upper = np.linalg.cholesky(np.linalg.inv(exact)).T.astype(np.float32)
    weights = exact.astype(np.float32)
    size = max(1, BLOCK_ELEMENTS // matrix.shape[1])
    for form in forms:
        parts = []
        for start in range(0, len(matrix), size):
            rows = matrix[start : start + size]
            part = gptq(rows, upper, form)
            for _ in range(sweeps):
                part = descend(part, rows, weights)
            parts.append(part)
        yield parts[0] if len(parts) == 1 else joined(parts)


def joined(parts: list[Fitted]) -> Fitted:
    biases = None if parts[0].biases is None else np.concatenate([part.biases for part in parts])
    codes, scales = (np.concatenate([getattr(part, name) for part in parts]) for name in ("codes", "scales"))
    return Fitted(parts[0].form, codes, scales, biases)


def row_errors(fitted: Fitted, matrix: FloatArray, hessian: FloatArray) -> npt.NDArray[np.float64]:
    """The squared error of each row's results, (N,)."""
    difference = fitted.matrix() - matrix
    errors: npt.NDArray[np.float64] = ((difference @ hessian) * difference).sum(axis=1, dtype=np.float64)
    return np.maximum(errors, 0)


def groups_of(form: Codes, columns: int) -> Iterator[tuple[int, int, int]]:
    """The number of each group, its first column and the one behind it."""
    size = columns if form.group == ROW else form.group
    for number, start in enumerate(range(0, columns, size)):
        yield number, start, min(start + size, columns)


def gptq(matrix: FloatArray, upper: FloatArray, form: Codes) -> Fitted:
    """Round the columns in order. ``upper``: the upper Cholesky factor of the inverse of H."""
    rest = matrix.copy()
    rows, columns = matrix.shape
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty((rows, form.scales_of(columns)), np.float32)
    biases = np.empty_like(scales) if form.offset else None
    # The remaining weight of an error for which later columns compensate.
    importance = (1 / np.diag(upper) ** 2).astype(np.float32)
    for number, start, stop in groups_of(form, columns):
        scale, zero = grid(rest[:, start:stop], importance[start:stop], form)
        scales[:, number] = scale
        if biases is not None:
            biases[:, number] = zero
        errors = np.empty((rows, stop - start), np.float32)
        for column in range(start, stop):
            values = rest[:, column]
            codes[:, column], rounded = nearest(values, scale, zero, form)
            errors[:, column - start] = error = (values - rounded) / upper[column, column]
            rest[:, column + 1 : stop] -= error[:, None] * upper[column, column + 1 : stop]
        rest[:, stop:] -= errors @ upper[start:stop, stop:]
    return Fitted(form, codes, scales, biases)


def nearest(values: FloatArray, scale: FloatArray, zero: FloatArray, form: Codes) -> tuple[FloatArray, FloatArray]:
    """The codes nearest to values, as floats, and the values that they represent. ``zero`` is the bias, or 0 without
    one.
    """
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    first = np.float32(0 if form.offset else form.zero)
    codes = np.clip(np.rint((values - zero) * inverse + first), 0, (1 << form.bits) - 1)
    return codes, (codes - first) * scale + zero


def grid(group: FloatArray, importance: FloatArray, form: Codes) -> tuple[FloatArray, FloatArray]:
    """The scale (N,) and the bias of a group (N, g), or zeros without one, for which rounding to nearest has the
    smallest weighted error.
    """
    low, high = group.min(axis=1), group.max(axis=1)
    best = None
    for share in SHARES:
        if form.offset:
            middle, full = (low + high) / 2, (high - low) / np.float32((1 << form.bits) - 1)
            tries = [(share * full, middle - share * (high - low) / 2)]
        else:
            # The codes reach one step further down than up, so both signs are tried.
            full = np.maximum(high, -low) / np.float32(form.zero)
            tries = [(sign * share * full, np.zeros_like(low)) for sign in (1, -1)]
        for scale, zero in tries:
            best = better(best, group, importance, *stored(scale, zero, form), form)
    assert best is not None
    for _ in range(REFITS):
        scale, zero, _ = best
        codes, _ = nearest(group, scale[:, None], zero[:, None], form)
        scale, zero = least_squares(codes - np.float32(0 if form.offset else form.zero), group, importance, form)
        best = better(best, group, importance, *stored(scale, zero, form), form)
    return best[0], best[1]


Best = tuple[FloatArray, FloatArray, FloatArray]


def better(
    best: Best | None, group: FloatArray, importance: FloatArray, scale: FloatArray, zero: FloatArray, form: Codes
) -> Best:
    """The better of the best scales and biases so far and of others, row by row, with their errors."""
    _, rounded = nearest(group, scale[:, None], zero[:, None], form)
    errors = np.square(group - rounded) @ importance
    if best is None:
        return scale, zero, errors
    wins = errors < best[2]
    return tuple(np.where(wins, new, old) for new, old in zip((scale, zero, errors), best, strict=True))  # type: ignore[return-value]


def least_squares(
    codes: FloatArray, group: FloatArray, importance: FloatArray, form: Codes
) -> tuple[FloatArray, FloatArray]:
    """The scale and bias for which given codes (N, g) have the smallest weighted error."""
    if not form.offset:
        square = np.square(codes) @ importance
        scale = np.divide((codes * group) @ importance, square, out=np.zeros_like(square), where=square > 0)
        return scale, np.zeros_like(scale)
    total = importance.sum()
    mean_code, mean_value = codes @ importance / total, group @ importance / total
    centered = codes - mean_code[:, None]
    square = np.square(centered) @ importance
    scale = np.divide((centered * group) @ importance, square, out=np.zeros_like(square), where=square > 0)
    bias: FloatArray = mean_value - scale * mean_code
    return scale, bias


def stored(scale: FloatArray, zero: FloatArray, form: Codes) -> tuple[FloatArray, FloatArray]:
    """Scales and biases as the format stores them."""
    return (
        to_scale(scale.astype(np.float32), form.scale).astype(np.float32),
        zero.astype(form.scale).astype(np.float32) if form.offset else zero,
    )


def descend(fitted: Fitted, matrix: FloatArray, hessian: FloatArray) -> Fitted:
    """One sweep over all groups: a group's scale and bias in closed form, then each of its codes."""
    form, codes, scales = fitted.form, fitted.codes.astype(np.float32), fitted.scales.copy()
    biases = None if fitted.biases is None else fitted.biases.copy()
    first = np.float32(0 if form.offset else form.zero)
    # Half of the gradient of the error.
    slope: FloatArray = np.matmul(fitted.matrix() - matrix, hessian)
    for number, start, stop in groups_of(form, matrix.shape[1]):
        own = hessian[start:stop, start:stop]
        steps, here = codes[:, start:stop] - first, slope[:, start:stop].copy()
        before_scale = scales[:, number]
        before_bias = np.zeros_like(before_scale) if biases is None else biases[:, number]
        scale, bias = refit(steps, here, own, before_scale, before_bias, form)
        change = (scale - before_scale)[:, None] * steps + (bias - before_bias)[:, None]
        here += change @ own
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        for column in range(stop - start):
            moved = np.rint(-here[:, column] / own[column, column] * inverse)
            code = np.clip(steps[:, column] + moved, -first, np.float32((1 << form.bits) - 1) - first)
            moved = (code - steps[:, column]) * scale
            steps[:, column] = code
            change[:, column] += moved
            here += moved[:, None] * own[column]
        slope += change @ hessian[start:stop]
        codes[:, start:stop], scales[:, number] = steps + first, scale
        if biases is not None:
            biases[:, number] = bias
    return replace(fitted, codes=codes.astype(np.uint8), scales=scales, biases=biases)


def refit(
    steps: FloatArray, slope: FloatArray, hessian: FloatArray, scale: FloatArray, bias: FloatArray, form: Codes
) -> tuple[FloatArray, FloatArray]:
    """The scale and bias (N,) of a group that minimize the error for its codes; the old ones if rounding to the stored
    dtype makes these worse.
    """
    product = steps @ hessian
    square, force = (product * steps).sum(axis=1), (slope * steps).sum(axis=1)
    if form.offset:
        cross, ones = product.sum(axis=1), np.float32(hessian.sum())
        push = slope.sum(axis=1)
        determinant = square * ones - cross * cross
        safe = determinant > 1e-6 * square * ones
        scale_step = np.divide(cross * push - ones * force, determinant, out=np.zeros_like(force), where=safe)
        bias_step = -(push + cross * scale_step) / ones
    else:
        cross = ones = push = np.zeros_like(force)
        scale_step = np.divide(-force, square, out=np.zeros_like(force), where=square > 0)
        bias_step = np.zeros_like(force)
    new_scale, new_bias = stored(scale + scale_step, bias + bias_step, form)
    a, b = new_scale - scale, new_bias - bias
    gain = a * a * square + b * b * ones + 2 * a * b * cross + 2 * (a * force + b * push)
    wins = gain < 0
    return np.where(wins, new_scale, scale), np.where(wins, new_bias, bias)
