"""WGSL that the processes of a run share: the first process that needs a kernel lowers it with TVM.

Most bundles share most kernels, and equal names of a template's kernels mean equal kernels.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_once import made_once

if TYPE_CHECKING:
    from nearfar.targets.variant import KernelCall
    from nearfar.targets.webgpu.lower import WgslKernel


@contextmanager
def kernels_once(folder: Path) -> Iterator[None]:
    """Bundles for webgpu that are compiled inside lower only kernels that are not in the folder yet.

    The folder must belong to one run, because neither the sources of the templates nor TVM's version are part of a
    file's name.
    """
    from nearfar.targets.webgpu import lower

    shader_of = lower.shader_of
    shaders: dict[tuple[object, str], WgslKernel] = {}

    def shader_once(call: KernelCall) -> WgslKernel:
        key = call.template, call.name
        if key not in shaders:
            name = f"{call.template.__module__}.{call.template.__qualname__}-{call.name}"
            (shaders[key],) = read_once(folder / name, lambda: (shader_of(call),))
        return shaders[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower, "shader_of", shader_once)
        yield


def read_once(file: Path, lower: Callable[[], Iterable[WgslKernel]]) -> tuple[WgslKernel, ...]:
    """Kernels without their TIR functions, which only lowering needs, from a file that the first process writes."""

    def write(file: Path) -> None:
        file.write_bytes(
            pickle.dumps(tuple(replace(each, kernel=replace(each.kernel, function=None)) for each in lower()))
        )

    kernels: tuple[WgslKernel, ...] = pickle.loads(made_once(file, write).read_bytes())
    return kernels
