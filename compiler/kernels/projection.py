"""The parts that the kernels of a projection share: its facts, reading its input, and writing its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.expr import Expr
from ..ir.ops.parts import Part
from .builder import Array, KernelBuilder, Scalar, cast, maximum, minimum, number, select, truncated_quotient
from .fold import Fold
from .maths import MATHS, fake_quantized
from .packed import PackedMatrix, WeightFormat
from .vectors import lane_of, vector


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a projection that has a weight for each of ``count``, as `ops.experts.expert_linear` defines it:
    ``tokens`` rows have ``chosen`` of them each. ``shares_rows``: the pairs of a token read the same row of x.

    A GPU may hold some experts at a time: then ``chosen`` are their places among the weights, a pair whose expert is
    elsewhere has -1, and kernels leave its row of the result as it is.
    """

    count: int
    chosen: int
    tokens: Expr
    shares_rows: bool

    def index(self, expert: Scalar) -> Scalar:
        """An expert that a buffer names, which must not lead out of the weights, whoever wrote the buffer."""
        return maximum(minimum(expert, self.count - 1), 0)


@dataclass(frozen=True, slots=True)
class Projection:
    """y (batch, width)[:, offset : offset + outputs] = store(load(x) @ weight.T + bias), as `ops.projections.linear`
    defines it. ``load`` and ``store`` are parts as `parts.facts_of_part` describes them.

    x (batch, columns); weight (outputs, columns), or (2 * outputs, columns) if it is ``gated``, because ``store``
    begins with gate_halves. ``width`` 0 means that the result has only these outputs. With ``experts``, the batch is
    all pairs, and the sizes are those of one expert. ``up_dtype`` is that of what a gate of ``store`` multiplies.
    """

    batch: Expr
    columns: int
    outputs: int
    weight: WeightFormat
    x_dtype: str
    y_dtype: str
    up_dtype: str = "float32"
    bias: bool = False
    load: Sequence[Part] = ()
    store: Sequence[Part] = ()
    offset: int = 0
    width: int = 0
    experts: Experts | None = None

    @property
    def gated(self) -> bool:
        return bool(self.store) and self.store[0]["op"] == "gate_halves"

    @property
    def weight_rows(self) -> int:
        return self.outputs * (2 if self.gated else 1)

    @property
    def all_weight_rows(self) -> int:
        """Those of all experts."""
        return self.weight_rows * (1 if self.experts is None else self.experts.count)

    @property
    def input_rows(self) -> Expr:
        """The rows of x."""
        return self.experts.tokens if self.experts is not None and self.experts.shares_rows else self.batch

    @property
    def total_width(self) -> int:
        return self.width or self.outputs

    @property
    def norm(self) -> Part | None:
        """An RMS norm at the end of ``load``: a kernel may multiply results by its factor instead of the input."""
        last = self.load[-1] if self.load else {"op": ""}
        return last if last["op"] == "rms_norm" and not last["centered"] and not last["keep"] else None

    @property
    def before_norm(self) -> Sequence[Part]:
        """The parts of ``load`` that a kernel computes completely before it multiplies."""
        return self.load if self.norm is None else self.load[:-1]


class Rows:
    """A (rows, columns) float buffer read four columns at a time, zero beyond the last column."""

    def __init__(
        self, kernel: KernelBuilder, role: str, rows: Expr, columns: int, dtype: str, load: Sequence[Part] = ()
    ) -> None:
        """A rounding at the begin of ``load`` rounds what is read."""
        self._kernel, self._columns = kernel, columns
        self._step = load[0]["scale"] if load and load[0]["op"] == "fake_quantize" else None
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


class InputArguments:
    """The buffers of a projection's input and of what it loads. Without ``reads_x``, the kernel computes the input
    itself.
    """

    def __init__(self, kernel: KernelBuilder, facts: Projection, *, reads_x: bool = True) -> None:
        self.facts = facts
        rows, columns = facts.input_rows, facts.columns
        self._x = Rows(kernel, "x", rows, columns, facts.x_dtype, facts.load) if reads_x else None
        self.loads: list[LoadArguments] = []
        for index in range(len(facts.load) if reads_x else 0):
            self.loads.append(LoadArguments(kernel, facts, index, self.loads))

    @property
    def x(self) -> Rows:
        assert self._x is not None
        return self._x

    @property
    def norm(self) -> NormWeights | None:
        """The weights of `Projection.norm`."""
        return self.loads[-1].weights if self.facts.norm is not None else None

    def declare_kept(self, kernel: KernelBuilder) -> None:
        """Declare the loaded values that are kept."""
        for index, each in enumerate(self.loads):
            each.declare_result(kernel, index)


class ProjectionArguments(InputArguments):
    """A projection's buffers, declared in the order: input, those of what it loads, weight, bias, those of what it
    stores, result, loaded values that are kept. Without ``reads_chosen``, the kernel knows the experts otherwise.
    """

    def __init__(
        self,
        kernel: KernelBuilder,
        facts: Projection,
        *,
        blocks: bool,
        reads_x: bool = True,
        reads_chosen: bool = True,
    ) -> None:
        super().__init__(kernel, facts, reads_x=reads_x)
        rows, columns = facts.batch, facts.columns
        self.weight = PackedMatrix(kernel, "weight", facts.all_weight_rows, columns, facts.weight, blocks=blocks)
        self._chosen = (
            None
            if facts.experts is None or not reads_chosen
            else kernel.buffer("chosen", (facts.experts.tokens, facts.experts.chosen), "int32")
        )
        # The first row of the weights, and of the bias, of the expert at hand; whether there is one.
        self.first_row: Scalar | int = 0
        self.has_expert: Scalar | bool = True
        bias_length = facts.total_width if facts.experts is None and not facts.gated else facts.all_weight_rows
        self._bias = kernel.buffer("bias", (bias_length,), "float32") if facts.bias else None
        self._store = Fold(kernel, MATHS, facts.store, rows, facts.total_width, up_dtype=facts.up_dtype)
        self._y: Array = kernel.buffer("y", (rows, facts.total_width), facts.y_dtype, write=True)
        self.declare_kept(kernel)

    def choose(self, kernel: KernelBuilder, row: Scalar) -> Scalar:
        """Read the weights of the expert that a row of the result belongs to from here on. Returns its row of x."""
        experts = self.facts.experts
        if experts is None or self._chosen is None:
            return row
        token = kernel.let("token", truncated_quotient(row, experts.chosen))
        expert = kernel.let("expert", self._chosen[token, row - token * experts.chosen])
        self.has_expert = expert >= 0
        self.read_expert(kernel, experts.index(expert))
        return token if experts.shares_rows else row

    def read_expert(self, kernel: KernelBuilder, expert: Scalar) -> None:
        """Read the weights of an expert from here on."""
        self.first_row = kernel.let("first_row", expert * self.facts.weight_rows)

    def store(
        self, kernel: KernelBuilder, row: Scalar, output: Scalar, sums: list[Scalar], guard: Scalar | bool
    ) -> None:
        """Compute one result and store it if the guard holds; see `result`."""
        with kernel.when(guard):
            self.write(row, output, self.result(row, output, sums))

    def result(self, row: Scalar, output: Scalar, sums: list[Scalar]) -> Scalar:
        """One result, from its dot product; for a gated projection, from those of gate and up."""
        facts = self.facts
        if facts.weight.per_row:
            rows = [self.first_row + output + half * facts.outputs for half in range(len(sums))]
            sums = [total * self.weight.scale(row_of, 0) for total, row_of in zip(sums, rows, strict=True)]
        if self._bias is not None:
            first = facts.offset if facts.experts is None and not facts.gated else self.first_row
            places = [output + (first + half * facts.outputs) for half in range(len(sums))]
            sums = [total + self._bias[place] for total, place in zip(sums, places, strict=True)]
        return self._store(row, output + facts.offset, *sums)

    def write(self, row: Scalar, output: Scalar, value: Scalar) -> None:
        self._y[row, output + self.facts.offset] = cast(value, self.facts.y_dtype)


class NormWeights:
    """A row of a buffer that holds the weights of one or two norms."""

    def __init__(self, rows: Rows, row: int) -> None:
        self.rows, self._row = rows, row

    def quad(self, index: Scalar, reach: int) -> Scalar:
        return self.rows.quad(self._row, index, reach)


class LoadArguments:
    """The buffers of one part of what a projection loads. Norms of one array of weights share its buffer."""

    def __init__(self, kernel: KernelBuilder, facts: Projection, index: int, before: Sequence[LoadArguments]) -> None:
        self._kernel, self._facts, self.part = kernel, facts, facts.load[index]
        role, rows, columns = f"load{index}_", facts.input_rows, facts.columns
        part, is_norm = self.part, self.part["op"] == "rms_norm"
        self.addend = Rows(kernel, f"{role}b", rows, columns, "float32") if part["op"] == "add" else None
        self.factor = kernel.buffer(f"{role}factor", (1,), "float32") if part["op"] == "scale" else None
        self.weights: NormWeights | None = None
        if is_norm:
            shared = next((each.weights.rows for each in before if each.weights is not None), None)
            if shared is None or not part["row"]:
                count = 1 + max(each["row"] or 0 for each in facts.load if each["op"] == "rms_norm")
                shared = Rows(kernel, f"{role}weight", count, columns, "float32")
            self.weights = NormWeights(shared, part["row"] or 0)
        self.bias = Rows(kernel, f"{role}bias", 1, columns, "float32") if is_norm and part["bias"] else None
        self._result: Array | None = None

    def declare_result(self, kernel: KernelBuilder, index: int) -> None:
        if self.part["keep"]:
            shape = self._facts.input_rows, self._facts.columns
            self._result = kernel.buffer(f"load{index}", shape, "float32", write=True)

    def keep(self, value: Scalar, row: Scalar, quad: Scalar, guard: Scalar | bool) -> None:
        """Store a quad of the part's result if it is a result of the step and the guard holds."""
        if self._result is not None:
            with self._kernel.when(guard):
                for lane in range(4):
                    column = quad * 4 + lane
                    with self._kernel.when(column < self._facts.columns):
                        self._result[row, column] = lane_of(value, lane)
