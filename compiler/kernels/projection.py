"""The parts that linear and gated_linear kernels share: the facts of one projection, reading its input, and writing its
result.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.expr import Expr
from .builder import Array, KernelBuilder, Scalar, cast, lane_of, minimum, number, select, vector
from .maths import activate, fake_quantized, gated
from .packed import PackedMatrix, WeightFormat


@dataclass(frozen=True, slots=True)
class Projection:
    """y (batch, width)[:, offset : offset + outputs] = norm(x) @ weight.T + bias + residual, or ``activation``(gate) *
    up if ``gated``. If ``up_width`` is not 0, only the gate is a projection, and up (batch, up_width) is an argument,
    whose columns count from ``up_start`` on. If ``stream_eps`` is given, x stands for summed = (stream + norm(x)) *
    stream_factor, which is a result too. ``norm_row`` 1: another norm's weights precede those of the norm.
    ``centered``: the norm is a LayerNorm, with a bias if ``norm_bias``; with ``keeps_norm``, norm(x) is a result too.

    ``y_activation`` is applied to the projection and its bias.

    x (batch, columns); weight (outputs, columns), or (2 * outputs, columns) for a gated projection, with the gate's
    rows first. ``width`` 0 means that the result has only these outputs. ``x_step`` and ``y_step``: an input without a
    norm, and the result before the residual, are rounded; see `fake_quantized`.
    """

    batch: Expr
    columns: int
    outputs: int
    weight: WeightFormat
    x_dtype: str
    y_dtype: str
    norm_eps: float | None = None
    bias: bool = False
    residual: bool = False
    gated: bool = False
    offset: int = 0
    width: int = 0
    activation: str = "silu"
    y_activation: str = "none"
    up_width: int = 0
    up_start: int = 0
    stream_eps: float | None = None
    stream_factor: bool = False
    norm_row: int = 0
    x_step: float | None = None
    y_step: float | None = None
    centered: bool = False
    norm_bias: bool = False
    keeps_norm: bool = False

    @property
    def weight_rows(self) -> int:
        return self.outputs * (2 if self.gated else 1)

    @property
    def total_width(self) -> int:
        return self.width or self.outputs


class Rows:
    """A (rows, columns) float buffer read four columns at a time, zero beyond the last column."""

    def __init__(
        self, kernel: KernelBuilder, role: str, rows: Expr, columns: int, dtype: str, step: float | None = None
    ) -> None:
        """``step`` rounds what is read; see `fake_quantized`."""
        self._kernel, self._columns, self._step = kernel, columns, step
        self._fills_vectors = columns % 4 == 0
        self._buffer = (
            kernel.buffer(role, (rows, columns // 4), f"{dtype}x4")
            if self._fills_vectors
            else kernel.buffer(role, (rows, columns), dtype)
        )

    def quad(self, row: Scalar, index: Scalar, reach: int) -> Scalar:
        """Columns 4 * index to 4 * index + 3 as float32x4; ``index`` is below ``reach``, which may lie beyond the last
        column.
        """
        loaded = self._load(row, index, reach)
        if self._step is None:
            return loaded
        lanes = self._kernel.local("unrounded", 1, "float32x4")
        lanes[0] = loaded
        return vector(*(fake_quantized(self._kernel, lane_of(lanes[0], lane), self._step) for lane in range(4)))

    def _load(self, row: Scalar, index: Scalar, reach: int) -> Scalar:
        if self._fills_vectors:
            quads = self._columns // 4
            if reach <= quads:
                return cast(self._buffer[row, index], "float32x4")
            loaded = cast(self._buffer[row, minimum(index, quads - 1)], "float32x4")
            return select(index < quads, loaded, number(0, "float32x4"))
        return vector(*(self._scalar(row, index * 4 + lane) for lane in range(4)))

    def _scalar(self, row: Scalar, column: Scalar) -> Scalar:
        loaded = cast(self._buffer[row, minimum(column, self._columns - 1)], "float32")
        return select(column < self._columns, loaded, number(0, "float32"))


class ProjectionArguments:
    """A projection's buffers, declared in the order: input, residual stream, norm, weight, bias, residual, up, result,
    normalized input. Without ``reads_x``, the kernel computes the input itself.
    """

    def __init__(self, kernel: KernelBuilder, facts: Projection, *, blocks: bool, reads_x: bool = True) -> None:
        self.facts = facts
        rows = facts.batch, facts.columns, facts.x_dtype, facts.x_step
        self._x = Rows(kernel, "x", *rows) if reads_x else None
        self.stream = StreamArguments(kernel, facts) if facts.stream_eps is not None else None
        self.norm = self._norm(kernel, facts) if facts.norm_eps is not None else None
        self.norm_bias = Rows(kernel, "norm_bias", 1, facts.columns, "float32") if facts.norm_bias else None
        self.weight = PackedMatrix(kernel, "weight", facts.weight_rows, facts.columns, facts.weight, blocks=blocks)
        bias_length = facts.weight_rows if facts.gated else facts.total_width
        self._bias = kernel.buffer("bias", (bias_length,), "float32") if facts.bias else None
        self._residual = (
            kernel.buffer("residual", (facts.batch, facts.total_width), "float32") if facts.residual else None
        )
        self._up = kernel.buffer("up", (facts.batch, facts.up_width), "float32") if facts.up_width else None
        self._y: Array = kernel.buffer("y", (facts.batch, facts.total_width), facts.y_dtype, write=True)
        normed = (facts.batch, facts.columns)
        self._normed = kernel.buffer("normed", normed, "float32", write=True) if facts.keeps_norm else None

    @property
    def x(self) -> Rows:
        assert self._x is not None
        return self._x

    def keep(self, kernel: KernelBuilder, value: Scalar, row: Scalar, quad: Scalar, guard: Scalar | bool) -> None:
        """Store a quad of the normalized input if it is a result and the guard holds."""
        if self._normed is not None:
            with kernel.when(guard):
                for lane in range(4):
                    column = quad * 4 + lane
                    with kernel.when(column < self.facts.columns):
                        self._normed[row, column] = lane_of(value, lane)

    def _norm(self, kernel: KernelBuilder, facts: Projection) -> NormWeights:
        if self.stream is not None:
            return NormWeights(self.stream.norms, 1)
        return NormWeights(Rows(kernel, "norm", 1 + facts.norm_row, facts.columns, "float32"), facts.norm_row)

    def store(
        self, kernel: KernelBuilder, row: Scalar, output: Scalar, sums: list[Scalar], guard: Scalar | bool
    ) -> None:
        """Compute one result and store it if the guard holds; see `result`."""
        with kernel.when(guard):
            self.write(row, output, self.result(kernel, row, output, sums))

    def result(self, kernel: KernelBuilder, row: Scalar, output: Scalar, sums: list[Scalar]) -> Scalar:
        """One result, from its dot product; for a gated projection, from those of gate and up."""
        facts = self.facts
        if facts.weight.per_row:
            sums = [total * self.weight.scale(output + half * facts.outputs, 0) for half, total in enumerate(sums)]
        if facts.gated:
            gate, up = sums
            if self._bias is not None:
                gate, up = gate + self._bias[output], up + self._bias[output + facts.outputs]
            value = gated(facts.activation, kernel.let("gate", gate), up)
        else:
            (value,) = sums
            if self._bias is not None:
                value = value + self._bias[output + facts.offset]
            if self._up is not None:
                up = self._up[row, output + facts.offset + facts.up_start]
                value = gated(facts.activation, kernel.let("gate", value), up)
        if facts.y_step is not None:
            value = fake_quantized(kernel, value, facts.y_step)
        if facts.y_activation != "none":
            value = activate(facts.y_activation, kernel.let("before_activation", value))
        if self._residual is not None:
            value = value + self._residual[row, output + facts.offset]
        return value

    def write(self, row: Scalar, output: Scalar, value: Scalar) -> None:
        self._y[row, output + self.facts.offset] = cast(value, self.facts.y_dtype)


class NormWeights:
    """A row of a buffer that holds the weights of one or two norms."""

    def __init__(self, rows: Rows, row: int) -> None:
        self._rows, self._row = rows, row

    def quad(self, index: Scalar, reach: int) -> Scalar:
        return self._rows.quad(self._row, index, reach)


class StreamArguments:
    """The residual stream, the norm of what is added to it, and the sum. ``norms`` has the input's norm behind that of
    the stream.
    """

    def __init__(self, kernel: KernelBuilder, facts: Projection) -> None:
        self._kernel, self._columns = kernel, facts.columns
        self._stream = Rows(kernel, "stream", facts.batch, facts.columns, "float32")
        self.norms = Rows(kernel, "stream_norm", 1 if facts.norm_eps is None else 2, facts.columns, "float32")
        self._factor = kernel.buffer("stream_factor", (1,), "float32") if facts.stream_factor else None
        self._summed = kernel.buffer("summed", (facts.batch, facts.columns), "float32", write=True)

    def quad(self, x: Scalar, inverse: Scalar, row: Scalar, index: Scalar, reach: int) -> Scalar:
        """Quad ``index`` of the sum, from that of x and 1 / rms(x)."""
        value = self._stream.quad(row, index, reach) + x * inverse * self.norms.quad(0, index, reach)
        return value if self._factor is None else value * self._factor[0]

    def store(self, value: Scalar, row: Scalar, index: Scalar) -> None:
        for lane in range(4):
            column = index * 4 + lane
            with self._kernel.when(column < self._columns):
                self._summed[row, column] = lane_of(value, lane)


def guard_below(index: Scalar, limit: int, step: int) -> Scalar | bool:
    """``index < limit``, or True if tiles of ``step`` cover the limit exactly."""
    return True if limit % step == 0 else index < limit
