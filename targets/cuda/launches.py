"""A plan's steps as launches: which kernels run for a batch's dims, on which addresses, with which grids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nearfar.compiler.bundle.manifest import Manifest, StepEntry
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.runtime.variant import choose_variant

from .driver import Arguments, Driver


class Sized(NamedTuple):
    """What a kernel takes for some dims, whichever step launches it."""

    function: Any
    grid: tuple[int, int]
    threads: int
    scalars: list[int]


class Launches:
    """``addresses`` as `memory.DeviceMemory` names them."""

    def __init__(self, driver: Driver, manifest: Manifest, folder: Path, activation: str, addresses: Mapping[str, int]) -> None:
        self._driver, self._manifest, self._activation = driver, manifest, activation
        self._addresses = addresses
        files = sorted({kernel.file for kernel in manifest.kernels.values()})
        modules = {file: driver.load(folder / file) for file in files}
        self._functions = {name: driver.function(modules[kernel.file], kernel.entry) for name, kernel in manifest.kernels.items()}
        self._arguments: dict[tuple[int, str], Arguments] = {}

    def launch(self, dims: Mapping[str, int]) -> None:
        """Launch every step."""
        # Steps of many layers share their variants, so each list is looked at once.
        chosen: dict[str, list[str]] = {}
        for step in self._manifest.plan.steps:
            if step.variants not in chosen:
                chosen[step.variants] = choose_variant(self._manifest, step, self._activation, (), dims).kernels
        self.launch_steps([(index, chosen[step.variants]) for index, step in enumerate(self._manifest.plan.steps)], dims)

    def launch_steps(self, steps: Iterable[tuple[int, Sequence[str]]], dims: Mapping[str, int]) -> None:
        """Launch some steps by their numbers, each by kernels of a variant that its list has for these dims."""
        sized: dict[str, Sized] = {}
        for index, kernels in steps:
            step = self._manifest.plan.steps[index]
            for name in kernels:
                if name not in sized:
                    sized[name] = self._sized(name, dims)
                function, grid, threads, scalars = sized[name]
                if not all(grid):
                    continue
                arguments = self._arguments_of(index, step, name)
                if scalars:
                    arguments.values[-len(scalars) :] = scalars
                self._driver.launch(function, grid, threads, arguments)

    def _sized(self, name: str, dims: Mapping[str, int]) -> Sized:
        kernel = self._manifest.kernels[name]
        x, y = (evaluate(size, dims) for size in kernel.grid)
        return Sized(self._functions[name], (x, y), kernel.workgroup_size, [evaluate(expr, dims) for expr in kernel.uniforms])

    def _arguments_of(self, index: int, step: StepEntry, name: str) -> Arguments:
        """A launch's parameters with the addresses set, room for the scalars behind them."""
        if (index, name) not in self._arguments:
            kernel = self._manifest.kernels[name]
            names = {**step.inputs, **step.outputs, "scratch": "scratch"}
            places = [self._place(names[binding.role], binding.plane) for binding in kernel.bindings]
            self._arguments[index, name] = Arguments(np.array([*places, *[0] * len(kernel.uniforms)], np.uint64))
        return self._arguments[index, name]

    def _place(self, name: str, plane: str | None) -> int:
        # Vectors are weights of one plane, which kernels bind under the weight's own name.
        return self._addresses[f"{name}.{plane}" if plane else f"{name}.w" if name in self._manifest.weights else name]
