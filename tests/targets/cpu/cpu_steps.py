"""A plan of one step, the kernels of all its variants at all levels of instruction sets that this machine can run, and
their results.

A case declares the step's inputs by role: ("float32", "S", 37) is an array of a batch, ("matrix", 40, 37) a weight. Its
batches give dims and the arrays that are not random. The expected arrays are those of `ops`. Data that a kernel must
not read is NaN before it runs: scratch, results, and the arrays that a case chooses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from case_check import stored_pages
from cpu_pages import from_cpu, to_cpu
from random_planes import random_planes
from tolerances import KV_KERNEL, OF_KERNEL, relative_error

from nearfar.compiler import quant
from nearfar.compiler.ir.expr import Expr, evaluate, holds
from nearfar.compiler.ir.graph import Constant, Parameter, Source
from nearfar.compiler.ir.ops import OPS, Array, states
from nearfar.compiler.ir.plan import Buffer, Plan, Step
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.pipeline.lower import OBJECT_PREFIX, lower_calls_object
from nearfar.compiler.quant.layout import store_rows
from nearfar.compiler.runtime.variant import stored_dtype
from nearfar.targets.cpu.levels import AMX, ARCHS, AVX2, NEON, Arch, Level, by_name, features
from nearfar.targets.cpu.library import Launches, Library
from nearfar.targets.cpu.link import link
from nearfar.targets.cpu.lower import tvm_target
from nearfar.targets.cpu.runner import aligned
from nearfar.targets.cpu.variants import CpuContext, variants_of
from nearfar.targets.variant import KernelCall, Variant

ARCH = by_name(None)
# Without AMX, whose kernels compute other bits; see test_cpu_matrix.py.
LEVELS = tuple(level for level in ARCH.levels if set(level.needs) <= features() and level != AMX)
# The inputs that an op changes; attention only if it appends.
STATES = {
    "append_kv": ("kv",),
    "attention": ("kv",),
    "sample": ("sampled", "counts"),
    "keep_rows": ("kept",),
    **{name: op.states for name, op in states.OPS.items()},
}
PARAMETERS = ("matrix", "vector", "rope")
# The kind or dtype of each input of a step, then its shape.
Inputs = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Batch:
    """``arrays`` by role; other inputs are random. ``poison`` replaces arrays after the expected ones are computed."""

    dims: Mapping[str, int]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    poison: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class StepCase:
    """``levels``: the levels that run in addition to the base level, None for all. ``same_bits``: every variant at
    every level computes the same bits. ``exhaustive``: only `make test-all` runs it.
    """

    name: str
    op: str
    inputs: Mapping[str, tuple[Any, ...]]
    attrs: Mapping[str, Any]
    batches: Sequence[Batch]
    activation: str = "float32"
    quantization: str = "f32"
    levels: tuple[str, ...] | None = None
    same_bits: bool = True
    exhaustive: bool = False

    @property
    def step(self) -> Step:
        attrs = OPS[self.op].canonical(self.op, self.attrs)
        OPS[self.op].check_inputs(self.op, {role: declared[0] for role, declared in self.inputs.items()}, attrs)
        return Step(self.op, {role: role for role in self.inputs}, {role: role for role in self.results}, attrs)

    @property
    def shapes(self) -> dict[str, tuple[Expr, ...]]:
        return {role: tuple(shape) for role, (_, *shape) in self.inputs.items()}

    @property
    def results(self) -> dict[str, tuple[tuple[Expr, ...], Any]]:
        return dict(OPS[self.op].results(self.shapes, self.attrs))

    @property
    def plan(self) -> Plan:
        of_kind = {
            kind: {r: d[1:] for r, d in self.inputs.items() if d[0] == kind}
            for kind in {d[0] for d in self.inputs.values()}
        }
        form = None if self.quantization in quant.NAMES else self.quantization
        matrices = {
            role: Parameter(role, (Source(role, 0, shape[0]),), shape[1], form)
            for role, shape in of_kind.get("matrix", {}).items()
        }
        vectors = {
            role: Parameter(role, (Source(role, 0, shape[0]),), None)
            for role, shape in of_kind.get("vector", {}).items()
        }
        return Plan(
            inputs={r: Buffer(r, d[1:], d[0]) for r, d in self.inputs.items() if d[0] not in PARAMETERS},
            states={},
            constants={role: Constant(role, "rope", shape, {}) for role, shape in of_kind.get("rope", {}).items()},
            weights={**matrices, **vectors},
            buffers={role: Buffer(role, shape, dtype) for role, (shape, dtype) in self.results.items()},
            steps=(self.step,),
            outputs={},
        )

    def variants(self, levels: tuple[Level, ...]) -> tuple[Variant, ...]:
        quantization = quant.by_name(self.quantization if self.quantization in quant.NAMES else "f32")
        context = CpuContext(self.plan, quantization, (self.activation,), levels)
        return variants_of(self.step, context)

    def runnable(self) -> Iterator[tuple[Level, Variant]]:
        """The variants of this machine's levels, and Arm's base level compiled for x86-64, on which its kernels compute
        the same.
        """
        rows = [*self.variants(LEVELS), *(row for row in self.variants((NEON,)) if ARCH.name == "x86_64")]
        for row in rows:
            level = level_of(row.kernels[-1])
            if self.levels is None or level.name in self.levels or level == ARCH.levels[-1]:
                yield level, row


def level_of(call: KernelCall) -> Level:
    return next(level for arch in ARCHS.values() for level in arch.levels if level.isa == call.facts["isa"])


@dataclass(frozen=True)
class Run:
    """``arrays`` by the role of a binding: inputs, and the previous contents of results. ``expected`` are results and
    states after the step. ``kv`` is the format of pages.
    """

    dims: Mapping[str, int]
    arrays: Mapping[str, Array]
    expected: Mapping[str, Array]
    kv: str = "activation"


def run_of(case: StepCase, batch: Batch) -> Run:
    """The arrays of one batch, and the op's results for them."""
    rng = np.random.default_rng(crc32(case.name.encode()) + sum(batch.dims.values()))
    op, fmt = OPS[case.op], quant.form_by_name(case.quantization)
    inputs: dict[str, Array] = {}
    bound: dict[str, Array] = {}
    for role, (kind, *declared) in case.inputs.items():
        shape = tuple(evaluate(size, batch.dims) for size in declared)
        if kind == "matrix":
            planes = (
                quant.by_name(case.quantization).pack(batch.arrays[role])
                if role in batch.arrays
                else random_planes(fmt, rng, *shape)
            )
            inputs[role] = fmt.unpack(planes, shape[1])
            bound |= {f"{role}.{plane}": store_rows("tiles16", array) for plane, array in planes.items()}
            continue
        inputs[role] = (
            batch.arrays[role].copy() if role in batch.arrays else random_array(rng, kind, shape, case.activation)
        )
        assert inputs[role].shape == shape, (role, inputs[role].shape, shape)
        bound[role] = batch.poison[role] if role in batch.poison else inputs[role].copy()
    results = {}
    for role, (extents, dtype) in case.results.items():
        shape = tuple(evaluate(size, batch.dims) for size in extents)
        results[role] = np.full(
            shape, -7 if dtype == "int32" else np.nan, stored_dtype(case.activation) if dtype == "activation" else dtype
        )
    if "into" in inputs:
        assert op.result is not None
        results[op.result] = bound.pop("into")
        inputs["into"] = inputs["into"].astype(np.float32)
    more = {role: array.copy() for role, array in results.items() if role != op.result}
    found = op.run({**inputs, **more}, case.step.attrs)
    changes = case.op != "attention" or "slots" in inputs
    changed = STATES.get(case.op, ()) if changes else ()
    expected = {role: inputs[role] for role in changed if role not in batch.poison} | more
    if op.result is not None:
        assert found is not None
        expected[op.result] = found.astype(results[op.result].dtype)
    bound |= results
    kv = str(case.attrs.get("kv", "activation"))
    if "kv" in bound:
        bound["kv"] = to_cpu(bound["kv"], kv)
    return Run(batch.dims, bound, expected, kv)


def random_array(rng: np.random.Generator, kind: str, shape: tuple[int, ...], activation: str) -> Array:
    if kind == "rope":
        return rope_table([0.5**pair for pair in range(shape[1])], shape[0])
    assert kind in ("float32", "activation", "vector"), kind
    x = rng.normal(1, 0.3, shape) if kind == "vector" else rng.normal(size=shape)
    return x.astype(stored_dtype(activation) if kind == "activation" else np.float32)


@dataclass
class StepLibrary:
    """The kernels of cases, all in one library."""

    cases: Sequence[StepCase]
    folder: Path
    optimized: bool = True

    @cached_property
    def calls(self) -> dict[str, KernelCall]:
        return {call.name: call for case in self.cases for _, row in case.runnable() for call in row.kernels}

    @property
    def kernels(self) -> dict[str, Kernel]:
        return self.compiled[0]

    @cached_property
    def compiled(self) -> tuple[dict[str, Kernel], list[bytes]]:
        return objects_of(ARCH, self.calls, optimized=self.optimized)

    @cached_property
    def library(self) -> Library:
        file = self.folder / "kernels.so"
        file.write_bytes(link(self.compiled[1], ARCH.triple))
        library = Library(file)
        library.start_threads(2)
        return library

    def outputs(self, row: Variant, run: Run) -> dict[str, Array]:
        """The buffers that a variant's kernels wrote, by role, with pages in the layout of the ops."""
        launches, scalars, arrays = self.prepared(row, run)
        self.library.run(launches, scalars)
        kernels = [self.kernels[call.name] for call in row.kernels]
        written = {binding.role for kernel in kernels for binding in kernel.bindings if binding.access == "write"}
        found = {role: arrays[role] for role in written if not role.startswith("scratch.")}
        return {role: from_cpu(array, run.kv) if role == "kv" else array for role, array in found.items()}

    def seconds(self, row: Variant, run: Run) -> float:
        """How long a variant's kernels take, the second time that they run."""
        launches, scalars, _arrays = self.prepared(row, run)
        self.library.run(launches, scalars)
        return self.timed(launches, scalars)

    def timed(self, launches: Launches, scalars: npt.NDArray[np.int64]) -> float:
        """How long prepared kernels take."""
        start = time.perf_counter()
        self.library.run(launches, scalars)
        return time.perf_counter() - start

    def prepared(self, row: Variant, run: Run) -> tuple[Launches, npt.NDArray[np.int64], dict[str, Array]]:
        """The launches of a variant's kernels, their scalars, and the arrays that they read and write; scratch is
        NaN.
        """
        kernels = [self.kernels[call.name] for call in row.kernels]
        scratch: dict[str, int] = {}
        for name, size in (item for kernel in kernels for item in kernel.scratch.items()):
            scratch[f"scratch.{name}"] = max(evaluate(size, run.dims), scratch.get(f"scratch.{name}", 0))
        given = {**run.arrays, **{role: np.full(size, np.nan, np.float32) for role, size in scratch.items()}}
        arrays = {role: aligned(array) for role, array in given.items()}
        calls = []
        for kernel in kernels:
            pointers = [arrays[binding.role].ctypes.data for binding in kernel.bindings]
            calls.append((f"{OBJECT_PREFIX}{kernel.name}", pointers, len(kernel.scalars)))
        scalars = [run.dims[dim] for kernel in kernels for dim in kernel.scalars]
        return self.library.prepare(calls), np.array(scalars, np.int64), arrays


def objects_of(
    arch: Arch, calls: Mapping[str, KernelCall], *, optimized: bool = True
) -> tuple[dict[str, Kernel], list[bytes]]:
    """The kernels by name, without their functions, and an object file for each level and template, so that a change of
    one template compiles few. A level of another architecture is compiled for the base level of this one. Unless they
    are ``optimized``, LLVM takes half of the time.
    """
    grouped: dict[tuple[Level, str], list[KernelCall]] = {}
    for call in calls.values():
        grouped.setdefault((level_of(call), call.template.__name__), []).append(call)
    kernels: dict[str, Kernel] = {}
    objects = []
    for (level, _), group in grouped.items():
        target = tvm_target(arch, level if level in arch.levels else replace(AVX2, name=level.name))
        target = target if optimized else {**target, "opt-level": 0}
        built, compiled = lower_calls_object(group, target, lambda _: None)
        kernels |= {kernel.name: kernel for kernel in built}
        objects.append(compiled)
    return kernels, objects


def runs_on(row: Variant, dims: Mapping[str, int]) -> bool:
    """Whether a variant's results are right for a batch. The conditions of some variants only concern speed."""
    facts = row.kernels[-1].facts
    only_for_speed = facts.get("tokens", 0) > 1 or facts.get("tile_rows", 0) > 1
    return only_for_speed or holds(row.when, dims)


def check(case: StepCase, run: Run, outputs: Mapping[str, Array], what: object) -> None:
    """Compare the kernels' outputs with the op's result."""
    integers = "int8" if case.activation == "int8" else "int16"
    multiplies = case.inputs.get("weight", ("",))[0] == "matrix"
    rounded = integers if multiplies and case.quantization.startswith("q") else "float32"
    for role, expected in run.expected.items():
        found = outputs[role]
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (what, role)
        if expected.dtype.kind == "i":
            np.testing.assert_array_equal(found, expected, str((what, role)))
            continue
        limit = KV_KERNEL.get(run.kv) or max(OF_KERNEL[str(expected.dtype)], OF_KERNEL[rounded])
        if expected.dtype.kind == "u":
            found, expected, limit = stored_pages((what, role), found, expected, run.kv)
        # Unused places of pages hold NaN before and after.
        assert (np.isnan(found) == np.isnan(expected)).all(), (what, role)
        error = relative_error(np.nan_to_num(found.astype(np.float64)), np.nan_to_num(expected.astype(np.float64)))
        assert error < limit, (what, role, run.dims, error)
