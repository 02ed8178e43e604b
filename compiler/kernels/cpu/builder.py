"""CpuKernelBuilder: a KernelBuilder whose function runs on CPU threads.

    kernel = CpuKernelBuilder("double")
    x = kernel.buffer("x", ("S", 16), "float32")
    y = kernel.buffer("y", ("S", 16), "float32", write=True)
    with kernel.tasks("row", "S") as row:
        y[row, ramp(0, 16)] = x[row, ramp(0, 16)] * splat(number(2, "float32"), 16)
    return kernel.finish()

The parameters are pointers to the buffers, in the order of their declaration, then the dims as integers. The template
alone determines memory order and alignment; `ramp` as an index loads or stores a vector of adjacent elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from ...ir.expr import Expr
from ..builder import Array, Binding, Index, Kernel, KernelBuilder, Scalar
from ..tir import IRBuilder, script, tirx


@dataclass(frozen=True, slots=True)
class Isa:
    """The properties of an instruction set that templates use: float32 ``lanes`` of a vector, and the number of vector
    registers.
    """

    name: str
    lanes: int
    registers: int


class CpuKernelBuilder(KernelBuilder):
    def __init__(self, name: str, isa: Isa | None = None, *, scalars: tuple[str, ...] = ()) -> None:
        """``isa`` is that of `each`."""
        super().__init__(name)
        self._isa = isa
        for dim in scalars:
            self.size(dim)
        self._pointers: list[Scalar] = []

    def buffer(self, role: str, shape: tuple[Expr, ...], dtype: str, *, write: bool = False) -> Array:
        name = role.replace(".", "_")
        # Declared with all others in `finish`, because TVM accepts no further argument after the first buffer.
        pointer = script.handle(dtype)
        IRBuilder.name(f"{name}_pointer", pointer)
        self._pointers.append(pointer)
        buffer = script.decl_buffer(tuple(self.size(extent) for extent in shape), dtype, data=pointer)
        IRBuilder.name(name, buffer)
        self._bindings.append(Binding(role, "write" if write else "read", role))
        return Array(buffer)

    @contextmanager
    def tasks(self, name: str, *counts: Expr) -> Iterator[Scalar]:
        """Run the body for every ``name`` below the product of ``counts``, divided among the threads in pieces of
        neighbours.

        Returns when all are done; tasks must not write what others read. A kernel may do so several times, one after
        the other.
        """
        count = self.size(counts[0])
        for other in counts[1:]:
            count = count * self.size(other)
        with script.parallel(count) as task:
            IRBuilder.name(name, task)
            yield task

    def each(
        self,
        rows: Expr,
        columns: int,
        body: Callable[[Scalar, Scalar, int], None],
        threads: int = 0,  # noqa: ARG002
    ) -> None:
        """Call ``body`` with each row, and the start and the lanes of each vector of its columns. One task: one row."""
        assert self._isa is not None, self.name
        with self.tasks("row", rows) as row:
            each_vector(self, columns, self._isa.lanes, partial(body, row))

    def view(self, array: Array, shape: tuple[Expr, ...], dtype: str) -> Array:
        """An argument's memory as another shape and dtype."""
        buffer = script.decl_buffer(tuple(self.size(extent) for extent in shape), dtype, data=array.buffer.data)
        return Array(buffer)

    def prefetch(self, array: Array, index: Index, *, once: bool = False) -> None:
        """Prefetch the cache line of an element; this never affects results. ``once``: it is read only once, so it
        need not replace what is in the caches.
        """
        address = tirx.address_of(array[index])
        script.evaluate(tirx.call_intrin("void", "tirx.prefetch", address, 0, 0 if once else 2, 1))

    def split(self, value: Scalar, count: Scalar | int, names: tuple[str, str]) -> tuple[Scalar, Scalar]:
        """Quotient and remainder of a number that is not negative."""
        return self.let(names[0], tirx.truncdiv(value, count)), self.let(names[1], tirx.truncmod(value, count))

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: str, scope: str) -> Array:
        # TVM would ask its runtime for memory for each; on the stack LLVM turns small arrays into registers.
        buffer = script.alloc_buffer(shape, dtype, scope=scope, annotations={"disable_lower_builtin": True})
        IRBuilder.name(name, buffer)
        return Array(buffer)

    def finish(self) -> Kernel:
        self._frames.close()
        function = self._builder.get()
        scalars = tuple(self._dims)
        parameters = [*self._pointers, *self._dims.values()]
        complete = tirx.PrimFunc(parameters, function.body, function.ret_type, attrs=function.attrs)
        return Kernel(self.name, complete, tuple(self._bindings), (1, 1), 1, 0, self._scratch, scalars=scalars)


def round_up_quotient(value: Scalar, divisor: int) -> Scalar:
    """A nonnegative number divided by the divisor, rounded up."""
    return tirx.truncdiv(value + (divisor - 1), divisor)


def pieces(columns: int, lanes: int) -> list[tuple[int, int]]:
    """Columns as vectors: (start, lanes) of each, the last ones smaller powers of two."""
    found, start = [], 0
    while start < columns:
        while lanes > columns - start:
            lanes //= 2
        found.append((start, lanes))
        start += lanes
    return found


def each_vector(kernel: KernelBuilder, columns: int, lanes: int, body: Callable[[Scalar, int], None]) -> None:
    """Call ``body`` with the start and the lanes of each vector of a row."""
    with kernel.loop("vector", columns // lanes) as vector:
        body(vector * lanes, lanes)
    aligned = columns // lanes * lanes
    for start, rest in pieces(columns - aligned, lanes):
        body(aligned + start, rest)
