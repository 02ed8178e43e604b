"""KernelBuilder: how a template writes one TIR function.

A template is a Python function that declares buffers and a grid, and stores values. Python loops are unrolled;
``kernel.loop`` creates a loop.

    kernel = KernelBuilder("double")
    x = kernel.buffer("x", ("S", 8), "float32")
    y = kernel.buffer("y", ("S", 8), "float32", write=True)
    row = kernel.grid("S")
    column = kernel.threads(8)
    y[row, column] = x[row, column] * 2.0
    return kernel.finish()

Sizes and grids are expressions as in `expr.py`. The bundle contains the same expressions, so a runtime computes the
grid that the kernel assumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

from ..ir.expr import Expr
from ..ir.plan import ZEROED
from .tir import IRBuilder, script, tirx

# A TIR expression; TVM has no type stubs.
Scalar: TypeAlias = Any
Index: TypeAlias = Any

# Calls without arguments that represent built-in values, which TVM does not support; a target replaces them with its
# own.
SUBGROUP_ID = "subgroup_id_value"
NUM_SUBGROUPS = "num_subgroups_value"


@dataclass(frozen=True, slots=True)
class Binding:
    """A buffer that a kernel reads or writes.

    ``role`` is the step's role, with ".q" or ".s" for one plane of a packed weight, or "scratch." and the name of a
    scratch buffer. ``parameter`` is that role in the template, which names the function's parameter.
    """

    role: str
    access: str
    parameter: str

    def renamed(self, roles: Mapping[str, str]) -> Binding:
        """The same buffer in a step that has other roles, by those of the template."""
        name, dot, plane = self.role.partition(".")
        return replace(self, role=f"{roles.get(name, name)}{dot}{plane}")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A TIR function before lowering, and the information that a runtime needs to launch it.

    ``grid`` counts workgroups in x and y; ``scratch`` gives the float32 elements of each scratch buffer that the kernel
    binds. ``subgroups``: it uses `KernelBuilder.subgroup`. ``scalars``: for CPU kernels, the dims that follow the
    buffers in the parameters.
    """

    name: str
    function: Any
    bindings: tuple[Binding, ...]
    grid: tuple[Expr, Expr]
    workgroup_size: int
    shared_bytes: int
    scratch: Mapping[str, Expr]
    subgroups: bool = False
    scalars: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Subgroup:
    """A thread's subgroup: its index among the workgroup's ``count``, the thread's index in it, and its number of
    threads.

    Indices are 0, 1, 2 and so on without gaps; the device chooses which threads form a subgroup.
    """

    index: Scalar
    count: Scalar
    lane: Scalar
    size: Scalar

    def sum(self, value: Scalar) -> Scalar:
        """The sum over the subgroup, returned to all its threads. Store it before use, and never inside divergent
        code.
        """
        return tirx.call_extern(str(value.ty), "subgroupAdd", value)


class Array:
    """A buffer inside a kernel: ``a[i, j]`` reads, ``a[i, j] = v`` writes, and converts Python numbers to the buffer's
    dtype.
    """

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __getitem__(self, index: Index) -> Scalar:
        return self.buffer[index]

    def __setitem__(self, index: Index, value: Scalar) -> None:
        if isinstance(value, (int, float)):
            value = number(value, str(self.buffer.dtype))
        script.buffer_store(self.buffer, value, list(index) if isinstance(index, tuple) else [index])


class KernelBuilder:
    def __init__(self, name: str, *, scalars: tuple[str, ...] = ()) -> None:
        """``scalars`` are the dims that the kernel's body uses and that are not by themselves an extent of a buffer."""
        self.name = name
        self._frames = ExitStack()
        self._builder = IRBuilder()
        self._frames.enter_context(self._builder)
        self._frames.enter_context(script.prim_func(s_tir=True))
        script.func_name(name)
        # Arguments never overlap: a plan gives every output of a step separate storage.
        script.func_attr({"global_symbol": name, "tirx.noalias": True, "tirx.is_scheduled": True})
        self._dims: dict[str, Any] = {dim: script.arg(dim, tirx.Var(dim, "int32")) for dim in scalars}
        self._bindings: list[Binding] = []
        self._grid: tuple[Expr, Expr] = (1, 1)
        self._workgroup_size = 0
        self._shared_bytes = 0
        self._scratch: dict[str, Expr] = {}
        self._subgroups = False

    def buffer(self, role: str, shape: tuple[Expr, ...], dtype: str, *, write: bool = False) -> Array:
        """Declare an argument. A dtype such as "float32x4" makes every element a vector, and ``shape`` counts
        vectors.
        """
        name = role.replace(".", "_")
        # TVM finds a dim that is an extent by itself.
        for dim in (dim for extent in shape for dim in dims_of(extent) if not isinstance(extent, str)):
            if dim not in self._dims:
                self._dims[dim] = script.arg(dim, tirx.Var(dim, "int32"))
        handle = script.arg(f"{name}_handle", script.handle())
        buffer = script.match_buffer(handle, tuple(self.size(extent) for extent in shape), dtype)
        IRBuilder.name(name, buffer)
        self._bindings.append(Binding(role, "write" if write else "read", role))
        return Array(buffer)

    def scratch(self, name: str, shape: tuple[Expr, ...], dtype: str, *, write: bool = False) -> Array:
        """Declare a buffer through which a variant's kernel passes values of 32 or 16 bits to the next kernel; all
        steps share it.
        """
        base, _, lanes = dtype.partition("x")
        assert size_bytes(base) in (2, 4), dtype
        elements: Expr = int(lanes or 1)
        for extent in shape:
            elements = ["mul", elements, extent]
        if size_bytes(base) == 2:
            elements = ["ceildiv", elements, 2]
        self._scratch[name] = elements
        return self.buffer(f"scratch.{name}", shape, dtype, write=write)

    def zeroed_scratch(self, name: str, shape: tuple[Expr, ...]) -> Array:
        """A scratch buffer of uint32 that starts as zeros. A kernel that writes it leaves zeros behind."""
        return self.scratch(f"{ZEROED}{name}", shape, "uint32", write=True)

    def size(self, expr: Expr) -> Scalar:
        """A size expression as TIR."""
        if isinstance(expr, int):
            return tirx.const(expr, "int32")
        if isinstance(expr, str):
            return self._dims.setdefault(expr, tirx.Var(expr, "int32"))
        operator, left, right = expr
        operators = {
            "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
            "ceildiv": tirx.ceildiv, "min": tirx.min, "max": tirx.max,
        }  # fmt: skip
        return operators[str(operator)](self.size(left), self.size(right))

    def grid(self, x: Expr, y: Expr = 1) -> tuple[Scalar, Scalar]:
        """Launch x times y workgroups and return the workgroup's coordinates. x may exceed 65,535, y may not."""
        self._grid = (x, y)
        return self._bind("blockIdx.x", x, "group_x"), self._bind("blockIdx.y", y, "group_y")

    def threads(self, count: int) -> Scalar:
        """The thread's index in a workgroup of ``count`` threads."""
        self._workgroup_size = count
        return self._bind("threadIdx.x", count, "thread")

    def subgroup(self) -> Subgroup:
        """This thread's subgroup, of whatever size the device chose. Call it once per kernel, outside divergent
        code.
        """
        self._subgroups = True

        # TVM assumes that these calls have side effects, so it neither moves nor repeats them.
        def value(name: str, function: str, *arguments: Scalar) -> Scalar:
            return self.let(name, tirx.Cast("int32", tirx.call_extern("uint32", function, *arguments)))

        one = tirx.const(1, "uint32")
        return Subgroup(
            index=value("subgroup_index", SUBGROUP_ID),
            count=value("subgroup_count", NUM_SUBGROUPS),
            lane=value("subgroup_lane", "subgroupExclusiveAdd", one),
            size=value("subgroup_threads", "subgroupAdd", one),
        )

    def _bind(self, thread: str, extent: Expr, name: str) -> Scalar:
        variable = self._frames.enter_context(script.thread_binding(self.size(extent), thread=thread))
        IRBuilder.name(name, variable)
        return variable

    def local(self, name: str, length: int, dtype: str, *, fill: float | None = None) -> Array:
        """Registers of one thread. With ``fill``, every element is set."""
        array = self._allocate(name, (length,), dtype, "local")
        if fill is not None:
            for i in range(length):
                array[i] = fill
        return array

    def shared(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Memory of the workgroup, not initialised."""
        self._shared_bytes += math.prod(shape) * size_bytes(dtype)
        return self._allocate(name, shape, dtype, "shared")

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: str, scope: str) -> Array:
        buffer = script.alloc_buffer(shape, dtype, scope=scope)
        IRBuilder.name(name, buffer)
        return Array(buffer)

    @contextmanager
    def loop(self, name: str, count: Scalar | int) -> Iterator[Scalar]:
        """``for name in range(count)``."""
        with script.serial(count) as i:
            IRBuilder.name(name, i)
            yield i

    @contextmanager
    def when(self, condition: Scalar | bool) -> Iterator[None]:
        """``if condition``. A Python bool is decided now."""
        if condition is True:
            yield
            return
        with script.If(condition), script.Then():
            yield

    def let(self, name: str, value: Scalar) -> Scalar:
        """Compute a value once and give it a name."""
        variable = script.Bind(value)
        IRBuilder.name(name, variable)
        return variable

    def barrier(self) -> None:
        """Wait for all threads of the workgroup; never use it inside divergent code."""
        script.evaluate(tirx.op.tvm_storage_sync("shared"))

    def fold(self, thread: Scalar, lane: Scalar, lanes: int, combine: Callable[[Scalar, Scalar], None]) -> None:
        """Combine values in shared memory over groups of ``lanes`` threads (a power of two) into each group's first
        element.

        ``lane`` is the thread's index in its group; ``combine(mine, other)`` adds element ``other`` to element
        ``mine``. Barriers are included.
        """
        stride = lanes // 2
        self.barrier()
        while stride:
            with self.when(lane < stride):
                combine(thread, thread + stride)
            self.barrier()
            stride //= 2

    def folded(
        self, name: str, thread: Scalar, threads: int, value: Scalar, combine: Callable[[Scalar, Scalar], Scalar]
    ) -> Scalar:
        """Combine one float32 value from each of the workgroup's ``threads`` (a power of two), and return the result to
        all of them. Barriers are included.
        """
        partials = self.shared(name, (threads,), "float32")
        partials[thread] = value

        def into(mine: Scalar, other: Scalar) -> None:
            partials[mine] = combine(partials[mine], partials[other])

        self.fold(thread, thread, threads, into)
        return self.let("folded", partials[0])

    def each(self, rows: Expr, columns: int, body: Callable[[Scalar, Scalar, int], None], threads: int) -> None:
        """Call ``body`` with each row and column of a result (rows, columns), and the number of columns, 1.

        One thread: one column of one row. One workgroup: ``threads`` columns.
        """
        block, row = self.grid(["ceildiv", columns, threads], rows)
        column = self.let("column", block * threads + self.threads(threads))
        with self.when(guard_below(column, columns, threads)):
            body(row, column, 1)

    def finish(self) -> Kernel:
        self._frames.close()
        function = self._builder.get()
        return Kernel(
            self.name,
            function,
            tuple(self._bindings),
            self._grid,
            self._workgroup_size,
            self._shared_bytes,
            self._scratch,
            self._subgroups,
        )


def dims_of(expr: Expr) -> list[str]:
    """The dims in a size expression."""
    if isinstance(expr, list):
        return [dim for operand in expr[1:] for dim in dims_of(operand)]
    return [expr] if isinstance(expr, str) else []


# --- values ---


def number(value: float, dtype: str) -> Scalar:
    """A constant; for a vector dtype, the same number in every lane."""
    base, _, lanes = dtype.partition("x")
    scalar = tirx.const(value, base)
    return tirx.Broadcast(scalar, int(lanes)) if lanes else scalar


def size_bytes(dtype: str) -> int:
    """Bytes of one element: 16 of a float32x4."""
    base, _, lanes = dtype.partition("x")
    return int(base.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8 * int(lanes or 1)


def sum_of(values: Iterable[Scalar]) -> Scalar:
    return reduce(lambda one, other: one + other, values)


def cast(value: Scalar, dtype: str) -> Scalar:
    return value if str(value.ty) == dtype else tirx.Cast(dtype, value)


def reinterpret(value: Scalar, dtype: str) -> Scalar:
    """The same bits as another dtype."""
    return tirx.reinterpret(dtype, value)


def select(condition: Scalar, then: Scalar, otherwise: Scalar) -> Scalar:
    """``then`` if the condition holds, else ``otherwise``. Both are evaluated, without a branch, so loads in them must
    be in range.
    """
    return tirx.Select(condition, then, otherwise)


def truncated_quotient(dividend: Scalar, divisor: Scalar) -> Scalar:
    """The integer part of a quotient; for nonnegative numbers it is cheaper than ``//``, which rounds down."""
    return tirx.truncdiv(dividend, divisor)


def all_of(*conditions: Scalar | bool) -> Scalar | bool:
    """The conjunction; conditions that are Python's True are omitted."""
    real = [condition for condition in conditions if condition is not True]
    return tirx.all(*real) if len(real) > 1 else real[0] if real else True


def guard_below(index: Scalar, limit: int, step: int) -> Scalar | bool:
    """``index < limit``, or True if tiles of ``step`` cover the limit exactly."""
    return True if limit % step == 0 else index < limit


def any_of(*conditions: Scalar) -> Scalar:
    return tirx.any(*conditions)


exp = tirx.exp
floor = tirx.floor
log = tirx.log
magnitude = tirx.abs
rsqrt = tirx.rsqrt
maximum = tirx.max
minimum = tirx.min


def extern(dtype: str, function: str, *arguments: Scalar) -> Scalar:
    """A call of a builtin of the target's language."""
    return tirx.call_pure_extern(dtype, function, *arguments)


def perform(function: str, *arguments: Scalar | int) -> None:
    """Call a function of the target's language for its side effects."""
    script.evaluate(tirx.call_extern("void", function, *arguments))


def result_of(dtype: str, function: str, *arguments: Scalar) -> Scalar:
    """As `perform`, but with a result, which must be stored at once."""
    return tirx.call_extern(dtype, function, *arguments)


def address_of(array: Array, *index: Scalar | int) -> Scalar:
    """A pointer to an element, as an argument of such functions."""
    return tirx.address_of(array.buffer[index])
