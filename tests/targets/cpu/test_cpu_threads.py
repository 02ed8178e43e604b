"""The threads of a CPU library, and its functions besides kernels."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from nearfar.compiler.kernels.cpu.builder import CpuKernelBuilder
from nearfar.compiler.kernels.vectors import ramp
from nearfar.compiler.pipeline.lower import OBJECT_PREFIX, lower_object
from nearfar.compiler.runtime.errors import BundleError
from nearfar.targets.cpu.levels import by_name
from nearfar.targets.cpu.library import Library
from nearfar.targets.cpu.link import link
from nearfar.targets.cpu.lower import tvm_target
from nearfar.targets.cpu.runner import aligned

ARCH = by_name(None)
LANES, ROWS, LOOPS = 8, 7, 300


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernel = CpuKernelBuilder("count")
    y = kernel.buffer("y", ("S", LANES), "float32", write=True)
    with kernel.tasks("row", "S") as row:
        y[row, ramp(0, LANES)] = y[row, ramp(0, LANES)] + 1
    path: Path = tmp_path_factory.mktemp("threads") / "kernels.so"
    path.write_bytes(link([lower_object([kernel.finish()], tvm_target(ARCH, ARCH.levels[-1]))], ARCH.triple))
    return path


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_loop_runs_each_task_once_also_after_its_threads_slept(file: Path, threads: int, tmp_path: Path) -> None:
    # Loaded by its path, so each test has its own.
    copy = tmp_path / "kernels.so"
    copy.write_bytes(file.read_bytes())
    library = Library(copy)
    library.start_threads(threads)
    y = aligned(np.zeros((ROWS, LANES), np.float32))
    launches = library.prepare([(f"{OBJECT_PREFIX}count", [y.ctypes.data], 1)] * LOOPS)
    for round_ in (1, 2, 3):
        library.run(launches, np.full(LOOPS, ROWS, np.int64))
        np.testing.assert_array_equal(y, round_ * LOOPS)
        time.sleep(0.1)
    library.stop_threads()
    library.run(launches, np.full(LOOPS, ROWS, np.int64))
    np.testing.assert_array_equal(y, 4 * LOOPS)


def test_a_library_of_another_version_is_refused(file: Path, tmp_path: Path) -> None:
    for function in ("nearfar_launch", "nearfar_work"):
        copy = tmp_path / f"without-{function}.so"
        copy.write_bytes(file.read_bytes().replace(function.encode(), function.encode()[:-1] + b"_"))
        with pytest.raises(BundleError, match=f"has no function '{function}'; compile the bundle again"):
            Library(copy).start_threads(2)
