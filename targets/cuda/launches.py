"""A plan's steps as launches: which kernels run for a batch's dims, on which addresses, with which grids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.runtime.plan_runner import bound_arrays
from nearfar.compiler.runtime.variant import KernelChoice

from .driver import Arguments, Driver, Launch


class Sized(NamedTuple):
    """A kernel's grid and scalars for some dims; they do not depend on the step that launches it."""

    function: Any
    grid: tuple[int, int]
    threads: int
    scalars: list[int]


class Launches:
    """``addresses`` as `memory.DeviceMemory` names them. One thread at a time may launch; see `for_another_thread`."""

    def __init__(self, driver: Driver, bundle: Bundle, activation: str, addresses: Mapping[str, int]) -> None:
        manifest = bundle.manifest
        self._driver, self._manifest, self._choice = driver, manifest, KernelChoice(manifest, activation, ())
        self._addresses = addresses
        files = sorted({kernel.file for kernel in manifest.kernels.values()})
        modules = {file: driver.load(bundle.file(file)) for file in files}
        self._functions = {
            name: driver.function(modules[kernel.file], kernel.entry, kernel.shared_bytes)
            for name, kernel in manifest.kernels.items()
        }
        self._arguments: dict[tuple[str, int, str], Arguments] = {}

    def for_another_thread(self) -> Launches:
        """The same kernels and arrays, with arguments of its own."""
        other = copy(self)
        other._arguments = {}
        return other

    def forget_addresses(self) -> None:
        """Look up all addresses again, because arrays have moved."""
        self._arguments.clear()

    def launch(self, plan: str, dims: Mapping[str, int], launch: Launch | None = None) -> None:
        """Launch every step of a plan. ``launch`` None means the driver's, on its stream."""
        self.launch_steps(plan, self.steps(plan, dims), dims, launch)

    def steps(self, plan: str, dims: Mapping[str, int]) -> list[tuple[int, list[str]]]:
        """The steps of a plan by their numbers, each with its kernels for these dims."""
        entry = self._manifest.plan(plan)
        chosen = self._choice.of(plan, dims)
        return [(index, chosen[step.variants]) for index, step in enumerate(entry.steps)]

    def launch_steps(
        self,
        plan: str,
        steps: Iterable[tuple[int, Sequence[str]]],
        dims: Mapping[str, int],
        launch: Launch | None = None,
    ) -> None:
        """Launch some steps of a plan by their numbers, each by kernels of a variant that its list has for these
        dims.
        """
        launch = launch or self._driver.launch
        for _, (function, grid, threads, _), arguments in self.sized(plan, steps, dims):
            launch(function, grid, threads, arguments)

    def sized(
        self, plan: str, steps: Iterable[tuple[int, Sequence[str]]], dims: Mapping[str, int]
    ) -> Iterator[tuple[str, Sized, Arguments]]:
        """The kernels of some steps by name, with their parameters, which the next one may change. Those with an empty
        grid are left out.
        """
        sized: dict[str, Sized] = {}
        for index, kernels in steps:
            for name in kernels:
                if name not in sized:
                    sized[name] = self._sized(name, dims)
                if not all(sized[name].grid):
                    continue
                arguments, scalars = self._arguments_of(plan, index, name), sized[name].scalars
                if scalars:
                    arguments.values[-len(scalars) :] = scalars
                yield name, sized[name], arguments

    def _sized(self, name: str, dims: Mapping[str, int]) -> Sized:
        kernel = self._manifest.kernels[name]
        x, y = (evaluate(size, dims) for size in kernel.grid)
        return Sized(
            self._functions[name], (x, y), kernel.workgroup_size, [evaluate(expr, dims) for expr in kernel.uniforms]
        )

    def _arguments_of(self, plan: str, index: int, name: str) -> Arguments:
        """A launch's parameters: the addresses are set, and space for the scalars follows."""
        key = plan, index, name
        if key not in self._arguments:
            kernel, step = self._manifest.kernels[name], self._manifest.plan(plan).steps[index]
            addresses = [self._addresses[array] for array in bound_arrays(self._manifest, step, kernel)]
            self._arguments[key] = Arguments(np.array([*addresses, *[0] * len(kernel.uniforms)], np.uint64))
        return self._arguments[key]
