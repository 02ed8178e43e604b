"""The parts that a kernel computes on its results: a fold over the list of `ir/ops/parts.py`, on float32 scalars of
GPUs and vectors of CPUs alike.

`ir/ops/elementwise.py` defines what a part means. A part is described by `parts.facts_of_part`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..ir.expr import Expr
from ..ir.ops.parts import Part
from .builder import Array, KernelBuilder, Scalar, cast, number, select
from .vectors import lanes_of, ramp, splat, with_lanes


@dataclass(frozen=True, slots=True)
class Maths:
    """The functions that differ between GPUs and CPUs. ``fake_quantized`` and ``soft_capped`` also get the kernel."""

    activations: Mapping[str, Callable[[Scalar], Scalar]]
    exp: Callable[[Scalar], Scalar]
    fake_quantized: Callable[[KernelBuilder, Scalar, float], Scalar]
    soft_capped: Callable[[KernelBuilder, float, Scalar], Scalar]


class Fold:
    """``parts`` of results (rows, columns). Their inputs are buffers of the kernel, whose roles begin with ``role``, in
    which "{}" stands for a part's index. ``up_dtype`` is that of what a gate multiplies.
    """

    def __init__(
        self,
        kernel: KernelBuilder,
        maths: Maths,
        parts: Sequence[Part],
        rows: Expr,
        columns: int,
        role: str = "store{}_",
        up_dtype: str = "float32",
    ) -> None:
        self._kernel, self._maths, self._parts = kernel, maths, parts
        self._operands = [
            kernel.buffer(f"{role.format(index)}{name}", shape, up_dtype if name == "up" else "float32")
            for index, part in enumerate(parts)
            for name, shape in operands_of(part, rows, columns).items()
        ]

    def __call__(self, row: Scalar, column: Scalar, value: Scalar, up: Scalar | None = None) -> Scalar:
        """The results of a row from ``column`` on, in all lanes of ``value``. ``up`` is what gate_halves gates."""
        operands = iter(self._operands)
        for part in self._parts:
            value = self._apply(part, row, column, value, up, operands)
        return value

    @property
    def added(self) -> list[Array]:
        """The inputs (rows, columns) that are added to results."""
        operands = iter(self._operands)
        found = [(part["op"], next(operands)) for part in self._parts for _ in operands_of(part, 1, 1)]
        return [array for op, array in found if op == "add"]

    def _apply(
        self, part: Part, row: Scalar, column: Scalar, value: Scalar, up: Scalar | None, operands: Iterator[Array]
    ) -> Scalar:
        kernel, maths, lanes = self._kernel, self._maths, lanes_of(value)
        match part["op"]:
            case "add":
                return value + next(operands)[row, ramp(column, lanes)]
            case "scale":
                return value * splat(next(operands)[0], lanes)
            case "scale_rows":
                return value * splat(next(operands)[row], lanes)
            case "fake_quantize":
                return maths.fake_quantized(kernel, value, part["scale"])
            case "activate":
                return maths.activations[part["activation"]](kernel.let("before_activation", value))
            case "xielu":
                return self._xielu(kernel.let("before_activation", value), next(operands))
            case "gate":
                up = next(operands)[row, ramp(column + part["start"], lanes)]
                return self._gated(part, value, cast(up, with_lanes("float32", lanes)))
            case "gate_halves":
                return self._gated(part, value, up)
            case "clip":
                high, low = (splat(number(each, "float32"), lanes) for each in (part["limit"], -part["limit"]))
                return within(kernel, value, low, high)
            case "clamp":
                bounds = next(operands)
                low, high = (splat(bounds[which], lanes) for which in range(2))
                return within(kernel, value, low, high)
            case "soft_cap":
                scaled = value * splat(number(part["scale"], "float32"), lanes)
                return scaled if part["cap"] is None else maths.soft_capped(kernel, part["cap"], scaled)
        raise AssertionError(f"no kernel computes the part {part['op']}")

    def _xielu(self, value: Scalar, alphas: Array) -> Scalar:
        """See `ops.elementwise.xielu`. NaN stays NaN."""
        lanes = lanes_of(value)
        p, n, b, e = (splat(alphas[which], lanes) for which in range(4))
        zero, one = (splat(number(each, "float32"), lanes) for each in (0, 1))
        limited = self._kernel.let("limited", select(value < e, value, e))
        bent = select(value > zero, p * value * value, n * (self._maths.exp(limited) - one - value))
        return bent + b * value

    def _gated(self, part: Part, gate: Scalar, up: Scalar) -> Scalar:
        """A gate times what it gates; see `ops.elementwise.gated`. NaN stays NaN."""

        def like(value: float) -> Scalar:
            return splat(number(value, "float32"), lanes_of(gate))

        limit, slope = part["limit"], part["slope"]
        if limit is not None:
            gate = self._kernel.let("unlimited", gate)
            gate = select(gate > like(limit), like(limit), gate)
            up = within(self._kernel, up, like(-limit), like(limit))
        gate = self._kernel.let("gate", gate if slope == 1 else gate * like(slope))
        value = self._maths.activations[part["activation"]](gate)
        value = value if slope == 1 else value * like(1 / slope)
        return value * (up if part["shift"] == 0 else up + like(part["shift"]))


def within(kernel: KernelBuilder, value: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """A value, but at least ``low``, and then at most ``high``. NaN stays NaN."""
    value = kernel.let("unlimited", value)
    raised = kernel.let("raised", select(value < low, low, value))
    return select(raised > high, high, raised)


def operands_of(part: Part, rows: Expr, columns: int) -> dict[str, tuple[Expr, ...]]:
    """The inputs of a part besides its value: their shapes by role."""
    match part["op"]:
        case "add":
            return {"b": (rows, columns)}
        case "scale":
            return {"factor": (1,)}
        case "scale_rows":
            return {"factors": (rows,)}
        case "xielu":
            return {"alphas": (4,)}
        case "clamp":
            return {"bounds": (2,)}
        case "gate":
            return {"up": (rows, part["columns"])}
    return {}


class Elements:
    """An op on elements that is a step of its own: its first input (rows, columns), and the results."""

    def __init__(
        self,
        kernel: KernelBuilder,
        maths: Maths,
        part: Part,
        rows: Expr,
        columns: int,
        x_dtype: str,
        up_dtype: str = "float32",
    ) -> None:
        self._halves, self._columns = part["op"] == "gate_halves", columns
        role = {"add": "a", "gate": "gate"}.get(part["op"], "x")
        self._x = kernel.buffer(role, (rows, 2 * columns if self._halves else columns), x_dtype)
        self._fold = Fold(kernel, maths, [part], rows, columns, role="", up_dtype=up_dtype)

    def at(self, row: Scalar, column: Scalar, lanes: int = 1) -> Scalar:
        """The results of a row from ``column`` on."""
        starts = (column, column + self._columns) if self._halves else (column,)
        values = (cast(self._x[row, ramp(start, lanes)], with_lanes("float32", lanes)) for start in starts)
        return self._fold(row, column, *values)
